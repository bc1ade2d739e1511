"""Does the fast path learn the same? Held-out loss after a few hundred steps, fast and plain, over two seeds.

    python benchmarks/same_learning.py corpus [--steps 300] [--length 128] [--works bert,gpt]

    fast    what `etude pretrain` does on this device: bf16, compiled, recorded, our kernels, many sequences a row
    plain   float32, nothing compiled, torch's own kernels; and in a row as many sequences as it takes to fill one: one
            of a causal model, in which all are of full length

Both start from the same weights and read the same text in the same order. They pass where the two differ by no more
than two seeds of the plain path do.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from etude.pretraining import pretrain as pretraining
from etude.runs.model_card import describe_hardware, describe_versions
from etude.text.corpus.corpus import Corpus

NONE = {"model.dropout": 0.0, "model.attention_dropout": 0.0, "model.embedding_dropout": 0.0}
WORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert-small", NONE | {"objective.sentence": "none", "model.pooler": False, "train.lr": 5e-4}),
    "gpt": ("gpt2", NONE | {"model.layers": 4, "model.width": 512, "model.heads": 8, "train.lr": 1e-3}),
}
PLAIN = {"train.precision": "float32", "train.compile": False}


def held_out(corpus: Corpus, work: str, seed: int, asked: argparse.Namespace, plain: bool) -> float:
    (recipe, settings), length, steps = WORKS[work], asked.length, asked.steps
    settings = settings | {"model.context": length, "objective.length": length, "train.batch_tokens": asked.tokens}
    settings |= {"train.steps": steps, "train.seed": seed, "train.save_every": 0, "train.eval_every": steps}
    settings |= {"train.warmup": 0.1, "train.eval_tokens": 2**18, "train.log_every": steps}
    with tempfile.TemporaryDirectory() as folder:
        run = pretraining.pretrain(
            recipe, corpus, Path(folder) / "run", quiet=True, overrides=settings | (PLAIN if plain else {})
        )
        lines = [line for line in run.metrics() if line["split"] == "valid"]
    torch._dynamo.reset()
    return float(lines[-1]["loss"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=16_384, help="of a step")
    parser.add_argument("--length", type=int, default=128, help="of a sequence: beyond 128 other kernels are at work")
    parser.add_argument("--works", default="bert,gpt")
    asked = parser.parse_args()
    corpus = Corpus.open(asked.corpus)
    print(
        f"{describe_hardware()}, {describe_versions()}; {asked.steps} steps of {asked.tokens:,} tokens, "
        f"length {asked.length}",
        flush=True,
    )
    good = True
    for work in asked.works.split(","):
        plain = [held_out(corpus, work, seed, asked, True) for seed in (0, 1)]
        fast = [held_out(corpus, work, seed, asked, False) for seed in (0, 1)]
        spread = abs(plain[0] - plain[1])
        apart = max(abs(one - other) for one, other in zip(plain, fast, strict=True))
        good &= apart <= spread
        print(
            f"{work}: plain {plain[0]:.4f} {plain[1]:.4f}, fast {fast[0]:.4f} {fast[1]:.4f}; two seeds differ by "
            f"{spread:.4f}, the paths by at most {apart:.4f}: {'same' if apart <= spread else 'NOT the same'}",
            flush=True,
        )
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()

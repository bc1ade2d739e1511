"""Do the systems learn real text? GPT-2, BERT with sentence order, and ELECTRA on one corpus, beside a bigram.

    etude prepare text.xz -o corpus --tokenizer wordpiece:16000,lower --valid 0.02
    python benchmarks/learning.py corpus --out runs/learning --minutes 2

Small models (6 layers of 512; ELECTRA-small) for a few minutes each on one GPU; on a CPU, `--toy`. Every run is an
ordinary run: its recipe, metrics and card stay in the output folder. Prints the held-out figures as obtained, and
writes the curves of all runs as one JSON file.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from etude import pretraining
from etude.card import hardware, versions
from etude.text.baselines import bigram_nats, unigram_nats
from etude.text.corpus import Corpus

SHAPE = {"model.layers": 6, "model.width": 512, "model.heads": 8, "model.context": 128}
WORK: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt": ("gpt2", SHAPE | {"train.batch_tokens": 65_536, "train.lr": 1e-3}),
    "bert-order": (
        "bert-base",
        SHAPE | {"objective.sentence": "order", "train.batch_tokens": 65_536, "train.lr": 5e-4},
    ),
    "electra": ("electra-small", {"train.batch_tokens": 65_536}),
}
TOYS = {"gpt": "gpt2-toy", "bert-order": "bert-toy", "electra": "electra-toy"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus")
    parser.add_argument("--out", default="runs/learning")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--only", help="names, separated by commas")
    parser.add_argument("--toy", action="store_true", help="toy sizes, for a CPU")
    asked = parser.parse_args()
    corpus, valid = Corpus.open(asked.corpus), Corpus.open(asked.corpus, part="valid")
    unigram, bigram = unigram_nats(corpus, valid), bigram_nats(corpus, valid)
    print(f"{hardware()}, {versions()}")
    print(f"held-out text: unigram {unigram:.3f}, Kneser-Ney bigram {bigram:.3f} nats a token", flush=True)
    curves: dict[str, Any] = {"unigram": unigram, "bigram": bigram, "hardware": hardware(), "versions": versions()}
    for name, (recipe, settings) in WORK.items():
        if asked.only and name not in asked.only.split(","):
            continue
        if asked.toy:
            recipe, settings = TOYS[name], {k: v for k, v in settings.items() if k.startswith("objective")}
        common = {"train.minutes": asked.minutes, "train.eval_every": 50, "train.save_every": 0, "train.warmup": 0.06}
        common |= {
            "train.log_every": 25,
            "train.eval_tokens": 131_072,
            "train.workers": 4 if torch.cuda.is_available() else 1,
        }
        if settings.get("objective.sentence"):
            settings = settings | {"model.pooler": True}
        run = pretraining.pretrain(recipe, corpus, Path(asked.out) / name, quiet=True, overrides=settings | common)
        lines = run.metrics()
        found = [line for line in lines if line["split"] == "valid"]
        first, last = found[0], found[-1]
        curves[name] = lines
        kept = {k: v for k, v in last.items() if k not in ("step", "tokens", "flops", "seconds", "split")}
        print(f"{name}: {last['step']} steps, {last['tokens']:,} tokens, {last['flops']:.2e} FLOPs, {last['seconds']:.0f} s, "
              f"{last['tokens'] / last['seconds']:,.0f} tokens/s")  # fmt: skip
        for key, value in kept.items():
            print(f"    {key:24} {first.get(key, float('nan')):8.4f} -> {value:8.4f}", flush=True)
        torch._dynamo.reset()
    Path(asked.out, "curves.json").write_text(json.dumps(curves))


if __name__ == "__main__":
    main()

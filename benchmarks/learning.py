"""Do the systems learn real text? GPT-2, BERT with sentence order, and ELECTRA on one corpus, beside a bigram.

    etude prepare text.xz -o corpus --tokenizer wordpiece:16000,lower --valid 0.02
    python benchmarks/learning.py corpus --out runs/learning

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

from etude.pretraining import pretrain as pretraining
from etude.runs.model_card import describe_hardware, describe_versions
from etude.text.corpus.bigram_baseline import bigram_nats, unigram_nats
from etude.text.corpus.corpus import Corpus

PLAIN = {"model.dropout": 0.0, "model.attention_dropout": 0.0, "model.embedding_dropout": 0.0}  # one pass or few
SHAPE = {"model.layers": 6, "model.width": 512, "model.heads": 8, "model.context": 128}
WORK: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt": ("gpt2", SHAPE | PLAIN | {"train.batch_tokens": 65_536, "train.lr": 1e-3, "train.steps": 1500}),
    "bert-order": (
        "bert-small",  # 4 layers of 512
        PLAIN
        | {"model.context": 128, "objective.length": 128, "objective.sentence": "order"}
        | {"train.batch_tokens": 16_384, "train.lr": 5e-4, "train.steps": 6000},
    ),
    "electra": (
        "electra-small",
        PLAIN | {"train.batch_tokens": 16_384, "train.lr": 5e-4, "train.steps": 10_000, "train.eval_every": 500},
    ),
}
TOYS = {"gpt": "gpt2-toy", "bert-order": "bert-toy", "electra": "electra-toy"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus")
    parser.add_argument("--out", default="runs/learning")
    parser.add_argument("--share", type=float, default=1.0, help="of the steps")
    parser.add_argument("--only", help="names, separated by commas")
    parser.add_argument("--toy", action="store_true", help="toy sizes, for a CPU")
    asked = parser.parse_args()
    corpus, valid = Corpus.open(asked.corpus), Corpus.open(asked.corpus, split="valid")
    unigram, bigram = unigram_nats(corpus, valid), bigram_nats(corpus, valid)
    print(f"{describe_hardware()}, {describe_versions()}")
    print(f"held-out text: unigram {unigram:.3f}, Kneser-Ney bigram {bigram:.3f} nats a token", flush=True)
    curves: dict[str, Any] = {
        "unigram": unigram,
        "bigram": bigram,
        "hardware": describe_hardware(),
        "versions": describe_versions(),
    }
    for name, (recipe, settings) in WORK.items():
        if asked.only and name not in asked.only.split(","):
            continue
        if asked.toy:
            recipe, settings = TOYS[name], {"train.steps": 400}
        steps = max(1, int(asked.share * settings["train.steps"]))
        common: dict[str, Any] = {"train.steps": steps, "train.save_every": 0, "train.warmup": 0.06}
        common |= {"train.log_every": 50, "train.eval_every": 250, "train.eval_tokens": 131_072}
        if settings.get("objective.sentence"):
            settings = settings | {"model.pooler": True}
        run = pretraining.pretrain(
            recipe, corpus, Path(asked.out) / name, quiet=True, overrides=common | settings | {"train.steps": steps}
        )
        lines = run.metrics()
        found = [line for line in lines if line["split"] == "valid"]
        first, last = found[0], found[-1]
        curves[name] = lines
        kept = {k: v for k, v in last.items() if k not in ("step", "tokens", "flops", "seconds", "split")}
        spent = f"{last['tokens']:,} tokens, {last['flops']:.2e} FLOPs, {last['seconds']:.0f} s"
        print(f"{name}: {last['step']} steps, {spent}, {last['tokens'] / last['seconds']:,.0f} tokens/s")
        for key, value in kept.items():
            print(f"    {key:24} {first.get(key, float('nan')):8.4f} -> {value:8.4f}", flush=True)
        torch._dynamo.reset()
        Path(asked.out, "curves.json").write_text(json.dumps(curves))


if __name__ == "__main__":
    main()

"""Draws curves: python benchmarks/draw_learning.py docs/results/learning/enwiki-h200.json out.svg"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

LOSSES = {
    "gpt": ("GPT-2 shape, every token", "loss"),
    "bert-order": ("BERT, masked tokens", "mlm"),
    "electra": ("ELECTRA's generator", "generator"),
}


def main(source: str, target: str) -> None:
    curves = json.loads(Path(source).read_text(encoding="utf-8"))
    figure, axes = plt.subplots(figsize=(7, 4))
    for name, (label, key) in LOSSES.items():
        lines = curves.get(name, [])
        axes.plot([line["tokens"] / 1e6 for line in lines], [line[key] for line in lines], label=label)
    for name in ("unigram", "bigram"):
        axes.axhline(curves[name], color="grey", linewidth=0.8, linestyle="--")
        axes.text(axes.get_xlim()[1], curves[name], f" {name}", va="center", fontsize=8)
    axes.set_xlabel("million tokens read")
    axes.set_ylabel("held-out nats a predicted token")
    axes.legend(frameon=False)
    figure.savefig(target, bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Attention alone, forward and backward: natural lengths of a corpus against full ones, on the device at hand.

    python benchmarks/attention_natural.py carry/enwiki
    python benchmarks/attention_natural.py carry/enwiki --precision bf16 --dropout 0.1 --length 512

A pass over every batch, in turn with a full one of as many tokens. Every batch is new: its plan, its masks and the
shapes that the products have not seen yet are part of the time. `layers` passes share a batch, as in a model.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from etude.nn.attention import shared_rows
from etude.nn.attention.dispatch import attend_packed
from etude.nn.attention.grouped import make_plan
from etude.nn.packed import Layout
from etude.objectives.base import rows_of
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.text.corpus.corpus import Corpus
from etude.train import malloc

LAYERS = 4  # of the small BERT of train_speed.py


def layouts(corpus: Corpus, length: int, tokens: int, count: int, first: int = 0) -> list[Layout]:
    """Of the batches that BERT's masked model would have, one segment a sequence."""
    vocab = corpus.tokenizer.vocab
    settings = {"model.vocab": vocab, "model.context": length, "model.pooler": False}
    settings |= {"objective.length": length, "objective.sentence": "none", "model.layers": 1}
    _, objective = build_learner(Recipe.load("bert-mini", settings).resolve(vocab=vocab), corpus.tokenizer)
    rows = objective.rows(corpus, 0)
    each = max(1, tokens // (rows.row_tokens or tokens))
    # rows far apart, as a shuffled loader has them
    numbers = (np.arange(first * each, (first + count) * each) * 7919) % len(rows)
    found = []
    for some in np.split(numbers, count):
        lengths = np.concatenate([np.diff(row.bounds) for row in rows_of(rows, some)])
        found.append(Layout.from_bounds(np.append(0, np.cumsum(lengths)), length))
    return found


def full(tokens: int, length: int) -> Layout:
    """As a batch of train_speed.py has it: some sequences that could be there are empty."""
    count = tokens // length
    return Layout.from_bounds(np.append(np.arange(count + 1), [count] * (count // 2)) * length, length)


def passes(layout: Layout, heads: int, size: int, dtype: torch.dtype, device: torch.device, dropout: float) -> float:
    """Seconds of a pass over one batch."""
    torch.manual_seed(0)
    qkv = torch.randn(layout.total, 3, heads, size, device=device).to(dtype).requires_grad_()
    grad = torch.randn(layout.total, heads, size, device=device).to(dtype)
    layout = layout.to(device)  # with a cache of its own
    if device.type == "cuda":
        torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(LAYERS):
        attend_packed(qkv, layout, causal=False, dropout=dropout).backward(grad)
        qkv.grad = None
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - begun) / LAYERS


def compared(
    found: list[Layout], other: Layout, heads: int, size: int, dtype: torch.dtype, dropout: float
) -> tuple[float, float]:
    """Median milliseconds of a layer, natural and full, in turn."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for layout in (found[-1], other):
        passes(layout, heads, size, dtype, device, dropout)
    taken = np.array(
        [[passes(one, heads, size, dtype, device, dropout) for one in (layout, other)] for layout in found]
    )
    natural, whole = np.median(taken, 0) * 1e3
    return float(natural), float(whole)


def told(found: list[Layout]) -> str:
    """How many calls and how much padding these batches have, in rows that are shared and in buckets."""
    cpu = torch.device("cpu")
    tokens = np.array([layout.total for layout in found])
    shared = [shared_rows.make_plan(layout.host).rows for layout in found]
    apart = [make_plan(layout.host, cpu).buckets for layout in found]
    slots = np.array([sum(rows.tokens.size for rows in one) for one in shared])
    padded = np.array([sum(len(bucket.lengths) * bucket.length for bucket in one) for one in apart])
    return (
        f"{np.mean([len(np.flatnonzero(layout.lengths)) for layout in found]):.1f} sequences a batch; "
        f"shared rows: {np.mean([len(one) for one in shared]):.1f} sizes, {np.mean(slots / tokens) - 1:.1%} padding; "
        f"buckets: {np.mean([len(one) for one in apart]):.1f}, {np.mean(padded / tokens) - 1:.1%} padding"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", help="a prepared one")
    parser.add_argument("--precision", default="float32", choices=["float32", "bf16"])
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--batches", type=int, default=15)
    asked = parser.parse_args()
    malloc.keep_freed_memory()  # as the training loop does
    found = layouts(Corpus.open(asked.corpus), asked.length, asked.tokens, asked.batches)
    print(told(found))
    dtype = torch.bfloat16 if asked.precision == "bf16" else torch.float32
    other = full(asked.tokens, asked.length)
    natural, whole = compared(found, other, asked.heads, 64, dtype, asked.dropout)
    print(
        f"{asked.precision}, dropout {asked.dropout}: natural {natural:.2f} ms a layer, full {whole:.2f} ms: "
        f"{natural / whole:.3f} times as long"
    )


if __name__ == "__main__":
    main()

"""Word vectors by blocks: gradients of many predictions taken at the same vectors and added up, in torch.

For a GPU, and for the held-out loss. Draws are the hashes of the sequential loops, bit for bit. In a block a
frequent word gets hundreds of gradients taken at one place, whose sum overshoots where one after the other would
settle; so a row that is met more than `calm` times in a block moves by the mean of its gradients times `calm`.
Blocks run over the rows of a batch, so the size of a micro-batch shows in the result by a little.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from etude.chance import random_bits
from etude.models.static import Static
from etude.objectives.word_vectors.kernels.tables import LIMIT
from etude.objectives.word_vectors.windows import CorpusTables, WindowBatch

LOWER = 0xFFFFFFFF  # half of the bits of a hash


@dataclass
class Pairs:
    """The pairs of some centres of a batch."""

    centres: Tensor  # (P,) places of the centres in the batch
    contexts: Tensor  # (P,) places of the words around them
    slots: Tensor  # (P,) number of the context in its centre's window, from 0, the centre itself counted


def blocks(batch: WindowBatch, size: int) -> Iterator[tuple[int, int, int]]:
    """(start, stop, pairs) of at most `size` centres; pairs are counted on the host, where nobody waits for a GPU."""
    for number in range(len(batch.pairs) - 1):
        start = number * size
        yield start, min(start + size, len(batch.words)), int(batch.pairs[number + 1] - batch.pairs[number])


def make_pairs(batch: WindowBatch, start: int, stop: int, total: int) -> Pairs:
    low, high = batch.low[start:stop].long(), batch.high[start:stop].long()
    around = high - low - 1
    owner = torch.repeat_interleave(torch.arange(stop - start, device=low.device), around, output_size=total)
    before = torch.cumsum(around, 0) - around
    slots = torch.arange(total, device=low.device) - before[owner]
    contexts = low[owner] + slots
    skip = (contexts >= owner + start).long()  # a centre is not its own context
    return Pairs(owner + start, contexts + skip, slots + skip)


@dataclass
class Targets:
    """What is scored for each prediction."""

    rows: Tensor  # (P, T) of the output table
    labels: Tensor  # (P, T) float, 1 or 0
    counted: Tensor  # (P, T) float, 0 where there is nothing


def make_targets(words: Tensor, keys: Tensor, slots: Tensor, negatives: int, text: CorpusTables) -> Targets:
    """`words` (P,) are to be predicted; `keys` and `slots` (P,) say which draws are their noise."""
    tables = text.on(words.device)
    if len(text.paths.bounds):
        first, sizes = tables["bounds"][words], tables["bounds"][words + 1] - tables["bounds"][words]
        step = torch.arange(text.longest, device=words.device)
        inside = step < sizes[:, None]
        place = torch.where(inside, first[:, None] + step, 0)
        return Targets(tables["nodes"][place], tables["labels"][place], inside.float())
    index = slots[:, None] * negatives + torch.arange(negatives, device=words.device)
    bits = random_bits(keys[:, None], index)  # (P, K)
    slot = (((bits >> 32) & LOWER) * len(tables["accept"])) >> 32
    noise = torch.where((bits & LOWER) < tables["accept"][slot], slot, tables["alias"][slot])
    rows = torch.cat([words[:, None], noise], dim=1)
    labels = torch.zeros(rows.shape, device=words.device)
    labels[:, 0] = 1.0
    counted = torch.cat([torch.ones_like(words[:, None]), noise != words[:, None]], dim=1).float()
    return Targets(rows, labels, counted)


def losses(scores: Tensor, targets: Targets) -> Tensor:
    """The sum of -log sigmoid of what is right, in float64."""
    signs = 2 * targets.labels - 1
    return (F.softplus(-scores * signs) * targets.counted).sum(dtype=torch.float64)


def update_table(
    hidden: Tensor, owner: Tensor | None, targets: Targets, table: Tensor, rate: float, calm: float, hard: bool
) -> tuple[Tensor, Tensor]:
    """Moves the rows of a table towards their labels; returns what each hidden vector should move by, and the loss.

    hidden (B, D); `owner` (P,) says which of them makes each prediction, None: each its own.
    """
    predicting = hidden if owner is None else hidden[owner]  # (P, D)
    outputs = table[targets.rows]  # (P, T, D)
    scores = torch.bmm(outputs, predicting[:, :, None])[:, :, 0]  # (P, T)
    grads = (targets.labels - torch.sigmoid(scores)) * targets.counted * rate
    if hard:
        grads = grads * (scores.abs() < LIMIT)  # what is certain is left alone [code]
    change = torch.bmm(grads[:, None], outputs)[:, 0]  # (P, D)
    if owner is not None:
        change = torch.zeros_like(hidden).index_add_(0, owner, change)
    rows = targets.rows.flatten()
    steps = (grads[:, :, None] * predicting[:, None]).flatten(0, 1)  # (P * T, D)
    add_rows(table, rows, steps, calm, targets.counted.flatten())
    return change, losses(scores, targets)


def add_rows(table: Tensor, rows: Tensor, steps: Tensor, calm: float, counted: Tensor | None = None) -> None:
    """table[rows] += steps, where a row that is met more than `calm` times moves by that many mean steps."""
    times = torch.zeros(len(table), device=table.device)
    times.index_add_(0, rows, torch.ones_like(rows, dtype=times.dtype) if counted is None else counted)
    share = (calm / times.clamp(min=calm))[rows]
    table.index_add_(0, rows, steps * share[:, None])


@dataclass
class Inputs:
    """Rows of the input table whose means are the hidden vectors of a block."""

    rows: Tensor  # (M,)
    owner: Tensor  # (M,) the hidden vector that each is a part of
    starts: Tensor  # (words,) where the rows of each word begin

    @classmethod
    def from_words(cls, model: Static, words: Tensor, owner: Tensor | None = None) -> Inputs:
        """The rows of words; `owner` (words,) says whose each is, None: each its own."""
        if not model.settings.buckets:
            places = torch.arange(len(words), device=words.device)
            return cls(words, places if owner is None else owner, places)
        rows, starts, word = model.input_rows(words)
        return cls(rows, word if owner is None else owner[word], starts)

    def means(self, model: Static) -> Tensor:
        """(words, D): of the rows of each word."""
        if not model.settings.buckets:
            return model.input(self.rows)
        return F.embedding_bag(self.rows, model.input.weight, self.starts, mode="mean")

    def add(self, model: Static, changes: Tensor, calm: float) -> None:
        """Adds the change of a hidden vector to each of its rows, undivided."""
        add_rows(model.input.weight, self.rows, changes[self.owner], calm)

"""The order in which recurrent layers read the tokens of packed sequences.

All first tokens, then all second ones; sequences are sorted, longest first, so that those with a token left are always
the first rows of a state. Where all lengths are equal, as in the lanes of a text (objectives/rows/lanes.py), that is a
transposition: nothing is computed on the host, sent to a device or looked up there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from etude.nn.packed import Layout, send_array


@dataclass
class Schedule:
    """The reading order of tokens by their indices.

    The names are those of `torch.nn.utils.rnn.PackedSequence`.
    """

    sorted_sequences: Tensor  # (S,) longest first
    unsorted_sequences: Tensor  # (S,) its inverse
    sorted_tokens: Tensor  # (N,) the token at each position of the schedule
    unsorted_tokens: Tensor  # (N,) its inverse
    previous: Tensor  # (N,) position of the same sequence's previous token in [initial states (S,) ; schedule (N,)]
    last: Tensor  # (S,) position of each sequence's last token in the same, in the order of `sorted_sequences`
    batch_sizes: list[int]  # at each step, how many sequences still have a token

    @classmethod
    def from_layout(cls, layout: Layout, reverse: bool) -> Schedule:
        """Return the schedule of a layout, computed once for each batch and direction."""
        key = ("lstm", reverse)
        if key not in layout.cache:
            layout.cache[key] = cls._build(layout, reverse)
        cached: Schedule = layout.cache[key]
        return cached

    @classmethod
    def _build(cls, layout: Layout, reverse: bool) -> Schedule:
        lengths = layout.lengths.astype(np.int64)
        count = len(lengths)
        sequences = np.argsort(-lengths, kind="stable")
        sequence_of_token = np.repeat(np.arange(count), lengths)  # (N,) sequence of each token
        position = np.arange(layout.total) - layout.host[:-1].astype(np.int64)[sequence_of_token]
        step = lengths[sequence_of_token] - 1 - position if reverse else position
        inverse = np.argsort(sequences)
        token_order = np.lexsort((inverse[sequence_of_token], step))
        batch_sizes = np.bincount(step, minlength=1) if layout.total else np.zeros(0, np.int64)
        # entry k of step t is at starts[t] + k, its predecessor at starts[t - 1] + k; in step 0 an initial state
        starts = count + np.concatenate([[-count], np.cumsum(batch_sizes)]).astype(np.int64)
        starts[1:] -= batch_sizes  # now starts[t + 1] is the position of step t, starts[0] that of the initial states
        offset = np.arange(layout.total) + count - np.repeat(starts[1:], batch_sizes)
        previous = np.repeat(starts[:-1], batch_sizes) + offset
        sorted_lengths = lengths[sequences]
        last = starts[sorted_lengths] + np.arange(count)

        def to_device(array: np.ndarray) -> Tensor:
            return send_array(array, layout.bounds.device)

        return cls(
            sorted_sequences=to_device(sequences),
            unsorted_sequences=to_device(inverse),
            sorted_tokens=to_device(token_order),
            unsorted_tokens=to_device(np.argsort(token_order)),
            previous=to_device(previous),
            last=to_device(last),
            batch_sizes=batch_sizes.tolist(),
        )

    def sort_tokens(self, x: Tensor) -> Tensor:
        """(N, ...) of the tokens -> the same in the order of the schedule."""
        return permute(x, self.sorted_tokens, self.unsorted_tokens)

    def unsort_tokens(self, x: Tensor) -> Tensor:
        """(N, ...) in the order of the schedule -> of the tokens."""
        return permute(x, self.unsorted_tokens, self.sorted_tokens)

    def sort_sequences(self, x: Tensor) -> Tensor:
        """(S, ...) of the sequences -> the same, longest first."""
        return permute(x, self.sorted_sequences, self.unsorted_sequences)

    def unsort_sequences(self, x: Tensor) -> Tensor:
        """(S, ...), those of the longest first -> of the sequences."""
        return permute(x, self.unsorted_sequences, self.sorted_sequences)

    def select_last(self, initial: Tensor, states: Tensor) -> Tensor:
        """(S, ...) before and (N, ...) after each token, as sorted -> (S, ...) the last of each sequence."""
        return torch.cat([initial, states])[self.last]


class EqualSchedule:
    """The same order where all sequences have one length: no indices are needed."""

    previous = None  # that of position i is position i of [initial states ; schedule]

    def __init__(self, sequences: int, length: int, reverse: bool) -> None:
        self.sequences, self.length, self.reverse = sequences, length, reverse
        self.batch_sizes = [sequences] * (length if sequences else 0)

    def sort_tokens(self, x: Tensor) -> Tensor:
        rows = x.unflatten(0, (self.sequences, self.length))
        return (rows.flip(1) if self.reverse else rows).transpose(0, 1).flatten(0, 1)

    def unsort_tokens(self, x: Tensor) -> Tensor:
        rows = x.unflatten(0, (self.length, self.sequences)).transpose(0, 1)
        return (rows.flip(1) if self.reverse else rows).flatten(0, 1)

    def sort_sequences(self, x: Tensor) -> Tensor:
        return x.contiguous()

    def unsort_sequences(self, x: Tensor) -> Tensor:
        return x

    def select_last(self, initial: Tensor, states: Tensor) -> Tensor:
        return states[len(states) - self.sequences :]


def find_schedule(layout: Layout, reverse: bool) -> Schedule | EqualSchedule:
    """Return the reading order of a layout."""
    if layout.equal:
        return EqualSchedule(len(layout.bounds) - 1, layout.longest, reverse)
    return Schedule.from_layout(layout, reverse)


def select_previous(initial: Tensor, states: Tensor, previous: Tensor | None) -> Tensor:
    """(S, ...) before and (N, ...) after each token, as sorted -> (N, ...) before each token."""
    if previous is None:
        return torch.cat([initial, states[: len(states) - len(initial)]])
    return torch.cat([initial, states])[previous]


def permute(x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
    """Return x[order], where every row occurs once: its gradient is looked up as well.

    An index that may repeat rows adds their gradients up, and a GPU sorts it for that.
    """
    permuted: Tensor = _Permutation.apply(x, order, inverse)
    return permuted


class _Permutation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(order, inverse)
        return x[order]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        order, inverse = ctx.saved_tensors
        return permute(grad, inverse, order), None, None

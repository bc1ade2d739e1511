"""Static shapes for labelled examples: batches padded to a few sizes, so that steps can be recorded on a GPU.

Examples have lengths of their own, and a batch as many tokens as they have together. Sequences of padding fill it up to
the next of a few sizes, eight from each power of two to the next: a sixteenth of the tokens on average. No sequence
sees another, and no loss reads padding, so losses and gradients are those of the batch without it.
"""

from __future__ import annotations

from etude.objectives.base import Batch

SIZES = 8  # of a batch from each power of two to the next
SMALLEST = 32  # tokens between two sizes, and the smallest bound on lengths


def pad_batch(batch: Batch) -> Batch:
    """Return a batch whose numbers of tokens and sequences, and longest length, are those of few others."""
    tokens, grain = batch.size, grain_of(batch.size)
    longest = min(batch.layout.longest, max(SMALLEST, next_power(int(batch.lengths.max()))))
    # each holds at least a token, for an empty sequence has no state to read, and at most `longest`
    sequences = -(-grain // max(1, longest - 1))
    total = -(-(tokens + sequences) // grain) * grain
    base, extra = divmod(total - tokens, sequences)
    return batch.pad([base + (number < extra) for number in range(sequences)], longest)


def grain_of(tokens: int) -> int:
    """Return the distance from one size to the next, around a number of tokens."""
    return max(SMALLEST, next_power(tokens) // 2 // SIZES)


def next_power(value: int) -> int:
    """Return the next power of two that is not smaller."""
    return 1 << max(0, value - 1).bit_length()

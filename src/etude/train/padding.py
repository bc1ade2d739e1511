"""Static shapes for labelled examples: batches padded to a few sizes, so that steps can be recorded on a GPU.

Examples have lengths of their own, and a batch as many tokens as they have together. Sequences of padding fill it up to
the next of a few sizes, eight from each power of two to the next: a sixteenth of the tokens on average. No sequence
sees another, and no loss reads padding, so losses and gradients are those of the batch without it.
"""

from __future__ import annotations

from etude.objectives.base import Batch
from etude.objectives.rows.sizes import SMALLEST, grain_of, next_power


def pad_batch(batch: Batch) -> Batch:
    """Return a batch whose numbers of tokens and sequences, and longest length, are those of few others."""
    tokens, grain = batch.layout.total, grain_of(batch.layout.total)
    longest = min(batch.layout.longest, max(SMALLEST, next_power(int(batch.lengths.max()))))
    # each holds at least a token, for an empty sequence has no state to read, and at most `longest`
    sequences = -(-grain // max(1, longest - 1))
    total = -(-(tokens + sequences) // grain) * grain
    base, extra = divmod(total - tokens, sequences)
    return batch.pad([base + (number < extra) for number in range(sequences)], longest)

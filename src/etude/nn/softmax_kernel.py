"""Loss and gradient of a softmax over a vocabulary, in place of the logits: one kernel, for a CUDA device.

A program has one row. It reads its logits once for their log-sum-exp, in running form (Milakov, Gimelshein 2018), and
once more, by then from the cache, to write softmax - one-hot over them. A compiler's form of the same formula takes
half as long again (H200, 4,736 x 50,304 in bf16: 0.65 against 0.40 ms) and needs twice the memory.

Triton comes with torch where that is built for CUDA; nothing else imports this file.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 2048, 8  # the fastest of those tried on an H200


@triton.jit
def _kernel(rows, targets, losses, columns, vocab, block: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    rows += row * columns
    target = tl.load(targets + row)
    used = target >= 0
    lane = tl.arange(0, block)
    highest = tl.full([block], -float("inf"), tl.float32)
    total = tl.zeros([block], tl.float32)
    for start in range(0, columns, block):
        column = start + lane
        logits = tl.load(rows + column, mask=column < vocab, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(highest, logits)
        # a lane that has seen nothing yet holds minus infinity: the difference of two of them is no number
        total = tl.where(higher == -float("inf"), 0.0, total * tl.exp(highest - higher) + tl.exp(logits - higher))
        highest = higher
    peak = tl.max(highest, 0)
    normaliser = peak + tl.log(tl.sum(total * tl.exp(highest - peak), 0))
    truth = tl.load(rows + target, mask=used, other=0.0).to(tl.float32)
    tl.store(losses + row, tl.where(used, normaliser - truth, 0.0))
    tl.debug_barrier()  # the true logit is read before its place is written
    for start in range(0, columns, block):
        column = start + lane
        logits = tl.load(rows + column, mask=column < vocab, other=-float("inf")).to(tl.float32)
        slope = tl.exp(logits - normaliser) - tl.where(column == target, 1.0, 0.0)
        tl.store(rows + column, tl.where(used, slope, 0.0), mask=column < columns)


def surprise_and_slope_(logits: Tensor, targets: Tensor, vocab: int) -> Tensor:
    """(C, V') logits become the derivative of the loss by them; returns the loss of every row (C,).

    Targets below 0 are unused: no loss, no slope. Columns from `vocab` on have neither.
    """
    losses = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    if len(logits):
        _kernel[(len(logits),)](
            logits,
            targets.to(torch.int32),
            losses,
            logits.shape[1],
            vocab,
            BLOCK,
            num_warps=WARPS,
        )
    return losses

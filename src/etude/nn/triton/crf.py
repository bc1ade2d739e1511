"""The recursions of a linear-chain CRF over packed sequences: three kernels for a CUDA device.

    forward    a program has one sequence, with the K x K transitions in registers, and goes from token to token: the
               normalised forward variables and the logs of their normalizers (nn/crf.py has the formulas)
    backward   the same from the last token to the first; gradients of the transitions are summed in registers, and
               over sequences by whoever asked
    decode     Viterbi's best path: the best scores forwards, with pointers to the tag before, then back along them

Step by step these are ten small kernels a token, for a sequence of sixty tokens thousands in a training step, each of
which takes longer to launch than to run. Sums have one order, so results repeat to the bit.

Tags are padded to a power of two by scores of LOW, which is finite: differences of infinities are no numbers. Only
nn/crf.py imports this file, where Triton is installed.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

LOW = tl.constexpr(-1e30)


@triton.jit
def _log_sum_exp(x):  # type: ignore[no-untyped-def]
    """Of a vector."""
    highest = tl.max(x, 0)
    return highest + tl.log(tl.sum(tl.exp(x - highest), 0))


@triton.jit
def _log_sum_over_previous(x):  # type: ignore[no-untyped-def]
    """Of a matrix (from, to), over from."""
    highest = tl.max(x, 0)
    return highest + tl.log(tl.sum(tl.exp(x - highest[None, :]), 0))


@triton.jit
def _load_transitions(transitions, row_stride, column_stride, tag, inside):  # type: ignore[no-untyped-def]
    """(from, to), LOW where either is no tag."""
    places = tag[:, None] * row_stride + tag[None, :] * column_stride
    return tl.load(transitions + places, mask=inside[:, None] & inside[None, :], other=LOW)


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    emissions, start, transitions, bounds, variables, norms, tags, row_stride, column_stride,
    reverse: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0)
    first, end = tl.load(bounds + sequence).to(tl.int64), tl.load(bounds + sequence + 1).to(tl.int64)
    tag = tl.arange(0, width)
    inside = tag < tags
    weights = _load_transitions(transitions, row_stride, column_stride, tag, inside)
    incoming = tl.load(start + tag, mask=inside, other=LOW)
    place, direction = first, 1
    if reverse:
        place, direction = end - 1, -1
    for _ in range((end - first).to(tl.int32)):
        scores = tl.load(emissions + place * tags + tag, mask=inside, other=LOW) + incoming
        norm = _log_sum_exp(scores)
        scores -= norm
        tl.store(variables + place * tags + tag, scores, mask=inside)
        tl.store(norms + place, norm)
        incoming = _log_sum_over_previous(scores[:, None] + weights)
        place += direction


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    emissions, transitions, bounds, variables, norms, grad_variables, grad_norms, grad_emissions, grad_start,
    grad_transitions, tags, row_stride, column_stride, reverse: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """`grad_start` (S, K) and `grad_transitions` (S, K, K), [from, to], of each sequence."""
    sequence = tl.program_id(0)
    first, end = tl.load(bounds + sequence).to(tl.int64), tl.load(bounds + sequence + 1).to(tl.int64)
    tag = tl.arange(0, width)
    inside = tag < tags
    weights = _load_transitions(transitions, row_stride, column_stride, tag, inside)
    place, direction = end - 1, -1  # of the token before in the recursion
    if reverse:
        place, direction = first, 1
    count = (end - first).to(tl.int32)
    carried = tl.zeros((width,), tl.float32)
    grad_scores = tl.zeros((width,), tl.float32)
    total = tl.zeros((width, width), tl.float32)
    for step in range(count):
        own = place * tags + tag
        scores = tl.load(variables + own, mask=inside, other=LOW)
        norm = tl.load(norms + place)
        grad = tl.load(grad_variables + own, mask=inside, other=0.0) + carried
        grad_scores = grad + tl.exp(scores) * (tl.load(grad_norms + place) - tl.sum(grad, 0))
        tl.store(grad_emissions + own, grad_scores, mask=inside)
        incoming = scores + norm - tl.load(emissions + own, mask=inside, other=LOW)
        place += direction
        has_before = step + 1 < count
        before = tl.load(variables + place * tags + tag, mask=inside & has_before, other=LOW)
        # the share of each way into a tag; nothing comes into the first token
        flow = tl.exp(before[:, None] + weights - incoming[None, :]) * grad_scores[None, :]
        total += flow
        carried = tl.sum(flow, 1)
    tl.store(grad_start + sequence * tags + tag, grad_scores, mask=inside)
    places = sequence * tags * tags + tag[:, None] * tags + tag[None, :]
    tl.store(grad_transitions + places, total, mask=inside[:, None] & inside[None, :])


@triton.jit
def _decode(  # type: ignore[no-untyped-def]
    emissions, start, transitions, end_scores, bounds, pointers, path, tags, row_stride, column_stride,
    width: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0)
    first, end = tl.load(bounds + sequence).to(tl.int64), tl.load(bounds + sequence + 1).to(tl.int64)
    tag = tl.arange(0, width)
    inside = tag < tags
    weights = _load_transitions(transitions, row_stride, column_stride, tag, inside)
    incoming = tl.load(start + tag, mask=inside, other=LOW)
    best = incoming
    count = (end - first).to(tl.int32)
    for step in range(count):
        place = first + step
        best = tl.load(emissions + place * tags + tag, mask=inside, other=LOW) + incoming
        best -= tl.max(best, 0)  # only differences matter, and small numbers keep them
        candidates = best[:, None] + weights
        incoming = tl.max(candidates, 0)
        tl.store(pointers + place * tags + tag, tl.argmax(candidates, 0).to(tl.int32), mask=inside)  # of the next
    tl.debug_barrier()  # pointers are written by other threads than those that read them
    current = tl.argmax(best + tl.load(end_scores + tag, mask=inside, other=LOW), 0).to(tl.int32)
    for step in range(count):
        place = end - 1 - step
        tl.store(path + place, current.to(tl.int64))
        before = tl.maximum(place - 1, first)
        current = tl.load(pointers + before * tags + current)


class Scan(torch.autograd.Function):
    """emissions (N, K), start (K,), transitions (K, K), bounds (S + 1,) -> variables (N, K), norms (N,)."""

    @staticmethod
    def forward(
        ctx: Any, emissions: Tensor, start: Tensor, transitions: Tensor, bounds: Tensor, reverse: bool
    ) -> tuple[Tensor, Tensor]:
        emissions, tags = emissions.contiguous(), emissions.shape[1]
        variables, norms = torch.empty_like(emissions), emissions.new_empty(len(emissions))
        with torch.cuda.device_of(emissions):
            _forward[(len(bounds) - 1,)](
                emissions, start.contiguous(), transitions, bounds, variables, norms, tags, *transitions.stride(),
                reverse, _width(tags), num_warps=_warps(tags),
            )  # fmt: skip
        ctx.save_for_backward(emissions, transitions, bounds, variables, norms)
        ctx.reverse = reverse
        return variables, norms

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_variables: Tensor, grad_norms: Tensor) -> tuple[Tensor | None, ...]:
        emissions, transitions, bounds, variables, norms = ctx.saved_tensors
        sequences, tags = len(bounds) - 1, emissions.shape[1]
        grad_emissions = torch.empty_like(emissions)
        grad_start = emissions.new_empty(sequences, tags)
        grad_transitions = emissions.new_empty(sequences, tags, tags)
        with torch.cuda.device_of(emissions):
            _backward[(sequences,)](
                emissions, transitions, bounds, variables, norms, grad_variables.contiguous(), grad_norms.contiguous(),
                grad_emissions, grad_start, grad_transitions, tags, *transitions.stride(), ctx.reverse, _width(tags),
                num_warps=_warps(tags),
            )  # fmt: skip
        return grad_emissions, grad_start.sum(0), grad_transitions.sum(0), None, None


def decode(emissions: Tensor, start: Tensor, transitions: Tensor, end: Tensor, bounds: Tensor) -> Tensor:
    """(N, K), (K,), (K, K), (K,), (S + 1,) -> (N,) int64, the best path of each sequence."""
    tags = emissions.shape[1]
    pointers = torch.empty(emissions.shape, dtype=torch.int32, device=emissions.device)
    path = torch.empty(len(emissions), dtype=torch.int64, device=emissions.device)
    with torch.cuda.device_of(emissions):
        _decode[(len(bounds) - 1,)](
            emissions.contiguous(), start.contiguous(), transitions, end.contiguous(), bounds, pointers, path, tags,
            *transitions.stride(), _width(tags), num_warps=_warps(tags),
        )  # fmt: skip
    return path


def _width(tags: int) -> int:
    return max(2, triton.next_power_of_2(tags))


def _warps(tags: int) -> int:
    """One warp up to 16 tags: threads that share little wait for one another at every token."""
    return 1 if tags <= 16 else 4

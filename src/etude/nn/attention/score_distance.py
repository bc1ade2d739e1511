"""The distance of a student's attention scores from its teacher's (TinyBERT: Jiao et al.

2020, equation 7).

Scores are q k^T / sqrt(d) before the softmax, and both models have the same number of heads. The scores of a sequence
and head are a square matrix, so they exist for a few sequences at a time, and the gradient is computed while they
exist: those of BERT-base, at 32,768 tokens in sequences of 128, would be 200 MB a layer, on each side. Sums are always
in float32.

Sequences of different lengths are padded with zero queries and keys, whose scores are zero on both sides.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from etude.nn.attention.grouped import Plan, get_plan, rearrange
from etude.nn.packed import Layout
from etude.nn.precision import upcast

_SCORES, _SCORES_GPU = 2**22, 2**26  # scores of one side at a time: 16 MiB in float32, on a GPU 256


def score_distance(student: Tensor, teacher: Tensor, layout: Layout) -> Tensor:
    """Return the sum over heads and token pairs of a sequence of squared score differences, a float32.

    `student` and `teacher` are queries and keys, (N, 2, H, d) and (N, 2, H, e). The teacher gets no gradient.
    """
    plan = get_plan(layout, student.device)
    total = upcast(student[:0]).sum()  # zero, and part of the graph
    for student_batch, teacher_batch in zip(
        _dense_batches(student, plan), _dense_batches(teacher.detach(), plan), strict=True
    ):
        total = total + _ScoreDistance.apply(student_batch, teacher_batch)
    return total


def _dense_batches(parts: Tensor, plan: Plan) -> list[Tensor]:
    """Arrange queries and keys in dense batches of one length, (2, S, H, L, d) each."""
    if not plan.buckets:
        return []
    padded = rearrange(parts, plan)
    pieces = padded.split([len(bucket.lengths) * bucket.length for bucket in plan.buckets])
    return [
        piece.view(-1, bucket.length, *parts.shape[1:]).permute(2, 0, 3, 1, 4)
        for piece, bucket in zip(pieces, plan.buckets, strict=True)
    ]


class _ScoreDistance(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, student: Tensor, teacher: Tensor) -> Tensor:
        flat_student, flat_teacher = (upcast(tensor).flatten(1, 2) for tensor in (student, teacher))  # (2, S*H, L, d)
        scale, length = flat_student.shape[-1] ** -0.5, flat_student.shape[2]
        largest = _SCORES if flat_student.device.type == "cpu" else _SCORES_GPU
        step = max(1, largest // length**2)
        grad_student = torch.empty_like(flat_student)
        total = torch.zeros((), dtype=flat_student.dtype, device=flat_student.device)
        with torch.autocast(flat_student.device.type, enabled=False):
            for start in range(0, flat_student.shape[1], step):
                part = slice(start, start + step)
                query, key = flat_student[:, part]
                teacher_query, teacher_key = flat_teacher[:, part]
                difference = (query @ key.transpose(1, 2)).mul_(scale)  # (B, L, L)
                difference = difference.sub_(
                    (teacher_query @ teacher_key.transpose(1, 2)).mul_(flat_teacher.shape[-1] ** -0.5)
                )
                total += difference.square().sum()
                torch.bmm(difference, key, out=grad_student[0, part])
                torch.bmm(difference.transpose(1, 2), query, out=grad_student[1, part])
        ctx.grad_student, ctx.shape, ctx.dtype = grad_student.mul_(2 * scale), student.shape, student.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return (ctx.grad_student * grad).to(ctx.dtype).view(ctx.shape), None

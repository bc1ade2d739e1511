"""The KL divergence of a student's softmax from a teacher's (Hinton et al. 2015, section 2).

The logits of both exist for one chunk of tokens at a time, and the gradient is computed while they exist: all logits
of BERT, at 32,768 tokens, would be 8 GB in float32, on each side.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from etude.nn.losses import choose_chunk_size
from etude.nn.precision import matmul_dtype, upcast


class OutputLayer(NamedTuple):
    """The operands of an output layer: logits = hidden @ table.T + bias."""

    hidden: Tensor  # (N, E)
    table: Tensor  # (V, E)
    bias: Tensor  # (V,)

    def logits(self, part: slice, dtype: torch.dtype) -> Tensor:
        """Compute the logits of some tokens, with the product in `dtype`."""
        return upcast(self.hidden[part].to(dtype) @ self.table.to(dtype).t()) + self.bias


def soft_divergence(
    student: OutputLayer, teacher: OutputLayer, temperature: float, chunk: int | None = None,
    counted: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return the sum over tokens of KL(teacher || student) at a temperature, times its square; a float32.

    `counted` (N,) is False for tokens that are left out. The square keeps the scale of the gradient when the
    temperature changes (Hinton et al., section 2). The teacher gets no gradient.
    """
    chunk = chunk or max(
        1, choose_chunk_size(student.table.shape[0], student.hidden.device.type) // 2
    )  # two sets of logits
    return _SoftDivergence.apply(*student, *teacher, temperature, chunk, matmul_dtype(student.hidden), counted)


class _SoftDivergence(torch.autograd.Function):
    """`soft_divergence`, with the gradients computed in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        table: Tensor,
        bias: Tensor,
        teacher_hidden: Tensor,
        teacher_table: Tensor,
        teacher_bias: Tensor,
        temperature: float,
        chunk: int,
        dtype: torch.dtype,
        counted: Tensor | None,
    ) -> Tensor:
        student, teacher = OutputLayer(hidden, table, bias), OutputLayer(teacher_hidden, teacher_table, teacher_bias)
        total = torch.zeros((), dtype=upcast(hidden[:0]).dtype, device=hidden.device)
        gradients = OutputLayer(*(torch.zeros_like(tensor, dtype=upcast(tensor[:0]).dtype) for tensor in student))
        for start in range(0, len(hidden), chunk):
            part = slice(start, start + chunk)
            student_log_probs = (student.logits(part, dtype) / temperature).log_softmax(-1)  # (C, V)
            teacher_log_probs = (teacher.logits(part, dtype) / temperature).log_softmax(-1)
            teacher_probs = teacher_log_probs.exp()
            if counted is not None:  # a token with the teacher's own answer has no divergence and no gradient
                student_log_probs = torch.where(counted[part, None], student_log_probs, teacher_log_probs)
            total += (teacher_probs * (teacher_log_probs - student_log_probs)).sum() * temperature**2
            grad_logits = (student_log_probs.exp() - teacher_probs).mul_(temperature)  # by the student's logits
            gradients.bias.add_(grad_logits.sum(0))
            grad_logits = grad_logits.to(dtype)
            gradients.hidden[part] = grad_logits @ table.to(dtype)
            gradients.table.add_(grad_logits.t() @ hidden[part].to(dtype))
        ctx.gradients, ctx.dtypes = gradients, [tensor.dtype for tensor in student]
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        scaled = [(gradient * grad).to(dtype) for gradient, dtype in zip(ctx.gradients, ctx.dtypes, strict=True)]
        return (*scaled, *([None] * 7))

"""The KL divergence of a student's softmax from a teacher's (Hinton et al. 2015, section 2).

All logits of BERT, at 32,768 tokens, would be 4 GB in float32, on each side. The student's exist for one chunk of
tokens at a time, in the dtype of the product, and become their own gradient: products with states and table are large.
The teacher's exist for one block of such a chunk, and so does whatever else is computed from logits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd.function import once_differentiable

from etude.nn.losses import choose_chunk_size
from etude.nn.precision import matmul_dtype, upcast

# Logits of a block: on a CPU 8 MiB in float32, and rows enough for a product to be as fast as that of a chunk; on a GPU
# 128 MiB, of which there are six.
_BLOCK, _BLOCK_GPU = 2**21, 2**25


class OutputLayer(NamedTuple):
    """The operands of an output layer: logits = hidden @ table.T + bias."""

    hidden: Tensor  # (N, E)
    table: Tensor  # (V, E)
    bias: Tensor  # (V,)


def soft_divergence(
    student: OutputLayer, teacher: OutputLayer, temperature: float, chunk: int | None = None,
    counted: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return the sum over tokens of KL(teacher || student) at a temperature, times its square; a float32.

    `counted` (N,) is False for tokens that are left out. The square keeps the scale of the gradient when the
    temperature changes (Hinton et al., section 2). The teacher gets no gradient.
    """
    vocab, device = student.table.shape[0], student.hidden.device.type
    chunk = chunk or max(1, choose_chunk_size(vocab, device) // 2)  # half of them are left for the blocks
    block = max(1, (_BLOCK if device == "cpu" else _BLOCK_GPU) // vocab)
    compute = _apply_outside_graph if torch.compiler.is_compiling() else _apply
    return compute(*student, *teacher, temperature, chunk, block, matmul_dtype(student.hidden), counted)


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
        block: int,
        dtype: torch.dtype,
        counted: Tensor | None,
    ) -> Tensor:
        student = OutputLayer(hidden, table, bias)
        total = torch.zeros((), dtype=upcast(hidden[:0]).dtype, device=hidden.device)
        gradients = OutputLayer(*(torch.zeros_like(tensor, dtype=upcast(tensor[:0]).dtype) for tensor in student))
        cast, teacher_cast = table.to(dtype), teacher_table.to(dtype)
        for start in range(0, len(hidden), chunk):
            part = slice(start, start + chunk)
            states = hidden[part].to(dtype)
            logits = states @ cast.t()  # (C, V); block by block they become their own gradient
            for first in range(0, len(logits), block):
                piece = slice(first, first + block)
                teacher_logits = teacher_hidden[part][piece].to(dtype) @ teacher_cast.t()
                divergence, grad = _divergence_and_grad(
                    upcast(logits[piece]) + bias,
                    upcast(teacher_logits) + teacher_bias,
                    temperature,
                    None if counted is None else counted[part][piece],
                )
                total += divergence
                gradients.bias.add_(grad.sum(0))
                logits[piece] = grad
            gradients.hidden[part] = logits @ cast
            gradients.table.add_(logits.t() @ states)
        ctx.gradients, ctx.dtypes = gradients, [tensor.dtype for tensor in student]
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        scaled = [(gradient * grad).to(dtype) for gradient, dtype in zip(ctx.gradients, ctx.dtypes, strict=True)]
        return (*scaled, *([None] * 8))


def _divergence_and_grad(
    logits: Tensor, teacher_logits: Tensor, temperature: float, counted: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(R, V) logits of both -> the divergence of a block, and its gradient by the student's logits (R, V)."""
    log_probs = (logits / temperature).log_softmax(-1)
    teacher_log_probs = (teacher_logits / temperature).log_softmax(-1)
    teacher_probs = teacher_log_probs.exp()
    if counted is not None:  # a token with the teacher's own answer has no divergence and no gradient
        log_probs = torch.where(counted[:, None], log_probs, teacher_log_probs)
    divergence = (teacher_probs * (teacher_log_probs - log_probs)).sum() * temperature**2
    return divergence, (log_probs.exp() - teacher_probs).mul_(temperature)


def _apply(*given: Any) -> Tensor:
    total: Tensor = _SoftDivergence.apply(*given)
    return total


# As in losses.py: logits become their gradient in place, which a compiler may not see, so this stays outside a graph.
_apply_outside_graph = _disable_dynamo(_apply)

"""Cross-entropy as sums over a fixed number of slots (design decisions 1 and 3).

Slots that are not used have the target IGNORE and add nothing. `linear_cross_entropy` joins the output layer
and the loss: the logits of a large vocabulary exist only for one chunk of slots at a time, and their gradient
is taken while they are there, so nothing is computed twice and the result is that of the plain form.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from etude.nn.precision import wide

IGNORE = -100  # torch's own default for "no target"
_LOGITS = 2**25  # logits held at once: 128 MiB in float32


def cross_entropy_sum(logits: Tensor, targets: Tensor) -> Tensor:
    """(M, V), (M,) -> the sum over used slots, in float32."""
    return F.cross_entropy(wide(logits), targets, ignore_index=IGNORE, reduction="sum")


def linear_cross_entropy(
    states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, chunk: int | None = None
) -> Tensor:
    """cross_entropy_sum(states @ weight.T + bias, targets), a chunk of slots at a time.

    (M, D), (V, D), (V,), (M,) -> (). Under autocast the products run in its precision, the softmax in float32.
    """
    chunk = chunk or chunk_of(weight.shape[0])
    return _LinearCrossEntropy.apply(states, weight, bias, targets, chunk, _dtype_for(states))


def linear_scores(
    states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, chunk: int | None = None
) -> tuple[Tensor, Tensor]:
    """For evaluation: the loss of every slot (M,), 0 where unused, and the most likely token of every slot (M,)."""
    chunk, dtype = chunk or chunk_of(weight.shape[0]), _dtype_for(states)
    losses, likeliest = [], []
    with torch.no_grad():
        for part, target in zip(states.split(chunk), targets.split(chunk), strict=True):
            logits = _logits(part.to(dtype), weight.to(dtype), bias)
            losses.append(F.cross_entropy(logits, target, ignore_index=IGNORE, reduction="none"))
            likeliest.append(logits.argmax(-1))
    return torch.cat(losses), torch.cat(likeliest)


def chunk_of(vocab: int) -> int:
    """How many slots fit into the memory set aside for logits."""
    return max(1, _LOGITS // vocab)


def _dtype_for(states: Tensor) -> torch.dtype:
    device = states.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype


def _logits(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    logits = wide(states @ weight.t())
    return logits if bias is None else logits.add_(bias.to(logits.dtype))


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        chunk: int,
        dtype: torch.dtype,
    ) -> Tensor:
        wants = ctx.needs_input_grad
        grad_states = torch.empty_like(states) if wants[0] else None
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        grad_weight = torch.zeros_like(weight, dtype=wide) if wants[1] else None
        grad_bias = torch.zeros_like(bias, dtype=wide) if bias is not None and wants[2] else None
        total = torch.zeros((), dtype=wide, device=states.device)
        table = weight.to(dtype)
        with torch.autocast(states.device.type, enabled=False):
            for start in range(0, states.shape[0], chunk):
                piece = slice(start, start + chunk)
                part, target = states[piece].to(dtype), targets[piece]
                logits = _logits(part, table, bias)  # (C, V) float32
                used = (target != IGNORE)[:, None]
                place = target.clamp(min=0)[:, None]
                normaliser = logits.logsumexp(-1, keepdim=True)
                total += (normaliser - logits.gather(1, place)).masked_fill(~used, 0.0).sum()
                if not any(wants[:3]):
                    continue
                # d loss / d logits = softmax - one-hot, in the memory of the logits themselves
                slope = logits.sub_(normaliser).exp_().scatter_add_(1, place, torch.full_like(normaliser, -1.0))
                slope.masked_fill_(~used, 0.0)
                if grad_bias is not None:
                    grad_bias += slope.sum(0)
                slope = slope.to(dtype)
                if grad_states is not None:
                    grad_states[piece] = slope @ table
                if grad_weight is not None:
                    grad_weight += slope.t() @ part
        ctx.gradients = (grad_states, grad_weight, grad_bias)
        ctx.dtypes = (states.dtype, weight.dtype, bias.dtype if bias is not None else None)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        scaled = [
            None if kept is None else (kept * grad).to(dtype)
            for kept, dtype in zip(ctx.gradients, ctx.dtypes, strict=True)
        ]
        return (*scaled, None, None, None)

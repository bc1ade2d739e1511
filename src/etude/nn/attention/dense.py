"""Dense attention of one batch of equal lengths, (S, H, L, d): torch's fused form, or ours.

torch's `scaled_dot_product_attention` is the faster one everywhere but where a CPU trains in one of two ways.

With dropout on the weights it has no fused kernel for a CPU. There its parts lose twice: drawing one random number a
weight takes longer than the products, and the products with a transposed right factor miss the fast kernel (on the
arm cores measured here: 3 against 30 GFLOP/s).

In bf16 its fused backward pass is slower than in float32: a third of a whole step of a small BERT on two cores with
AMX, whose matrix products pass it by.

`mix` is the plain form for both: batched products and a softmax. It draws 16 bits a weight, four to a random
number, and copies the small factors where another order is faster. What a softmax is taken of, the scores, and what
its derivative subtracts from each other are float32 in any case, as in torch's kernels: in bf16 both would lose the
digits that matter (with scores of deviation 4 the result is then off by 9 in a thousand, instead of by 2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from etude.nn.activations import draw_keep_mask
from etude.nn.precision import upcast


def attend_dense(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, dropout: float
) -> Tensor:
    """(S, H, L, d) each -> (S, H, L, d). `mask` is added to the scores; with it, `causal` must be part of it."""
    if not prefers_matmul((query, key, value), dropout):
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=causal and mask is None
        )
    return attend_matmul(torch.stack([query, key, value]), mask, causal, dropout)


def attend_matmul(parts: Tensor, mask: Tensor | None, causal: bool, dropout: float) -> Tensor:
    """The plain form of `attend_dense`, for queries, keys and values in one tensor: (3, S, H, L, d) -> (S, H, L, d)."""
    if causal and mask is None:
        mask = additive_mask(np.tri(parts.shape[3], dtype=bool), upcast(parts[:0]).dtype)
    result: Tensor = _MatmulAttention.apply(parts, mask, dropout)
    return result


def prefers_matmul(parts: Sequence[Tensor], dropout: float) -> bool:
    """Whether the plain form is the faster one for these queries, keys and values."""
    first = parts[0]
    if first.device.type != "cpu":
        return False
    if first.dtype == torch.bfloat16 and not torch.compiler.is_compiling():
        return dropout > 0 or (torch.is_grad_enabled() and any(part.requires_grad for part in parts))
    return dropout > 0 and first.dtype in (torch.float32, torch.float64)


def additive_mask(visible: np.ndarray, dtype: torch.dtype) -> Tensor:
    """What is added to scores so that only those are left that are seen: 0, or a number so low that its weight is
    exactly 0. Finite, so that a query which may see nothing gives an average in place of NaN."""
    low = torch.finfo(dtype).min / 2  # half, because a score is added to it
    return torch.zeros(visible.shape, dtype=dtype).masked_fill_(torch.from_numpy(~visible), low)


class ScoreMask(NamedTuple):
    """What is added to the scores of some sequences."""

    sequences: slice
    added: Tensor  # what (S, H, P, L) can be added to


class SavedAttention(NamedTuple):
    """What the gradient needs beside queries, keys and values."""

    weights: Tensor  # (S*H, P, L), before dropout
    keep_mask: Tensor | None  # the same shape: which were not dropped
    scale: float  # of those


def attention_forward(
    query: Tensor, key: Tensor, value: Tensor, masks: Sequence[ScoreMask], dropout: float, out: Tensor | None = None
) -> tuple[Tensor, SavedAttention]:
    """softmax(q k^T / sqrt(d) + mask), dropped, times v; (S, H, L, d) each, dense. Written to `out`, where given.

    There may be fewer queries than keys and values, (S, H, P, d), and so are then the scores and the result.
    """
    heads, size = query.shape[1], query.shape[3]
    flat_query, flat_key, flat_value = (part.flatten(0, 1) for part in (query, key, value))
    scores = _scaled_matmul_float32(flat_query, flat_key, size**-0.5)
    for mask in masks:
        scores.unflatten(0, (-1, heads))[mask.sequences].add_(mask.added)
    weights = scores.softmax(-1).to(value.dtype)  # (S*H, P, L)
    keep_mask, scale = draw_keep_mask(tuple(weights.shape), dropout) if dropout else (None, 1.0)
    mixed = _scaled_matmul(weights if keep_mask is None else weights * keep_mask, flat_value, scale, out)
    return mixed.view(query.shape), SavedAttention(weights, keep_mask, scale)


def attention_backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    saved: SavedAttention,
    grad: Tensor,
    out: Sequence[Tensor | None] = (None, None, None),
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of queries, keys and values, (S, H, L, d) each, from that of what `mix` gave."""
    shape, key_shape, size = query.shape, key.shape, query.shape[3]
    query, key, value, grad = (part.flatten(0, 1) for part in (query, key, value, grad))
    weights, keep_mask, scale = saved
    dropped_weights = weights if keep_mask is None else weights * keep_mask
    grad_value = _scaled_matmul(dropped_weights.transpose(1, 2), grad, scale, out[2])
    grad_scores = _scaled_matmul_float32(grad, value, scale * size**-0.5)
    if keep_mask is not None:
        grad_scores.mul_(keep_mask)
    # The derivative of a softmax, w * (g - sum(g w)), in one pass
    grad_scores = torch.ops.aten._softmax_backward_data(grad_scores, upcast(weights), -1, grad_scores.dtype).to(
        query.dtype
    )
    grad_query, grad_key = (
        _scaled_matmul(grad_scores, key, 1.0, out[0]),
        _scaled_matmul(grad_scores.transpose(1, 2), query, 1.0, out[1]),
    )
    return grad_query.view(shape), grad_key.view(key_shape), grad_value.view(key_shape)


class _MatmulAttention(torch.autograd.Function):
    """`mix` of queries, keys and values in one tensor, (3, S, H, L, d): one copy brings them into the order of the
    products, whatever order they are in, and their gradients need one."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
        parts = parts.contiguous()
        masks = [] if mask is None else [ScoreMask(slice(None), mask)]
        query, key, value = parts.unbind(0)
        mixed, saved = attention_forward(query, key, value, masks, dropout)
        ctx.save_for_backward(parts, saved.weights, saved.keep_mask)
        ctx.scale = saved.scale
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        parts, weights, keep_mask = ctx.saved_tensors
        query, key, value = parts.unbind(0)
        grad_parts = torch.empty_like(parts)
        attention_backward(
            query, key, value, SavedAttention(weights, keep_mask, ctx.scale), grad.contiguous(), grad_parts.unbind(0)
        )
        return grad_parts, None, None


def _scaled_matmul(left: Tensor, right: Tensor, factor: float, out: Tensor | None = None) -> Tensor:
    """left @ right * factor, (B, N, K), (B, K, M) -> (B, N, M): multiplied within the product, before it is rounded.

    In place, for autocast would round float32 factors and leaves in-place forms alone.
    """
    shape = (left.shape[0], left.shape[1], right.shape[2])
    result = left.new_empty(shape) if out is None else out.view(shape)
    return result.baddbmm_(left, right, beta=0, alpha=factor)


def _scaled_matmul_float32(left: Tensor, right: Tensor, factor: float) -> Tensor:
    """left @ right^T * factor in float32, (B, N, K), (B, M, K) -> (B, N, M).

    Factors that were bf16 lose nothing if a matrix unit takes them for bf16 again, and its sums are float32.
    """
    with _allow_bf16_matmul() if left.dtype == torch.bfloat16 else nullcontext():
        return _scaled_matmul(upcast(left), _transpose(upcast(right)), factor)


@contextmanager
def _allow_bf16_matmul() -> Iterator[None]:
    """oneDNN, where it computes a product of float32, may round its factors to bf16."""
    matmul: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    saved = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = saved


def _transpose(x: Tensor) -> Tensor:
    """Its transpose; as a copy in the order that bmm likes, unless MKL computes it, which likes both."""
    transposed = x.transpose(1, 2)
    return transposed if torch.backends.mkl.is_available() else transposed.contiguous()

"""Dense attention over a batch of equal lengths, (S, H, L, d): torch's fused form, or ours.

torch's `scaled_dot_product_attention` is faster everywhere but in two cases of training on a CPU.

With dropout on the weights it has no fused kernel for a CPU. Its parts lose twice: drawing one random number for each
weight takes longer than the products, and products with a transposed right factor miss the fast kernel (on the Arm
cores measured here: 3 against 30 GFLOP/s).

In bf16 its fused backward pass is slower than in float32: a third of a whole step of a small BERT on two cores with
AMX, because it does not use the matrix unit.

`attention_forward` is the plain form for both: batched products and a softmax. It draws 16 bits for each weight, four
to a random number, and copies the small factors where another memory order is faster. The scores before the softmax,
and the terms that its derivative subtracts from each other, are always float32, as in torch's kernels: in bf16 both
would lose the digits that matter (with scores of deviation 4 the relative error is 0.9 % instead of 0.2 %).
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
    """(S, H, L, d) each -> (S, H, L, d).

    `mask` is added to the scores; where given, it includes `causal`.
    """
    if not prefers_matmul((query, key, value), dropout):
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=causal and mask is None
        )
    return attend_matmul(torch.stack([query, key, value]), mask, causal, dropout)


def attend_matmul(parts: Tensor, mask: Tensor | None, causal: bool, dropout: float) -> Tensor:
    """Attend by plain products, (3, S, H, L, d) -> (S, H, L, d): queries, keys and values in one tensor."""
    if causal and mask is None:
        mask = additive_mask(np.tri(parts.shape[3], dtype=bool), upcast(parts[:0]).dtype)
    result: Tensor = _MatmulAttention.apply(parts, mask, dropout)
    return result


def prefers_matmul(parts: Sequence[Tensor], dropout: float) -> bool:
    """Whether the plain form is faster for these queries, keys and values."""
    first = parts[0]
    if first.device.type != "cpu":
        return False
    if first.dtype == torch.bfloat16 and not torch.compiler.is_compiling():
        return dropout > 0 or (torch.is_grad_enabled() and any(part.requires_grad for part in parts))
    return dropout > 0 and first.dtype in (torch.float32, torch.float64)


def additive_mask(visible: np.ndarray, dtype: torch.dtype) -> Tensor:
    """Return a mask to add to scores: 0 where visible, else a number so low that the weight is exactly 0.

    It is finite, so that a query that sees nothing gives an average instead of NaN.
    """
    low = torch.finfo(dtype).min / 2  # half, because a score is added to it
    return torch.zeros(visible.shape, dtype=dtype).masked_fill_(torch.from_numpy(~visible), low)


class ScoreMask(NamedTuple):
    """A mask that is added to the scores of some sequences."""

    sequences: slice
    added: Tensor  # broadcasts with (S, H, P, L)


class SavedAttention(NamedTuple):
    """The tensors that the backward pass needs besides queries, keys and values."""

    weights: Tensor  # (S*H, P, L), before dropout
    keep_mask: Tensor | None  # (S*H, P, L) True where a weight was not dropped
    scale: float  # of the weights that were not dropped


def attention_forward(
    query: Tensor, key: Tensor, value: Tensor, masks: Sequence[ScoreMask], dropout: float, out: Tensor | None = None
) -> tuple[Tensor, SavedAttention]:
    """Compute dropout(softmax(q k^T / sqrt(d) + mask)) v; (S, H, L, d) each.

    Written to `out`, where given.

    There may be fewer queries, (S, H, P, d), than keys and values; the scores and the result are then smaller too.
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
    """Compute the gradients of queries, keys and values, (S, H, L, d) each, from that of the output."""
    shape, key_shape, size = query.shape, key.shape, query.shape[3]
    query, key, value, grad = (part.flatten(0, 1) for part in (query, key, value, grad))
    weights, keep_mask, scale = saved
    dropped_weights = weights if keep_mask is None else weights * keep_mask
    grad_value = _scaled_matmul(dropped_weights.transpose(1, 2), grad, scale, out[2])
    grad_scores = _scaled_matmul_float32(grad, value, scale * size**-0.5)
    if keep_mask is not None:
        grad_scores.mul_(keep_mask)
    # the derivative of a softmax, w * (g - sum(g w)), in one pass
    grad_scores = torch.ops.aten._softmax_backward_data(grad_scores, upcast(weights), -1, grad_scores.dtype).to(
        query.dtype
    )
    grad_query, grad_key = (
        _scaled_matmul(grad_scores, key, 1.0, out[0]),
        _scaled_matmul(grad_scores.transpose(1, 2), query, 1.0, out[1]),
    )
    return grad_query.view(shape), grad_key.view(key_shape), grad_value.view(key_shape)


class _MatmulAttention(torch.autograd.Function):
    """`attention_forward` of queries, keys and values in one tensor, (3, S, H, L, d).

    One copy brings them into the memory order of the products, whatever order they are in, and one their gradients.
    """

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
    """Compute left @ right * factor, (B, N, K), (B, K, M) -> (B, N, M), scaled before rounding.

    In place, because autocast would round float32 factors and leaves in-place forms alone.
    """
    shape = (left.shape[0], left.shape[1], right.shape[2])
    result = left.new_empty(shape) if out is None else out.view(shape)
    return result.baddbmm_(left, right, beta=0, alpha=factor)


def _scaled_matmul_float32(left: Tensor, right: Tensor, factor: float) -> Tensor:
    """Compute left @ right^T * factor in float32, (B, N, K), (B, M, K) -> (B, N, M).

    Factors that were bf16 lose nothing if a matrix unit rounds them to bf16 again, and its sums are float32.
    """
    with _allow_bf16_matmul() if left.dtype == torch.bfloat16 else nullcontext():
        return _scaled_matmul(upcast(left), _transpose(upcast(right)), factor)


@contextmanager
def _allow_bf16_matmul() -> Iterator[None]:
    """Let oneDNN round the factors of float32 products to bf16."""
    matmul: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    saved = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = saved


def _transpose(x: Tensor) -> Tensor:
    """Transpose; as a copy in the memory order that bmm prefers, unless MKL runs it, which handles both."""
    transposed = x.transpose(1, 2)
    return transposed if torch.backends.mkl.is_available() else transposed.contiguous()

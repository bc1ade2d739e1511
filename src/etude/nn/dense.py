"""Dense attention of one batch of equal lengths, (S, H, L, d): torch's fused form, or ours.

torch's `scaled_dot_product_attention` is the faster one everywhere but where a CPU trains in one of two ways.

With dropout on the weights it has no fused kernel for a CPU. There its parts lose twice: drawing one random number a
weight takes longer than the products, and the products with a transposed right factor miss the fast kernel (on the
arm cores measured here: 3 against 30 GFLOP/s).

In bf16 its fused backward pass is slower than in float32: a third of a whole step of a small BERT on two cores with
AMX, whose matrix products pass it by.

`_Products` is the plain form for both: batched products and a softmax. It draws 16 bits a weight, four to a random
number, and copies the small factors where another order is faster. What a softmax is taken of, the scores, and what
its derivative subtracts from each other are float32 in any case, as in torch's kernels: in bf16 both would lose the
digits that matter (with scores of deviation 4 the result is then off by 9 in a thousand, instead of by 2).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from etude.nn.pointwise import keep_mask
from etude.nn.precision import wide


def attend_dense(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, dropout: float
) -> Tensor:
    """(S, H, L, d) each -> (S, H, L, d). `mask` is added to the scores; with it, `causal` must be part of it."""
    if not _prefers_products(query, key, value, dropout):
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=causal and mask is None
        )
    if causal and mask is None:
        length = query.shape[2]
        low = torch.finfo(query.dtype).min / 2  # finite: a weight of exactly 0, never NaN
        mask = torch.full((length, length), low, dtype=wide(query[:0]).dtype).triu_(1)
    result: Tensor = _Products.apply(query, key, value, mask, dropout)
    return result


def _prefers_products(query: Tensor, key: Tensor, value: Tensor, dropout: float) -> bool:
    if query.device.type != "cpu":
        return False
    if query.dtype == torch.bfloat16 and not torch.compiler.is_compiling():
        learns = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
        return learns or dropout > 0
    return dropout > 0 and query.dtype in (torch.float32, torch.float64)


class _Products(torch.autograd.Function):
    """softmax(q k^T / sqrt(d) + mask), dropped, times v; and its gradient."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
        sequences, heads, length, size = ctx.shape = query.shape
        query, key, value = (part.reshape(sequences * heads, length, size) for part in (query, key, value))
        scores = _product(wide(query), _turned(wide(key)), size**-0.5)
        if mask is not None:
            scores.view(sequences, heads, length, length).add_(mask)
        weights = scores.softmax(-1).to(value.dtype)  # (S*H, L, L)
        kept, ctx.scale = keep_mask(tuple(weights.shape), dropout) if dropout else (None, 1.0)
        ctx.save_for_backward(query, key, value, weights, kept)
        return _product(weights if kept is None else weights * kept, value, ctx.scale).view(ctx.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value, weights, kept = ctx.saved_tensors
        grad = grad.reshape(query.shape)
        dropped = weights if kept is None else weights * kept
        grad_value = _product(dropped.transpose(1, 2), grad, ctx.scale)
        slope = _product(wide(grad), _turned(wide(value)), ctx.scale * query.shape[-1] ** -0.5)
        if kept is not None:
            slope.mul_(kept)
        # The derivative of a softmax, w * (g - sum(g w)), in one pass
        slope = torch.ops.aten._softmax_backward_data(slope, wide(weights), -1, slope.dtype).to(query.dtype)
        grad_query, grad_key = torch.bmm(slope, key), torch.bmm(slope.transpose(1, 2), query)
        return grad_query.view(ctx.shape), grad_key.view(ctx.shape), grad_value.view(ctx.shape), None, None


def _product(left: Tensor, right: Tensor, factor: float) -> Tensor:
    """left @ right * factor, (B, N, K), (B, K, M) -> (B, N, M): multiplied within the product, before it is rounded.

    In place, for autocast would round float32 factors and leaves in-place forms alone.
    """
    result = left.new_empty(left.shape[0], left.shape[1], right.shape[2])
    return result.baddbmm_(left, right, beta=0, alpha=factor)


def _turned(x: Tensor) -> Tensor:
    """Its transpose; as a copy in the order that bmm likes, unless MKL computes it, which likes both."""
    turned = x.transpose(1, 2)
    return turned if torch.backends.mkl.is_available() else turned.contiguous()

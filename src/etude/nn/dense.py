"""Dense attention of one batch of equal lengths, (S, H, L, d): torch's fused form, or ours.

torch's `scaled_dot_product_attention` is the faster one everywhere but in one case, and that one matters: on a
CPU, with dropout on the weights, it has no fused kernel. There its parts lose twice. Drawing one random
number a weight takes longer than the products, and the products with a transposed right factor miss the fast
kernel (on the arm cores measured here: 3 against 30 GFLOP/s). `_Dropped` draws 16 bits a weight, four to a
random number, and copies the small factors into the order that is fast, forward and backward.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from etude.nn.pointwise import keep_mask


def attend_dense(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, dropout: float
) -> Tensor:
    """(S, H, L, d) each -> (S, H, L, d). `mask` is added to the scores; with it, `causal` must be part of it."""
    if dropout > 0 and query.device.type == "cpu" and query.dtype in (torch.float32, torch.float64):
        if causal and mask is None:
            length = query.shape[2]
            low = torch.finfo(query.dtype).min / 2  # finite: a weight of exactly 0, never NaN
            mask = torch.full((length, length), low, dtype=query.dtype).triu_(1)
        result: Tensor = _Dropped.apply(query, key, value, mask, dropout)
        return result
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=causal and mask is None
    )


class _Dropped(torch.autograd.Function):
    """softmax(q k^T / sqrt(d) + mask), dropped, times v; and its gradient."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
        sequences, heads, length, size = query.shape
        flat = (sequences * heads, length, size)
        turned = key.transpose(2, 3).reshape(flat[0], size, length)  # a copy, in the order that bmm likes
        query, key, value = query.reshape(flat), key.reshape(flat), value.reshape(flat)
        scores = torch.bmm(query, turned).mul_(size**-0.5)
        if mask is not None:
            scores.view(sequences, heads, length, length).add_(mask)
        weights = scores.softmax(-1)  # (S*H, L, L)
        kept, scale = keep_mask(tuple(weights.shape), dropout)
        ctx.save_for_backward(query, key, value, weights, kept)
        ctx.scale, ctx.shape = scale, (sequences, heads, length, size)
        return torch.bmm((weights * kept).mul_(scale), value).view(ctx.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value, weights, kept = ctx.saved_tensors
        grad = (grad * ctx.scale).reshape(query.shape)
        grad_value = torch.bmm((weights * kept).transpose(1, 2), grad)
        slope = torch.bmm(grad, value.transpose(1, 2).contiguous()).mul_(kept)
        # The derivative of a softmax: w * (g - sum(g w))
        slope.sub_((slope * weights).sum(-1, keepdim=True)).mul_(weights).mul_(query.shape[-1] ** -0.5)
        grad_query, grad_key = torch.bmm(slope, key), torch.bmm(slope.transpose(1, 2), query)
        return grad_query.view(ctx.shape), grad_key.view(ctx.shape), grad_value.view(ctx.shape), None, None

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
    if not prefers_products((query, key, value), dropout):
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=causal and mask is None
        )
    return attend_products(torch.stack([query, key, value]), mask, causal, dropout)


def attend_products(parts: Tensor, mask: Tensor | None, causal: bool, dropout: float) -> Tensor:
    """The plain form of `attend_dense`, for queries, keys and values in one tensor: (3, S, H, L, d) -> (S, H, L, d)."""
    if causal and mask is None:
        mask = hiding(np.tri(parts.shape[3], dtype=bool), upcast(parts[:0]).dtype)
    result: Tensor = _Products.apply(parts, mask, dropout)
    return result


def prefers_products(parts: Sequence[Tensor], dropout: float) -> bool:
    """Whether the plain form is the faster one for these queries, keys and values."""
    first = parts[0]
    if first.device.type != "cpu":
        return False
    if first.dtype == torch.bfloat16 and not torch.compiler.is_compiling():
        return dropout > 0 or (torch.is_grad_enabled() and any(part.requires_grad for part in parts))
    return dropout > 0 and first.dtype in (torch.float32, torch.float64)


def hiding(seen: np.ndarray, dtype: torch.dtype) -> Tensor:
    """What is added to scores so that only those are left that are seen: 0, or a number so low that its weight is
    exactly 0. Finite, so that a query which may see nothing gives an average in place of NaN."""
    low = torch.finfo(dtype).min / 2  # half, because a score is added to it
    return torch.zeros(seen.shape, dtype=dtype).masked_fill_(torch.from_numpy(~seen), low)


class Mask(NamedTuple):
    """What is added to the scores of some sequences."""

    sequences: slice
    added: Tensor  # what (S, H, P, L) can be added to


class Saved(NamedTuple):
    """What the gradient needs beside queries, keys and values."""

    weights: Tensor  # (S*H, P, L), before dropout
    kept: Tensor | None  # the same shape: which were not dropped
    scale: float  # of those


def mix(
    query: Tensor, key: Tensor, value: Tensor, masks: Sequence[Mask], dropout: float, out: Tensor | None = None
) -> tuple[Tensor, Saved]:
    """softmax(q k^T / sqrt(d) + mask), dropped, times v; (S, H, L, d) each, dense. Written to `out`, where given.

    There may be fewer queries than keys and values, (S, H, P, d), and so are then the scores and the result.
    """
    heads, size = query.shape[1], query.shape[3]
    flat_query, flat_key, flat_value = (part.flatten(0, 1) for part in (query, key, value))
    scores = _wide_product(flat_query, flat_key, size**-0.5)
    for mask in masks:
        scores.unflatten(0, (-1, heads))[mask.sequences].add_(mask.added)
    weights = scores.softmax(-1).to(value.dtype)  # (S*H, P, L)
    kept, scale = draw_keep_mask(tuple(weights.shape), dropout) if dropout else (None, 1.0)
    mixed = _product(weights if kept is None else weights * kept, flat_value, scale, out)
    return mixed.view(query.shape), Saved(weights, kept, scale)


def unmix(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    saved: Saved,
    grad: Tensor,
    out: Sequence[Tensor | None] = (None, None, None),
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of queries, keys and values, (S, H, L, d) each, from that of what `mix` gave."""
    shape, lent, size = query.shape, key.shape, query.shape[3]
    query, key, value, grad = (part.flatten(0, 1) for part in (query, key, value, grad))
    weights, kept, scale = saved
    dropped = weights if kept is None else weights * kept
    grad_value = _product(dropped.transpose(1, 2), grad, scale, out[2])
    slope = _wide_product(grad, value, scale * size**-0.5)
    if kept is not None:
        slope.mul_(kept)
    # The derivative of a softmax, w * (g - sum(g w)), in one pass
    slope = torch.ops.aten._softmax_backward_data(slope, upcast(weights), -1, slope.dtype).to(query.dtype)
    grad_query, grad_key = _product(slope, key, 1.0, out[0]), _product(slope.transpose(1, 2), query, 1.0, out[1])
    return grad_query.view(shape), grad_key.view(lent), grad_value.view(lent)


class _Products(torch.autograd.Function):
    """`mix` of queries, keys and values in one tensor, (3, S, H, L, d): one copy brings them into the order of the
    products, whatever order they are in, and their gradients need one."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
        parts = parts.contiguous()
        masks = [] if mask is None else [Mask(slice(None), mask)]
        query, key, value = parts.unbind(0)
        mixed, saved = mix(query, key, value, masks, dropout)
        ctx.save_for_backward(parts, saved.weights, saved.kept)
        ctx.scale = saved.scale
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        parts, weights, kept = ctx.saved_tensors
        query, key, value = parts.unbind(0)
        slopes = torch.empty_like(parts)
        unmix(query, key, value, Saved(weights, kept, ctx.scale), grad.contiguous(), slopes.unbind(0))
        return slopes, None, None


def _product(left: Tensor, right: Tensor, factor: float, out: Tensor | None = None) -> Tensor:
    """left @ right * factor, (B, N, K), (B, K, M) -> (B, N, M): multiplied within the product, before it is rounded.

    In place, for autocast would round float32 factors and leaves in-place forms alone.
    """
    shape = (left.shape[0], left.shape[1], right.shape[2])
    result = left.new_empty(shape) if out is None else out.view(shape)
    return result.baddbmm_(left, right, beta=0, alpha=factor)


def _wide_product(left: Tensor, right: Tensor, factor: float) -> Tensor:
    """left @ right^T * factor in float32, (B, N, K), (B, M, K) -> (B, N, M).

    Factors that were bf16 lose nothing if a matrix unit takes them for bf16 again, and its sums are float32.
    """
    with _taken_for_bf16() if left.dtype == torch.bfloat16 else nullcontext():
        return _product(upcast(left), _turned(upcast(right)), factor)


@contextmanager
def _taken_for_bf16() -> Iterator[None]:
    """oneDNN, where it computes a product of float32, may round its factors to bf16."""
    products: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = products.fp32_precision
    products.fp32_precision = "bf16"
    try:
        yield
    finally:
        products.fp32_precision = before


def _turned(x: Tensor) -> Tensor:
    """Its transpose; as a copy in the order that bmm likes, unless MKL computes it, which likes both."""
    turned = x.transpose(1, 2)
    return turned if torch.backends.mkl.is_available() else turned.contiguous()

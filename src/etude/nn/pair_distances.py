"""Distances between every query and every candidate of a group, without an array of their differences.

    l1        sum over d of |q_d - c_d|                                  (TransE)
    l2        sqrt of the sum over d of (q_d - c_d)^2                    (TransE)
    modulus   sum over pairs (re, im) of sqrt((q_re - c_re)^2 + (q_im - c_im)^2), re in the first half   (RotatE)

For queries (G, C, D) and candidates (G, M, D) the differences would be G C M D numbers: a gigabyte for a step of TransE
on FB15k-237, read and written several times. Here they live in a block of some candidates at a time, and the backward
pass computes them anew. On a GPU the three have kernels (nn/triton/pair_distances.py): a block is a tile of registers;
on a CPU loops (nn/compiled_distances.py), where numba is installed.

A distance of 0 has the gradient 0: |x| and the root have none there, and 0 is a subgradient of both.
"""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from etude.extras import is_installed
from etude.nn.triton import availability

Distance = Literal["l1", "l2", "modulus"]
BLOCK = 2**22  # differences held at once: 16 MB, about what caches of a core's cluster hold
TINY = 1e-30  # below any square that matters, above the smallest float32


def pair_distances(queries: Tensor, candidates: Tensor, distance: Distance) -> Tensor:
    """Return the distance of every query (G, C, D) to every candidate (G, M, D) of its group, (G, C, M)."""
    return cast(Tensor, _PairDistances.apply(queries, candidates, distance))


def row_distances(left: Tensor, right: Tensor, distance: Distance) -> Tensor:
    """Return the distance of each row of `left` (B, D) to the same row of `right`, (B,)."""
    difference = left - right
    if distance == "l1":
        return difference.abs().sum(-1)
    if distance == "l2":
        return torch.linalg.vector_norm(difference, dim=-1)
    real, imaginary = difference.chunk(2, -1)
    return _modulus(real, imaginary).sum(-1)


def _modulus(real: Tensor, imaginary: Tensor) -> Tensor:
    return (real * real + imaginary * imaginary).clamp(min=TINY).sqrt()


class _PairDistances(torch.autograd.Function):
    """Saves the inputs and the distances alone."""

    @staticmethod
    def forward(ctx: FunctionCtx, queries: Tensor, candidates: Tensor, distance: Distance) -> Tensor:
        queries, candidates = queries.float().contiguous(), candidates.float().contiguous()
        kernels = _kernels(queries)
        if kernels is not None:
            distances = kernels.forward(queries, candidates, distance)
        else:
            distances = _forward(queries, candidates, distance)
        ctx.save_for_backward(queries, candidates, distances)
        ctx.distance = distance  # type: ignore[attr-defined]
        return distances

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        queries, candidates, distances = ctx.saved_tensors  # type: ignore[attr-defined]
        distance: Distance = ctx.distance  # type: ignore[attr-defined]
        grad = grad.float().contiguous()
        if distance == "l2":  # the slope of a root: (q - c) / |q - c|
            grad = torch.where(distances > 0, grad / distances.clamp(min=TINY), 0.0)
        kernels = _kernels(queries)
        if kernels is not None:
            return (*kernels.backward(queries, candidates, grad, distance), None)
        if distance == "l1":
            return (*_l1_backward(queries, candidates, grad, distances), None)
        return (*_backward(queries, candidates, grad, distance), None)


def _kernels(queries: Tensor) -> Any:
    """Return the module of kernels for this tensor's device, or None where there is none: Triton's or numba's."""
    if queries.is_cuda:
        return availability.kernel_module("pair_distances")
    return _compiled_loops() if queries.device.type == "cpu" else None


@cache
def _compiled_loops() -> ModuleType | None:
    return importlib.import_module("etude.nn.compiled_distances") if is_installed("numba") else None


def _forward(queries: Tensor, candidates: Tensor, distance: Distance) -> Tensor:
    if distance == "l1":  # a vectorised loop without memory of its own
        return torch.cdist(queries, candidates, p=1.0)
    if distance == "l2":
        return torch.cdist(queries, candidates, p=2.0, compute_mode="donot_use_mm_for_euclid_dist")
    parts = [_modulus(*_split(queries[:, :, None] - block[:, None])).sum(-1) for block in _blocks(queries, candidates)]
    return torch.cat(parts, -1)


def _l1_backward(queries: Tensor, candidates: Tensor, grad: Tensor, distances: Tensor) -> tuple[Tensor, Tensor]:
    """Return both gradients by torch's loop, which makes that of its first argument: twice as fast as blocks."""
    slopes = torch.ops.aten._cdist_backward.default
    turned = grad.transpose(1, 2).contiguous(), distances.transpose(1, 2).contiguous()
    query_grad: Tensor = slopes(grad, queries, candidates, 1.0, distances)
    candidate_grad: Tensor = slopes(turned[0], candidates, queries, 1.0, turned[1])
    return query_grad, candidate_grad


def _backward(queries: Tensor, candidates: Tensor, grad: Tensor, distance: Distance) -> tuple[Tensor, Tensor]:
    if distance == "l2":  # the sum over m of g (q - c) is two products
        query_grad = grad.sum(2, keepdim=True) * queries - grad @ candidates
        candidate_grad = grad.sum(1)[..., None] * candidates - grad.transpose(1, 2) @ queries
        return query_grad, candidate_grad
    query_grad, candidate_grads, start = torch.zeros_like(queries), [], 0
    for block in _blocks(queries, candidates):
        difference = queries[:, :, None] - block[:, None]  # (G, C, m, D)
        weight = grad[:, :, start : start + block.shape[1], None]
        scale = weight / _modulus(*_split(difference))  # (G, C, m, D / 2)
        slope = difference.mul_(torch.cat([scale, scale], -1))
        query_grad += slope.sum(2)
        candidate_grads.append(-slope.sum(1))
        start += block.shape[1]
    return query_grad, torch.cat(candidate_grads, 1)


def _split(difference: Tensor) -> tuple[Tensor, Tensor]:
    real, imaginary = difference.chunk(2, -1)
    return real, imaginary


def _blocks(queries: Tensor, candidates: Tensor) -> tuple[Tensor, ...]:
    """Cut the candidates so that the differences of a block fit `BLOCK`."""
    size = max(1, BLOCK // max(1, queries.numel()))
    return candidates.split(size, 1)

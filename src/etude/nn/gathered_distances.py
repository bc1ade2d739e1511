"""Distances of each query to candidates of its own, which are rows of a table given by number.

The same as `pair_distances(queries[:, None], table[numbers], distance)`, nn/pair_distances.py, without the array of
the candidates' vectors and without that of their gradients. On a GPU kernels (nn/triton/gathered_distances.py) read
rows of the table where they are needed, and add up the gradient of each row in one place. Bytes for TransE on
FB15k-237 (1,024 queries with 256 candidates 1,000 wide: 1.05 GB a copy), as operations one by one:

    look-up                        reads and writes a copy          2.1 GB
    columns made contiguous        reads and writes                 2.1
    distances                      reads                            1.05
    gradient of the queries        reads                            1.05
    gradient of the candidates     reads and writes                 2.1
    joined with those of answers   reads and writes                 2.1
    added up into the table        reads                            1.05   together 11.6 GB, and 3.2 with the kernels

Elsewhere, where a processor's caches hold a query with its candidates, the look-up costs little.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from etude.nn.pair_distances import TINY, Distance, pair_distances
from etude.nn.triton import availability


def gathered_distances(queries: Tensor, table: Tensor, numbers: Tensor, distance: Distance) -> Tensor:
    """Return the distance of each query (B, D) to the rows `numbers` (B, n) of table (E, D), (B, n)."""
    if _kernels(table) is None:
        return pair_distances(queries[:, None], table[numbers], distance)[:, 0]
    return cast(Tensor, _GatheredDistances.apply(queries, table, numbers, distance))


def has_kernels(table: Tensor) -> bool:
    """Whether candidates of this table are scored without a copy of their vectors."""
    return _kernels(table) is not None


class _GatheredDistances(torch.autograd.Function):
    """Saves the inputs and the distances alone."""

    @staticmethod
    def forward(ctx: FunctionCtx, queries: Tensor, table: Tensor, numbers: Tensor, distance: Distance) -> Tensor:
        queries, table, numbers = queries.contiguous(), table.contiguous(), numbers.contiguous()
        distances: Tensor = _kernels(table).forward(queries, table, numbers, distance)
        ctx.save_for_backward(queries, table, numbers, distances)
        ctx.distance = distance  # type: ignore[attr-defined]
        return distances

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        queries, table, numbers, distances = ctx.saved_tensors  # type: ignore[attr-defined]
        distance: Distance = ctx.distance  # type: ignore[attr-defined]
        grad = grad.float().contiguous()
        if distance == "l2":  # the slope of a root: (q - c) / |q - c|
            grad = torch.where(distances > 0, grad / distances.clamp(min=TINY), 0.0)
        return (*_kernels(table).backward(queries, table, numbers, grad, distance), None, None)


def _kernels(table: Tensor) -> Any:
    """Return the module of kernels for a float32 table on a GPU, or None."""
    if table.is_cuda and table.dtype == torch.float32:
        return availability.kernel_module("gathered_distances")
    return None

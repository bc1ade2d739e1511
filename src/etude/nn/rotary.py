"""Rotary position embeddings of queries and keys (Su et al. 2021, RoFormer, section 3.4).

Pairs are (i, i + d/2), as in the published Llama and ModernBERT weights; the paper pairs neighbours, which is the same
up to a fixed order of the columns.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import custom_op

from etude.nn.triton.availability import kernel_module, supports_half_kernels

Rotation = tuple[Tensor, Tensor]  # cosines and sines, (N, 1, d/2) each, float32
_SCHEMA = "(Tensor positions, int head_size, float base) -> (Tensor, Tensor)"


def compute_frequencies(head_size: int, base: float, device: torch.device | None = None) -> Tensor:
    """Compute base^(-2i/d), (d/2,) float32."""
    # float64 for the power, then float32: far positions keep their phase
    exponent = torch.arange(0, head_size, 2, dtype=torch.float64, device=device) / head_size
    return (base**-exponent).to(torch.float32)


def compute_rotation(positions: Tensor, head_size: int, base: float = 10_000.0) -> Rotation:
    """Compute cosines and sines of position / base^(2i/d).

    Done once for each batch and used by every layer.
    """
    compute = _compute_outside_graph if torch.compiler.is_compiling() else _compute
    cosine, sine = compute(positions, head_size, base)
    return cosine[:, None, :], sine[:, None, :]


def _compute(positions: Tensor, head_size: int, base: float) -> Rotation:
    angle = positions.to(torch.float32)[:, None] * compute_frequencies(head_size, base, positions.device)  # (N, d/2)
    return angle.cos(), angle.sin()


# A compiler takes cosines for cheap and computes them again in every layer, head and direction, powers in float64
# included: a third of the step of 8 layers of 512 on an H200.
_compute_outside_graph = custom_op("etude::compute_rotation", _compute, mutates_args=(), schema=_SCHEMA)


@_compute_outside_graph.register_fake
def _(positions: Tensor, head_size: int, base: float) -> Rotation:
    shape = (positions.shape[0], head_size // 2)
    cosine, sine = (positions.new_empty(shape, dtype=torch.float32) for _ in range(2))
    return cosine, sine


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate (N, H, d), in float32 inside."""
    cosine, sine = rotation
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1).to(x.dtype)


def rotate_query_key(qkv: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
    """Take (N, 3, H, d) apart into queries, keys and values, (N, H, d) each, the first two rotated if need be."""
    query, key, value = qkv.unbind(1)
    if rotation is not None:
        query, key = rotate(query, rotation), rotate(key, rotation)
    return query, key, value


def supports_packed(qkv: Tensor) -> bool:
    """Whether `rotate_packed` applies to the device and dtype of this tensor."""
    return supports_half_kernels(qkv.device, qkv.dtype) and kernel_module("rotary") is not None


def rotate_packed(qkv: Tensor, rotation: Rotation) -> Tensor:
    """Rotate queries and keys of (N, 3, H, d) where they are one tensor, in one kernel of a GPU."""
    rotated: Tensor = kernel_module("rotary").rotate_packed(qkv, *rotation)
    return rotated

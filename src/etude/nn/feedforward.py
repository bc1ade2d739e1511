"""Products with an activation between them, and the kernels of ours that a GPU has for a GELU there.

A GELU in half precision gives the bias before it its gradient along with its own (nn/triton/gelu.py). On a Hopper card
its slope is part of the product that comes before it in the backward pass (nn/triton/gelu_linear.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etude.nn.activations import gelu, gelu_tanh
from etude.nn.precision import product_dtype
from etude.nn.triton.availability import generation, kernels, serves


def activated(x: Tensor, projection: nn.Linear, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """activation(projection(x)). On a GPU a GELU in half precision gives the bias its gradient along with its own."""
    own = own_gelu(x.device, product_dtype(x)) if activation in (gelu, gelu_tanh) and x.numel() else None
    if own is None or projection.bias is None:
        return activation(projection(x))
    raised = F.linear(x, projection.weight, projection.bias.detach())
    result: Tensor = own.gelu_biased(raised, projection.bias, activation is gelu_tanh)
    return result


def fed_forward(
    x: Tensor, up: nn.Linear, down: nn.Linear, activation: Callable[[Tensor], Tensor], bias: Tensor | None
) -> Tensor:
    """down(activation(up(x))); `bias` is down's, or a constant in its place.

    A Hopper card multiplies by a GELU's slope within the product that comes before it.
    """
    own = own_lowered(x.device, product_dtype(x)) if activation in (gelu, gelu_tanh) and x.numel() else None
    if own is None or up.bias is None or not own.fits(*down.weight.shape):
        inner = activated(x, up, activation)
        result: Tensor = down(inner) if bias is down.bias else F.linear(inner, down.weight, bias)
        return result
    dtype, tanh = product_dtype(x), activation is gelu_tanh  # operators of our own have no autocast
    raised = F.linear(x, up.weight, up.bias.detach())
    weight, bias = down.weight.to(dtype), None if bias is None else bias.to(dtype)
    lowered: Tensor = own.gelu_lowered(raised, own.bent(raised.detach(), tanh), up.bias, weight, bias, tanh)
    return lowered


def own_gelu(device: torch.device, dtype: torch.dtype) -> Any:
    """The module of our kernels, where they serve."""
    return kernels("gelu") if serves(device, dtype) else None


def own_lowered(device: torch.device, dtype: torch.dtype) -> Any:
    """The module of the kernel that joins a GELU's slope to a product: descriptors came with Hopper."""
    return kernels("gelu_linear") if serves(device, dtype) and generation(device.index) >= (9, 0) else None

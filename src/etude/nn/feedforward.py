"""Feed-forward products with an activation between them, and our GPU kernels for a GELU or a gate there.

In half precision the backward pass of a GELU also computes the gradient of the bias before it (nn/triton/gelu.py). On
Hopper the derivative of the GELU is part of the matrix product before it in the backward pass
(nn/triton/gelu_linear.py). Gate and up of a gated branch, which have weights of their own in every checkpoint, are one
product on a GPU (nn/triton/gated.py).
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etude.nn.activations import ACTIVATIONS, gelu, gelu_tanh
from etude.nn.precision import matmul_dtype
from etude.nn.triton.availability import compute_capability, kernel_module, supports_half_kernels

JOINS_GATE_AND_UP = True  # False only to compare (benchmarks/step_turns.py)


def linear_activation(x: Tensor, projection: nn.Linear, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """activation(projection(x)).

    On a GPU, a GELU in half precision computes the bias gradient along with its own.
    """
    kernels = gelu_kernels(x.device, matmul_dtype(x)) if _has_kernels(x, activation) else None
    if kernels is None or projection.bias is None:
        return activation(projection(x))
    pre_activation = F.linear(x, projection.weight, projection.bias.detach())
    result: Tensor = kernels.gelu_biased(pre_activation, projection.bias, activation is gelu_tanh)
    return result


def feedforward(
    x: Tensor, up: nn.Linear, down: nn.Linear, activation: Callable[[Tensor], Tensor], bias: Tensor | None
) -> Tensor:
    """down(activation(up(x))). `bias` is that of `down`, or a constant in its place.

    On Hopper the derivative of a GELU is part of the matrix product before it in the backward pass.
    """
    kernels = gelu_linear_kernels(x.device, matmul_dtype(x)) if _has_kernels(x, activation) else None
    if kernels is None or up.bias is None or not kernels.supports_shape(*down.weight.shape):
        inner = linear_activation(x, up, activation)
        result: Tensor = down(inner) if bias is down.bias else F.linear(inner, down.weight, bias)
        return result
    dtype, tanh = matmul_dtype(x), activation is gelu_tanh  # operators of our own have no autocast
    pre_activation = F.linear(x, up.weight, up.bias.detach())
    weight, bias = down.weight.to(dtype), None if bias is None else bias.to(dtype)
    output: Tensor = kernels.gelu_linear(
        pre_activation, kernels.gelu_values(pre_activation.detach(), tanh), up.bias, weight, bias, tanh
    )
    return output


def gated_activation(x: Tensor, gate: nn.Linear, up: nn.Linear, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """activation(gate(x)) * up(x), (N, D) -> (N, F).

    A GPU that trains a compiled model in half precision multiplies by both weights at once: x is read once, and its
    gradient is one product in place of a sum of two.
    """
    kernels = gated_kernels(x.device, matmul_dtype(x), x.shape)
    biases: list[Tensor | None] = [gate.bias, up.bias]
    kinds = [] if kernels is None else [ACTIVATIONS[name] for name in kernels.KINDS]
    if kernels is None or activation not in kinds or any(bias is not None for bias in biases):
        return activation(gate(x)) * up(x)
    joined = F.linear(x, torch.cat([gate.weight, up.weight]))  # (N, 2F)
    result: Tensor = kernels.gated_activation(joined, kinds.index(activation))
    return result


def _has_kernels(x: Tensor, activation: Callable[[Tensor], Tensor]) -> bool:
    """Whether our kernels can gain anything: without gradients, calling them costs the host more than they save."""
    is_gelu = activation in (gelu, gelu_tanh) and x.numel() > 0
    return is_gelu and (torch.is_grad_enabled() or torch.compiler.is_compiling())


def gated_kernels(device: torch.device, dtype: torch.dtype, shape: torch.Size) -> ModuleType | None:
    """Return the module of our gated activation, or None where it does not apply."""
    # uncompiled, torch would keep the joined copy of each layer's weights until the backward pass
    is_trained = torch.compiler.is_compiling() and torch.is_grad_enabled() and JOINS_GATE_AND_UP
    if not is_trained or not shape[0] or not supports_half_kernels(device, dtype):
        return None
    return kernel_module("gated")


def gelu_kernels(device: torch.device, dtype: torch.dtype) -> ModuleType | None:
    """Return the module of our GELU kernels, or None where they do not apply."""
    return kernel_module("gelu") if supports_half_kernels(device, dtype) else None


def gelu_linear_kernels(device: torch.device, dtype: torch.dtype) -> ModuleType | None:
    """Return the module of the fused GELU and linear kernel, or None. Its tensor descriptors need Hopper."""
    return (
        kernel_module("gelu_linear")
        if supports_half_kernels(device, dtype) and compute_capability(device.index) >= (9, 0)
        else None
    )

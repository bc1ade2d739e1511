"""Linear layers on few rows, with the norm before them and what follows them, as one operation.

A step of generation has one token of each text. Its products then take no longer than the operations between them, and
on a GPU a layer of them is as long as its kernels are many. So on a GPU, in half precision and without gradients, a
branch of a layer calls `linear` here, which is one kernel (nn/triton/few_rows_linear.py), where `fits` says so.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etude.nn.activations import ACTIVATIONS, Activation
from etude.nn.norm import Norm
from etude.nn.triton import availability


def fits(x: object, *modules: nn.Module | None) -> TypeGuard[Tensor]:
    """Whether the kernel applies to these rows and to layers and norms with these weights."""
    if not isinstance(x, Tensor) or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    kernel = _find_kernel(x.device, x.dtype)
    if kernel is None or not 0 < len(x) <= kernel.MAX_ROWS:
        return False
    return all(weight.dtype == x.dtype for module in modules if module is not None for weight in module.parameters())


def linear(
    x: Tensor,
    projection: nn.Linear,
    *,
    norm: nn.Module | None = None,
    activation: Activation | None = None,
    plus: Tensor | None = None,
    times: Tensor | None = None,
) -> Tensor:
    """activation(projection(norm(x))) + plus, or * times: (N, I) -> (N, O)."""
    kernel = _find_kernel(x.device, x.dtype)
    norm = norm if isinstance(norm, Norm) else None  # nn.Identity: no norm
    if kernel is None:
        y = F.linear(x if norm is None else norm(x), projection.weight, projection.bias)
        y = y if activation is None else ACTIVATIONS[activation](y)
        return y + plus if plus is not None else y * times if times is not None else y
    if norm is not None and len(x) > kernel.MAX_NORM_ROWS:
        x, norm = norm(x), None
    norm_settings = (None, None, None, 0.0) if norm is None else (norm.kind, norm.weight, norm.bias, norm.epsilon)
    y = kernel.multiply(x, projection.weight, projection.bias, *norm_settings, activation, plus, times)
    return y


def _find_kernel(device: torch.device, dtype: torch.dtype) -> Any:  # ModuleType | None
    """The kernel's module on a GPU that runs it, in half precision; None elsewhere."""
    return availability.kernel_module("few_rows_linear") if availability.supports_half_kernels(device, dtype) else None

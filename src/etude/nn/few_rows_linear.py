"""Linear layers on few rows, with the norm before them and what follows them, as one operation.

A step of generation has one token of each text. Its products then take no longer than the operations between them, and
on a GPU a layer of them is as long as its kernels are many. So on a GPU, in half precision and without gradients, a
branch of a layer calls `linear` here, which is one kernel (nn/triton/few_rows_linear.py), where `fits` says so.

In the pre-LN order the stream of a step is a `StepStream`: the kernel that adds a branch leaves the moments of the rows
for the norm of the next one (`add_linear`).
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etude.nn.activations import ACTIVATIONS, Activation
from etude.nn.norm import Norm
from etude.nn.triton import availability


class StepStream(NamedTuple):
    """The residual stream of a step."""

    rows: Tensor  # (N, D)
    moments: Any = None  # of the rows, as the kernel wrote them


def fits(x: object, *modules: nn.Module | None) -> TypeGuard[Tensor | StepStream]:
    """Whether the kernel applies to these rows and to layers and norms with these weights."""
    x = x.rows if isinstance(x, StepStream) else x
    if not isinstance(x, Tensor) or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    kernel = _find_kernel(x.device, x.dtype)
    if kernel is None or not 0 < len(x) <= kernel.MAX_ROWS:
        return False
    return all(weight.dtype == x.dtype for module in modules if module is not None for weight in module.parameters())


def linear(
    x: Tensor | StepStream,
    projection: nn.Linear,
    *,
    norm: nn.Module | None = None,
    activation: Activation | None = None,
    times: Tensor | None = None,
) -> Tensor:
    """activation(projection(norm(x))) * times: (N, I) -> (N, O)."""
    return _multiply(x, projection, norm=norm, activation=activation, times=times)[0]


def add_linear(stream: Tensor | StepStream, inner: Tensor, projection: nn.Linear) -> Tensor | StepStream:
    """stream + projection(inner): (N, O), (N, I) -> (N, O)."""
    if isinstance(stream, Tensor):
        return _multiply(inner, projection, plus=stream)[0]
    return StepStream(*_multiply(inner, projection, plus=stream.rows, measured=True))


def _multiply(
    x: Tensor | StepStream,
    projection: nn.Linear,
    *,
    norm: nn.Module | None = None,
    activation: Activation | None = None,
    plus: Tensor | None = None,
    times: Tensor | None = None,
    measured: bool = False,
) -> tuple[Tensor, Any]:
    """activation(projection(norm(x))) + plus, or * times: (N, O), and its moments where they are asked for."""
    rows, moments = x if isinstance(x, StepStream) else (x, None)
    kernel = _find_kernel(rows.device, rows.dtype)
    norm = norm if isinstance(norm, Norm) else None  # nn.Identity: no norm
    if kernel is None:
        y = F.linear(rows if norm is None else norm(rows), projection.weight, projection.bias)
        y = y if activation is None else ACTIVATIONS[activation](y)
        return y + plus if plus is not None else y * times if times is not None else y, None
    if norm is not None and moments is None and len(rows) > kernel.MAX_NORM_ROWS:
        rows, norm = norm(rows), None
    norm_settings = (None, None, None, 0.0) if norm is None else (norm.kind, norm.weight, norm.bias, norm.epsilon)
    result: tuple[Tensor, Any] = kernel.multiply(
        rows, projection.weight, projection.bias, *norm_settings, moments, activation, plus, times, measured
    )
    return result


def _find_kernel(device: torch.device, dtype: torch.dtype) -> Any:  # ModuleType | None
    """The kernel's module on a GPU that runs it, in half precision; None elsewhere."""
    return availability.kernel_module("few_rows_linear") if availability.supports_half_kernels(device, dtype) else None

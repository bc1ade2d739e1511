"""The capabilities of the GPU and our kernel modules for it, each looked up once.

A model that is being compiled must not import anything or query the driver: its graph would break there. So the
training loop calls `dispatch.load_kernels` first, and from then on all answers are cached here.

Every kernel is launched under `torch.cuda.device_of` one of its tensors: Triton launches on the current device, which
is the first GPU also where a model lies on another one (train.device=cuda:1).
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import torch

# modules of this folder that need Triton
KERNEL_MODULES = ("short_attention", "tiled_attention", "gelu", "gelu_linear", "gated", "residual_norm", "rotary")

_CAPABILITIES: dict[int | None, tuple[int, int]] = {}
_MODULES: dict[str, ModuleType | None] = {}


def compute_capability(index: int | None) -> tuple[int, int]:
    """Return CUDA's compute capability: (8, 0) is Ampere, (9, 0) Hopper; (0, 0) without a GPU."""
    if index not in _CAPABILITIES:
        _CAPABILITIES[index] = torch.cuda.get_device_capability(index) if torch.cuda.is_available() else (0, 0)
    return _CAPABILITIES[index]


def supports_flash(index: int | None) -> bool:
    """Whether flash kernels, and ours, run on this GPU: Ampere or later."""
    return compute_capability(index) >= (8, 0)


def supports_half_kernels(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether kernels in half precision, flash's and ours, apply to this device and dtype."""
    return device.type == "cuda" and dtype in (torch.bfloat16, torch.float16) and supports_flash(device.index)


def kernel_module(
    name: str, package: str = "nn.triton"
) -> Any:  # ModuleType | None; most callers know that it is there
    """Return a module that needs Triton, such as one of KERNEL_MODULES, or None where Triton is missing."""
    if name not in _MODULES:
        try:
            _MODULES[name] = importlib.import_module(f"etude.{package}.{name}")
        except ImportError:
            _MODULES[name] = None
    return _MODULES[name]

"""What the GPU at hand can do, and our kernels for it, each looked up once.

A model that is being compiled must not come upon an import or a question to the driver: its graph would break there.
So the training loop calls `dispatch.load_kernels` first, and from then on all answers lie here.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

# modules of this folder that need Triton
KERNEL_MODULES = ("short_attention", "tiled_attention", "gelu", "gelu_linear", "residual_norm")

_CAPABILITIES: dict[int | None, tuple[int, int]] = {}
_MODULES: dict[str, Any] = {}


def compute_capability(index: int | None) -> tuple[int, int]:
    """CUDA's compute capability: (8, 0) is Ampere, (9, 0) Hopper; (0, 0) where there is no card."""
    if index not in _CAPABILITIES:
        _CAPABILITIES[index] = torch.cuda.get_device_capability(index) if torch.cuda.is_available() else (0, 0)
    return _CAPABILITIES[index]


def supports_flash(index: int | None) -> bool:
    """Flash kernels, and ours, need an Ampere card or a later one."""
    return compute_capability(index) >= (8, 0)


def supports_half_kernels(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether kernels in half precision, flash's and ours, are of use there."""
    return device.type == "cuda" and dtype in (torch.bfloat16, torch.float16) and supports_flash(device.index)


def kernel_module(name: str, package: str = "nn.triton") -> Any:
    """A module that needs Triton, such as one of KERNEL_MODULES, or None where there is none to make them."""
    if name not in _MODULES:
        try:
            _MODULES[name] = importlib.import_module(f"etude.{package}.{name}")
        except ImportError:
            _MODULES[name] = None
    return _MODULES[name]


def is_single_process() -> bool:
    """Whether this process trains by itself: in shards (FSDP2) a branch's weights are there only while it runs."""
    return not (torch.distributed.is_available() and torch.distributed.is_initialized())

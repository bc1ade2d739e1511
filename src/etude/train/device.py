"""The device a run trains on, and how exactly it repeats there."""

from __future__ import annotations

import os

import torch

from etude.errors import UserError


def resolve_device(name: str | None) -> torch.device:
    """Return the device of a `train.device` setting; UserError where it names a GPU and there is none."""
    name = name or "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError("This run wants a CUDA device and there is none here. Set train.device=cpu.")
    return torch.device(name)


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def make_deterministic(enabled: bool) -> None:
    if enabled:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS needs it to repeat its sums
        torch.use_deterministic_algorithms(True)


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has done what was queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)

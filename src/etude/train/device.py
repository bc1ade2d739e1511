"""The device a run trains on, and how exactly it repeats there."""

from __future__ import annotations

import os

import torch

from etude.errors import UserError


def parse_device(name: str | torch.device) -> torch.device:
    """Return a device by its name, whether it is here or not; UserError where PyTorch knows no such name."""
    try:
        return torch.device(name)
    except RuntimeError:
        raise UserError(
            f"train.device={name}: no device is called so. Set train.device=cpu, or cuda for a GPU."
        ) from None


def resolve_device(name: str | None) -> torch.device:
    """Return the device of a `train.device` setting; UserError where it is not on this machine."""
    device = parse_device(name or "cpu")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise UserError("This run wants a CUDA device and there is none here. Set train.device=cpu.")
        if (count := torch.cuda.device_count()) <= (device.index or 0):
            raise UserError(f"train.device={name}: there are {count} GPUs here, counted from 0. Set train.device=cuda.")
    elif device.type != "cpu":
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        if accelerator is None or accelerator.type != device.type:
            raise UserError(f"train.device={name}: there is no such device here. Set train.device=cpu.")
    return device


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

"""What to say when a run cannot go on: the first non-finite tensor, or memory that ran out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from etude.errors import UserError


def is_memory_error(error: BaseException) -> bool:
    """CUDA has a class for it; on a CPU it is a RuntimeError with a telling text, or a MemoryError."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and "allocate memory" in str(error)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from _tensors(getattr(value, name))


def _finite(value: Any) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in _tensors(value) if tensor.is_floating_point())


@contextmanager
def watch(module: nn.Module) -> Iterator[list[str]]:
    """Collects the names of sub-modules whose output is not finite, in the order they ran."""
    found: list[str] = []

    def hook(name: str) -> Callable[..., None]:
        def look(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if not found and not _finite(output):
                found.append(name)

        return look

    handles = [part.register_forward_hook(hook(name)) for name, part in module.named_modules() if name]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def find_first_nonfinite(learner: nn.Module, replay: Callable[[], object]) -> str:
    """Runs the failing step once more with every sub-module watched and names where it began.

    `replay` does the forward and backward pass of the step without an update.
    """
    for name, parameter in learner.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            return f"the parameter {name}"
    with watch(learner) as found:
        replay()
    if found:
        return f"the output of {found[0]} (forward pass)"
    # the backward pass runs from the last parameter to the first: the last one hit is where it began
    hit = [n for n, p in learner.named_parameters() if p.grad is not None and not bool(torch.isfinite(p.grad).all())]
    if hit:
        return f"the gradient of {hit[-1]} (backward pass)"
    return "the loss, although every tensor of it is finite when run again"


def nonfinite_error(where: str, step: int, rate: float) -> UserError:
    return UserError(
        f"Training stopped at step {step}: {where} is not finite. The weights of step {step - 1} were not touched. "
        f"The learning rate was {rate:.3g}: try a lower train.lr, a longer train.warmup, a smaller train.clip, "
        "or train.precision=float32, and resume or start again."
    )

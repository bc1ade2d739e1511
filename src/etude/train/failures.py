"""Diagnosis of failed steps: the first non-finite tensor, and memory that ran out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass

import torch
from torch import Tensor, nn

from etude.errors import UserError


class DivergenceError(UserError):
    """Training that stopped because the loss or a gradient was not finite: other settings may go on."""


def is_memory_error(error: BaseException) -> bool:
    """Tell whether memory ran out; CUDA has a class for it, a CPU raises a RuntimeError or a MemoryError."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and "allocate memory" in str(error)


def describe_memory_error(error: BaseException) -> str:
    """Say in one line that memory ran out; Python's own error may have no words."""
    return f"memory ran out: {next(iter(str(error).splitlines()), type(error).__name__)}"


def _tensors(value: object) -> Iterator[Tensor]:
    """Yield the tensors within nested containers and dataclasses, as modules return them."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _tensors(getattr(value, field.name))


def _is_finite(value: object) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in _tensors(value) if tensor.is_floating_point())


@contextmanager
def watch_outputs(module: nn.Module) -> Iterator[list[str]]:
    """Collect the name of the first sub-module whose output is not finite."""
    names: list[str] = []

    def make_hook(name: str) -> Callable[[nn.Module, tuple[object, ...], object], None]:
        def hook(_module: nn.Module, _inputs: tuple[object, ...], output: object) -> None:
            if not names and not _is_finite(output):
                names.append(name)

        return hook

    handles = [part.register_forward_hook(make_hook(name)) for name, part in module.named_modules() if name]
    try:
        yield names
    finally:
        for handle in handles:
            handle.remove()


def find_first_nonfinite(learner: nn.Module, replay: Callable[[], object]) -> str:
    """Run the failing step once more with hooks on every sub-module, and name the first non-finite tensor.

    `replay` does the forward and backward pass of the step without an update.
    """
    for name, parameter in learner.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            return f"the parameter {name}"
    with watch_outputs(learner) as names:
        replay()
    if names:
        return f"the output of {names[0]} (forward pass)"
    # the backward pass runs from the last parameter to the first: the last one affected is where it started
    affected = [
        name
        for name, parameter in learner.named_parameters()
        if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all())
    ]
    if affected:
        return f"the gradient of {affected[-1]} (backward pass)"
    return "the norm of all gradients (each of them is finite: their squares are too large)"


def nonfinite_error(tensor: str, step: int, lr: float) -> DivergenceError:
    """Build the error of a step with a non-finite tensor, with what to try."""
    return DivergenceError(
        f"Training stopped at step {step}: {tensor} is not finite. The weights of step {step - 1} were not changed. "
        f"The learning rate was {lr:.3g}: try a lower train.lr, a longer train.warmup, a smaller train.clip, "
        "or train.precision=float32, and resume or start again."
    )

"""Diagnosis of failed steps: the first non-finite tensor, memory that ran out, and a GPU that is lost."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass

import torch
from torch import Tensor, nn

from etude.errors import UserError


class DivergenceError(UserError):
    """Training that stopped because the loss or a gradient was not finite: other settings may go on."""


# as torch's allocator of a CPU, CUDA, cuBLAS and cuDNN say it; the compiler and Triton hand CUDA's words on
NO_MEMORY = ("allocate memory", "out of memory", "_STATUS_ALLOC_FAILED")
DEVICE_ERRORS = ("CUDA error", "CUDA driver error", "Triton Error [CUDA]", "CUBLAS_STATUS_", "CUDNN_STATUS_")


def is_memory_error(error: BaseException) -> bool:
    """Tell whether memory ran out, or did so in what caused an error.

    CUDA has a class for it, a CPU raises a RuntimeError or a MemoryError, and a fork an OSError.
    """
    return any(_has_no_memory(cause) for cause in _causes(error))


def _has_no_memory(error: BaseException) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(text in str(error) for text in NO_MEMORY)


def is_device_error(error: BaseException) -> bool:
    """Tell whether a GPU failed, and not for want of memory: nothing runs on it in this process any more.

    An error of a kernel, or of a neighbour under NVIDIA's MPS, leaves a process without its device: whoever asks for
    one is told that there is none.
    """
    if is_memory_error(error):
        return False
    if any(_is_of_device(cause) for cause in _causes(error)):
        return True
    return torch.cuda.is_initialized() and not torch.cuda.is_available()


def is_machine_error(error: BaseException) -> bool:
    """Tell whether a failure is one of the machine, its memory or its GPU: another time it may not repeat itself."""
    return is_memory_error(error) or is_device_error(error)


def _is_of_device(error: BaseException) -> bool:
    if isinstance(error, torch.AcceleratorError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in DEVICE_ERRORS)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what it was raised from: a message for people hides the class."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


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

"""What is said of a failure: in words, also where the error has none."""

from __future__ import annotations

import pytest
import torch

from etude.errors import UserError
from etude.train.failures import describe_memory_error, find_first_nonfinite, is_device_error, is_memory_error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "memory ran out: MemoryError"),
        (MemoryError("Unable to allocate 8 GiB"), "memory ran out: Unable to allocate 8 GiB"),
        (torch.OutOfMemoryError("CUDA out of memory.\nTried to"), "memory ran out: CUDA out of memory."),
    ],
)
def test_memory_that_runs_out(error: BaseException, words: str) -> None:
    assert is_memory_error(error) and describe_memory_error(error) == words


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "Triton Error [CUDA]: out of memory",
        "backend='inductor' raised:\nOutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
    ],
)
def test_a_full_gpu_says_so_in_many_words(message: str) -> None:
    """Whoever asks for memory first is told, not the allocator alone: a full GPU is no lost one."""
    error = RuntimeError(message)
    explained = UserError("Memory ran out on the GPU.")
    explained.__cause__ = error
    assert is_memory_error(error) and is_memory_error(explained)
    assert not is_device_error(error) and not is_device_error(explained)


def test_a_gpu_that_is_lost_is_told_from_other_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = [
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: device-side assert triggered"),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
        RuntimeError("Triton Error [CUDA]: unspecified launch failure"),
    ]
    other = [RuntimeError("mat1 and mat2 shapes cannot be multiplied"), UserError("There is no file a.jsonl.")]
    assert all(is_device_error(error) and not is_memory_error(error) for error in lost)
    assert not any(is_device_error(error) or is_memory_error(error) for error in other)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert is_device_error(UserError("This run wants a CUDA device and there is none here.")), "it had one"


def test_gradients_whose_squares_overflow_are_told_as_such() -> None:
    """What training looks at is the norm of the gradients; the loss is a number here."""
    learner = torch.nn.Linear(2, 1)

    def replay() -> None:
        (1e30 * learner(torch.ones(1, 2)).sum()).backward()

    message = find_first_nonfinite(learner, replay)
    assert learner.weight.grad is not None and learner.weight.grad.isfinite().all()
    assert message.startswith("the norm of all gradients")

"""What is said of a failure: in words, also where the error has none."""

from __future__ import annotations

import pytest
import torch

from etude.train.failures import describe_memory_error, find_first_nonfinite, is_memory_error


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


def test_gradients_whose_squares_overflow_are_told_as_such() -> None:
    """What training looks at is the norm of the gradients; the loss is a number here."""
    learner = torch.nn.Linear(2, 1)

    def replay() -> None:
        (1e30 * learner(torch.ones(1, 2)).sum()).backward()

    message = find_first_nonfinite(learner, replay)
    assert learner.weight.grad is not None and learner.weight.grad.isfinite().all()
    assert message.startswith("the norm of all gradients")

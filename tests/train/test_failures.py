"""What is said of a failure: in words, also where the error has none."""

from __future__ import annotations

import pytest
import torch

from etude.train.failures import describe_memory_error, is_memory_error


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

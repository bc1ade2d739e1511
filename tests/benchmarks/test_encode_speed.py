"""Both sides take turns while there is time, and the other side works in the way that is fastest."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from benchmarks import encode_speed


class Other:
    name, batch_size = "other", 32

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        time.sleep(0.001 if self.batch_size == 128 else 0.01)
        return np.ones((len(texts), 2), np.float32)


@pytest.mark.parametrize(("seconds", "rounds"), [(-1.0, 1), (60.0, 3)])
def test_rounds_end_with_the_time(seconds: float, rounds: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a limit the last comparisons of a call were cut off."""
    other, texts = Other(), ["a", "b"]
    until = time.perf_counter() + seconds
    found = encode_speed.compare(
        "mini", texts, other.encode, other, other.encode, 3, torch.device("cpu"), until  # type: ignore[arg-type]
    )  # fmt: skip
    assert len(found["ratios"]) == rounds and found["batch_size"] == 128 and found["apart"] == 0
    assert ("the time is over" in capsys.readouterr().out) == (rounds == 1)


def test_a_pipeline_has_processes_where_they_help(monkeypatch: pytest.MonkeyPatch) -> None:
    labeller = object.__new__(encode_speed.Labeller)
    labeller.batch_size, labeller.workers = 32, 0
    monkeypatch.setattr(encode_speed, "WORKERS", 1)
    encode_speed.find_batch_size(labeller, lambda _: time.sleep(0.01 if labeller.workers else 0.02), ["a"])
    assert labeller.workers == 1
    labeller.workers = 0
    encode_speed.find_batch_size(labeller, lambda _: time.sleep(0.02 if labeller.workers else 0.01), ["a"])
    assert labeller.workers == 0

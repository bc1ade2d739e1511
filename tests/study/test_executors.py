"""Executors: whoever waits for a cell hears of it, whatever becomes of its process."""

from __future__ import annotations

from pathlib import Path

import pytest

from etude.study.executors import ProcessExecutor, Worker
from tests.study.test_queue import make_cell


def test_a_process_that_cannot_start_is_an_error_of_its_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: ProcessExecutor, number: int) -> Worker:
        raise OSError("Cannot allocate memory")

    monkeypatch.setattr(ProcessExecutor, "_start_worker", refuse)
    with ProcessExecutor(tmp_path, workers=1) as executor:
        for title in ("first", "second"):
            executor.submit(make_cell(title))
            result = executor.results.get(timeout=120)
            assert result.key == make_cell(title).key and "Cannot allocate memory" in str(result.error)

"""One cell: its result says what was scored, and its failure whose it is."""

from __future__ import annotations

import errno
import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from etude.errors import UserError
from etude.study import execute
from etude.study.cell_archive import export_cells, import_cells
from etude.study.cells import Cell, CellStore
from etude.study.execute import OUTCOME, CellResult, load_outcome, release_memory, retains_memory, run_cell
from etude.tasks.outcomes import mean_outcome
from etude.train import checkpoint
from etude.train.device import resolve_device
from etude.train.failures import nonfinite_error


def test_queries_without_a_relevant_candidate_are_not_counted(tmp_path: Path) -> None:
    """They say nothing and are left out of the score: nor are they among its examples, here or in an archive."""
    queries = [{"query": f"q{n}", "candidates": ["a", "b"], "labels": [int(n % 2), 0]} for n in range(10)]
    file = tmp_path / "queries.jsonl"
    file.write_text("".join(json.dumps(query) + "\n" for query in queries))
    arguments = {"task": "rank", "columns": {}, "settings": {}} | dict.fromkeys(("train", "dev", "test"), str(file))
    cell = Cell("0" * 32, "majority", "majority on queries", arguments, {"row": "majority"})
    store = CellStore(tmp_path / "cells")
    assert run_cell(cell, store.folder).error is None
    assert store.result(cell.key)["examples"] == len(load_outcome(store, cell.key).parts) == 5
    archive = tmp_path / "cells.zip"
    export_cells(store, archive, tmp_path)
    assert import_cells(CellStore(tmp_path / "others"), archive, tmp_path).added == 1


def test_a_cell_is_on_disk_before_it_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut behind the rename must not leave a result without its outcome, nor an archive half written."""
    flushed: list[str] = []
    monkeypatch.setattr(checkpoint, "flush", lambda path: flushed.append(path.name))
    for name, store in (("finish", CellStore(tmp_path / "cells")), ("import", CellStore(tmp_path / "others"))):
        flushed.clear()
        if name == "finish":
            with store.lock("0" * 32) as work:
                mean_outcome([1.0, 0.0]).save(work / OUTCOME)
                cost = dict.fromkeys(("step", "tokens", "flops", "seconds"), 1.0)
                score = {"kind": "majority", "how": "mean", "value": 0.5, "dev": 0.5, "examples": 2}
                store.finish("0" * 32, {**cost, **score})
            export_cells(store, tmp_path / "cells.zip", tmp_path)
            assert any("cells.zip" in path for path in flushed)
        else:
            import_cells(store, tmp_path / "cells.zip", tmp_path)
        assert {OUTCOME, "result.json"} <= set(flushed), name


def test_answers_that_cannot_be_scored_fail_the_cell(tmp_path: Path) -> None:
    """With their place and a message: a study goes on with its other cells."""
    words = {"tokens": ["Ann", "lives", "here"], "tags": ["B-PER", "O", "O"]}
    characters = {"tokens": list("Ann lives"), "tags": ["B-PER", "I-PER", "I-PER", *["O"] * 6]}
    for name, records in (("words", [words] * 4), ("characters", [words, characters])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    files = {"train": "words", "dev": "words", "test": "characters"}
    arguments = {"task": "tag", "columns": {}, "settings": {}}
    arguments |= {part: str(tmp_path / f"{name}.jsonl") for part, name in files.items()}
    cell = Cell("1" * 32, "majority", "majority on tags", arguments, {"row": "majority"})
    error = run_cell(cell, tmp_path / "cells").error
    assert error is not None and "characters.jsonl:2" in error and "tags of characters" in error


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException, cause: BaseException | None = None) -> None:
    def run(cell: Cell, store: CellStore, work: Path, quiet: bool) -> dict[str, Any]:
        (work / "run").mkdir(exist_ok=True)  # of a run that has begun
        raise error from cause

    monkeypatch.setitem(execute.CELL_RUNNERS, "pretrain", run)


CELL = Cell("2" * 32, "pretrain", "pre-training", {}, {"row": "bert"})
EXPLAINED = "Memory ran out on the GPU (4 rows of 128 tokens at once). Set one of these."


def test_memory_that_ran_out_is_no_property_of_a_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The training loop explains it by a UserError: that was stored, and an empty GPU did not help any more."""
    store = CellStore(tmp_path / "cells")
    for error, cause, message in [
        (UserError(EXPLAINED), torch.OutOfMemoryError("CUDA out of memory."), EXPLAINED),
        (torch.OutOfMemoryError("CUDA out of memory."), None, "memory ran out: CUDA out of memory."),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), None, "memory ran out: [Errno 12] Cannot allocate memory"),
    ]:
        fail_with(monkeypatch, error, cause)
        assert run_cell(CELL, store.folder) == CellResult(CELL.key, message, out_of_memory=True)
        assert store.state(CELL.key) == "begun", "it goes on where it was"
    assert export_cells(store, tmp_path / "cells.zip", tmp_path) == 0


def test_a_lost_gpu_is_no_property_of_a_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CellStore(tmp_path / "cells")
    fail_with(monkeypatch, torch.AcceleratorError("CUDA error: unspecified launch failure\nCompile with ..."))
    reason = "CUDA error: unspecified launch failure"
    message = f"its GPU failed ({reason}). Run the study again to try it again."
    assert run_cell(CELL, store.folder) == CellResult(CELL.key, message, lost=True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(UserError) as missing:
        resolve_device("cuda")
    fail_with(monkeypatch, missing.value)
    assert run_cell(CELL, store.folder) == CellResult(CELL.key, str(missing.value)), "there never was one"
    with monkeypatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "0")
        assert run_cell(CELL, store.folder).lost, "a worker was given one"
        fail_with(patch, UserError("There is no file test.jsonl."))
        assert not run_cell(CELL, store.folder).lost
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    result = run_cell(CELL, store.folder)
    assert result.lost and "there is none here" in str(result.error), "there was one before"
    assert store.state(CELL.key) == "begun"


def test_divergence_is_stored_and_other_mistakes_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CellStore(tmp_path / "cells")
    fail_with(monkeypatch, UserError("There is no file test.jsonl."))
    assert run_cell(CELL, store.folder) == CellResult(CELL.key, "There is no file test.jsonl.")
    assert store.state(CELL.key) == "begun", "the file may be there the next time"
    diverged = nonfinite_error("the output of layers.0", 7, 1.0)
    fail_with(monkeypatch, diverged)
    assert run_cell(CELL, store.folder).error == str(diverged)
    fail_with(monkeypatch, AssertionError("it is not tried again"))
    assert run_cell(CELL, store.folder).error == store.error(CELL.key) == str(diverged)


def test_an_error_that_nobody_foresaw_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (RuntimeError("The size of tensor a must match"), OSError(errno.ENOSPC, "No space left on device")):
        fail_with(monkeypatch, error)
        with pytest.raises(type(error)):
            run_cell(CELL, tmp_path / "cells")


def test_memory_is_given_back_where_a_gpu_was_used(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("empty_cache"))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("a process that used no GPU asked for one"))
    cycle: list[object] = [torch.zeros(1)]
    cycle.append(cycle)
    tensor = weakref.ref(cycle[0])
    del cycle
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 2 << 30)
    assert release_memory() and calls == [] and tensor() is None and not retains_memory()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert release_memory() and calls == ["synchronize", "empty_cache"] and retains_memory()
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 300 << 20)
    assert not retains_memory()

    def raise_error() -> None:
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch.cuda, "synchronize", raise_error)
    assert not release_memory(), "the GPU is lost"

"""One cell: its result says what was scored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from etude.study.cell_archive import export_cells, import_cells
from etude.study.cells import Cell, CellStore
from etude.study.execute import OUTCOME, load_outcome, run_cell
from etude.tasks.outcomes import mean_outcome
from etude.train import checkpoint


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

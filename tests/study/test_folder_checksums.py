"""A flipped bit in a cell, a study or a pick is refused with the name of the file."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import etude
from etude.errors import UserError
from etude.runs import checksums
from etude.study.cell_archive import export_cells, import_cells
from etude.study.cells import RESULT, CellStore
from etude.study.execute import OUTCOME, _remove_checkpoints
from etude.study.folder_checksums import open_for_writing, verify_cell, write_checksums
from etude.text.run_checksums import CHECKSUMS

KEY = "0" * 32
CELL = {
    "kind": "transfer", "seconds": 1.5, "step": 3, "tokens": 64, "flops": 1e9, "value": 0.25, "dev": 0.5, "examples": 4,
    "how": "mean", "score": "accuracy",
}  # fmt: skip


def flip(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new, 1))


@pytest.fixture
def store(tmp_path: Path) -> CellStore:
    store = CellStore(tmp_path / "study" / "cells")
    store.folder.parent.mkdir()
    with store.lock(KEY) as work:
        np.save(work / OUTCOME, np.ones((4, 1)))
        store.finish(KEY, CELL)
    return store


def test_another_score_is_refused_by_name(store: CellStore) -> None:
    assert store.result(KEY)["value"] == 0.25 and verify_cell(store.result_folder(KEY)) == 2
    flip(store.result_folder(KEY) / RESULT, b"0.25", b"0.75")
    with pytest.raises(UserError, match=r"result\.json was altered.*the cell runs again"):
        store.result(KEY)
    with pytest.raises(UserError, match=r"result\.json was altered"):
        etude.verify(store.folder.parent)
    store.forget(KEY)
    assert store.state(KEY) == "absent"


def test_another_outcome_is_refused_by_name(store: CellStore) -> None:
    flip(store.result_folder(KEY) / OUTCOME, b"\xf0?", b"\xf1?")
    with pytest.raises(UserError, match=r"outcome\.npy was altered"):
        store.result(KEY)


def test_a_transfer_that_dropped_its_weights_is_whole(store: CellStore) -> None:
    """Every finished study was refused: its transfers' checksums listed weights that were not kept."""
    run = store.result_folder(KEY) / "run"
    run.mkdir()
    for name in ("recipe.yaml", "model.safetensors"):
        (run / name).write_text(name)
    checksums.write_checksums(run)
    (run / "model.safetensors").unlink()
    [note] = [note for note in etude.verify(store.folder.parent).notes if note.startswith(KEY)]  # an earlier version's
    assert "weights of its run were not kept" in note
    (run / "model.safetensors").write_text("model.safetensors")
    _remove_checkpoints(run, keep=False)
    assert not [note for note in etude.verify(store.folder.parent).notes if note.startswith(KEY)]
    flip(run / "recipe.yaml", b"recipe", b"Recipe")
    with pytest.raises(UserError, match=r"recipe\.yaml was altered"):
        etude.verify(store.folder.parent)


def test_a_failure_has_a_hash(store: CellStore) -> None:
    store.fail("1" * 32, "diverged")
    store.fail("1" * 32, "diverged again")
    assert store.error("1" * 32) == "diverged again"
    assert etude.verify(store.folder.parent).files == 3
    flip(store.failure_folder("1" * 32) / "error.json", b"again", b"agaiN")
    with pytest.raises(UserError, match=r"error\.json was altered"):
        etude.verify(store.folder.parent)


def test_imported_cells_have_hashes_and_older_ones_are_read(store: CellStore, tmp_path: Path) -> None:
    export_cells(store, tmp_path / "cells.zip", tmp_path)
    other = CellStore(tmp_path / "other" / "cells")
    import_cells(other, tmp_path / "cells.zip", tmp_path / "other")
    assert verify_cell(other.result_folder(KEY)) == 2
    (other.result_folder(KEY) / CHECKSUMS).unlink()
    assert other.result(KEY) == CELL


def test_a_study_that_goes_on_is_checked_first(store: CellStore) -> None:
    folder = store.folder.parent
    (folder / "registered.json").write_text('{"date": "2026"}')
    write_checksums(folder, ("registered.json", "absent.json"))
    assert etude.verify(folder).files == 3
    shutil.copytree(folder, folder.with_name("copy"))
    open_for_writing(folder)
    assert not (folder / CHECKSUMS).exists()
    flip(folder.with_name("copy") / "registered.json", b"2026", b"2027")
    with pytest.raises(UserError, match=r"registered\.json was altered"):
        open_for_writing(folder.with_name("copy"))

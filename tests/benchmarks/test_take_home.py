"""Cells of a visit join the archive that is kept, and claims become rows of a table."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from etude.errors import UserError
from etude.study.cell_archive import export_cells, import_cells
from etude.study.cells import CellStore

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import take_home


def make_archive(folder: Path, *keys: str) -> Path:
    store = CellStore(folder / "cells")
    folder.mkdir()
    for key in keys:
        with store.lock(key):
            result = {"kind": "pretrain", "title": "pre-training", "place": {}, "seconds": 1.0, "date": "2026-11-19"}
            result |= {"contender": "bert"}
            result |= {"step": 10, "tokens": 320, "flops": 1e9, "valid": {}, "curve": []}
            store.finish(key, result)
    export_cells(store, folder / "cells.zip", folder)
    return folder / "cells.zip"


def list_keys(archive: Path, folder: Path) -> list[str]:
    store = CellStore(folder / "cells")
    import_cells(store, archive, folder)
    return store.list_keys()


def test_an_archive_has_the_cells_of_both(tmp_path: Path) -> None:
    old, new = "a" * 32, "b" * 32
    kept, visit = make_archive(tmp_path / "kept", old), make_archive(tmp_path / "visit", new)
    take_home.main(["--archive", str(kept), "cells", str(visit)])
    (tmp_path / "look").mkdir()
    assert list_keys(kept, tmp_path / "look") == [old, new]
    before = kept.read_bytes()
    visit.write_bytes(visit.read_bytes()[:-9])
    with pytest.raises(UserError, match="changed or cut off"):
        take_home.main(["--archive", str(kept), "cells", str(visit)])
    assert kept.read_bytes() == before


def test_claims_become_rows() -> None:
    judged = {"claim": {"en": "It helps"}, "mean": 0.0541, "low": 0.028, "high": 0.08, "verdict": "holds"}
    rows = take_home.list_rows("one", {"claims": [judged, {"claim": "It pays", "verdict": "not tested"}]})
    assert rows[0].endswith("([table](../studies/one.gpu.md)) | It helps | +5.4 (2.8 … 8.0) | holds |")
    assert rows[1] == "|  | It pays | – | not tested |"

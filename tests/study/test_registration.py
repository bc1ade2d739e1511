"""Registered claims: their date travels with the cells, and one study's claims are not another's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from etude.errors import UserError
from etude.study.cell_archive import export_cells, import_cells
from etude.study.cells import CellStore
from etude.study.registration import load_registrations, merge_registrations, save_registrations
from etude.study.runner import Report, run, run_several
from etude.study.settings import Study
from tests.study.test_cell_archive import rewrite
from tests.study.tiny_study import tiny


def register(date: str, **values: Any) -> dict[str, Any]:
    return {"date": date, "changed": False, "seeds": ["1 × 2"], "claims": [], "rule": {}} | values


def test_claims_of_another_study_in_an_archive_change_nothing(report: Report, tmp_path: Path) -> None:
    """A study that went on from the cells of others was said to have changed its claims after results were seen."""
    archive = tmp_path / "cells.zip"
    export_cells(CellStore(report.folder / "cells"), archive, report.folder)
    other = tiny(name="other", claims=[{"claim": "GPT beats BERT", "better": "gpt", "than": "bert"}])
    home = run(other, tmp_path / "home", work=False, import_from=[archive], export_to=tmp_path / "both.zip")
    assert not home.results["registered"]["changed"]
    again = import_cells(CellStore(tmp_path / "again" / "cells"), tmp_path / "both.zip", tmp_path / "again")
    registrations = load_registrations(tmp_path / "again")
    assert again.added == 12 and set(registrations) == {"tiny", "other"}
    assert registrations["tiny"]["date"] == report.results["registered"]["date"]
    assert registrations["other"]["date"] == home.results["registered"]["date"]


def test_several_studies_keep_the_dates_of_their_claims_from_visit_to_visit(
    report: Report, study: Study, tmp_path: Path
) -> None:
    """A visit in a new folder registered all claims anew, after the cells of earlier visits."""
    root, other = tmp_path / "root", tiny(name="other", claims=[])
    root.mkdir()
    save_registrations(root, {"other": register("2020-01-01T00:00:00+00:00", rule=other.rule.model_dump(mode="json"))})
    shutil.copytree(report.folder / "cells", root / "cells")
    first = run_several([study, other], root, work=False, export_to=tmp_path / "cells.zip")
    dates = [each.results["registered"]["date"] for each in first]
    second = run_several([study, other], tmp_path / "next", work=False, import_from=[tmp_path / "cells.zip"])
    assert [each.results["registered"]["date"] for each in second] == dates
    alone = run(study, tmp_path / "alone", work=False, import_from=[tmp_path / "cells.zip"])
    assert alone.results["registered"]["date"] == dates[0] and not alone.results["registered"]["changed"]
    claims = [{"claim": "GPT beats BERT", "better": "gpt", "than": "bert"}]
    turned = run(tiny(claims=claims), tmp_path / "turned", work=False, import_from=[tmp_path / "cells.zip"])
    assert turned.results["registered"]["changed"], "results of the same study could be seen elsewhere"


def test_the_earlier_of_two_registrations_counts(tmp_path: Path) -> None:
    early, late = register("2026-11-15T10:00:00+00:00"), register("2026-11-15T12:30:00+01:00", seeds=["3 × 1"])
    save_registrations(tmp_path, {"a": late, "b": early})
    merge_registrations(tmp_path, {"a": early, "b": late | {"changed": True}, "c": late})
    merged = load_registrations(tmp_path)
    assert {name: values["date"] for name, values in merged.items()} == {
        "a": early["date"], "b": early["date"], "c": late["date"],
    }  # fmt: skip
    assert merged["a"]["seeds"] == ["1 × 2", "3 × 1"]
    assert merged["b"]["changed"] and not merged["a"]["changed"]


@pytest.mark.parametrize("date", ["yesterday", "2026-11-15T10:00:00", 3])
def test_registrations_of_an_archive_are_checked(report: Report, date: Any, tmp_path: Path) -> None:
    archive = tmp_path / "cells.zip"
    export_cells(CellStore(report.folder / "cells"), archive, report.folder)

    def change(manifest: Any, entries: dict[str, bytes]) -> None:
        manifest["context"]["registrations.json"]["studies"]["tiny"]["date"] = date

    damaged = rewrite(archive, tmp_path / "damaged.zip", change)
    with pytest.raises(UserError, match=r"damaged\.zip: registrations\.json is damaged: studies\.tiny\.date"):
        import_cells(CellStore(tmp_path / "home" / "cells"), damaged, tmp_path / "home")
    assert not (tmp_path / "home").exists()


def test_a_damaged_file_of_registrations_is_named(report: Report, study: Study, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    shutil.copytree(report.folder, folder)
    (folder / "checksums.json").unlink()
    (folder / "registrations.json").write_text(json.dumps({"studies": {"tiny": {}}}), encoding="utf-8")
    with pytest.raises(UserError, match=r"registrations\.json is damaged: studies\.tiny\.date"):
        run(study, folder, work=False)


def test_studies_that_run_in_one_folder_in_turn_keep_their_claims(study: Study, tmp_path: Path) -> None:
    """The second was said to have changed its claims after results were seen, and from then on the first, too."""
    other = tiny(name="other", claims=[{"claim": "GPT beats BERT", "better": "gpt", "than": "bert"}])
    reports = [run(each, tmp_path / "studies", work=False, device="cpu") for each in (study, other, study)]
    assert [report.results["registered"]["changed"] for report in reports] == [False, False, False]
    assert set(load_registrations(tmp_path / "studies")) == {"tiny", "other"}
    turned = run(tiny(claims=[]), tmp_path / "studies", work=False, device="cpu")
    assert turned.results["registered"]["changed"], "of its own claims"

"""What a visit to a GPU takes home of its studies."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import studies_gpu

from etude.study.settings import Study


def write_results(folder: Path, name: str, verdict: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    results = {"name": name, "claims": [{"claim": "It helps", "verdict": verdict}]}
    (folder / "results.json").write_text(json.dumps(results))
    (folder / "table.md").write_text(verdict)


def test_the_report_of_a_study_that_ran_alone_comes_home(tmp_path: Path) -> None:
    """Several studies have a folder each, one alone has none: its reports.zip was empty, and no verdict was printed."""
    folder, target = tmp_path / "studies", tmp_path / "reports.zip"
    write_results(folder, "one", "holds")
    assert [(claim["study"], claim["verdict"]) for claim in studies_gpu.pack_reports(folder, target)] == [
        ("one", "holds")
    ]
    assert sorted(zipfile.ZipFile(target).namelist()) == ["one/results.json", "one/table.md"]
    write_results(folder / "one", "one", "fails")  # then with another one from a queue
    write_results(folder / "two", "two", "holds")
    verdicts = studies_gpu.pack_reports(folder, target)
    assert [(claim["study"], claim["verdict"]) for claim in verdicts] == [("one", "fails"), ("two", "holds")]
    assert zipfile.ZipFile(target).read("one/table.md") == b"fails"


def test_a_study_of_a_visit_may_have_settings_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two more seeds for one study of a queue were two more for all."""
    monkeypatch.chdir(tmp_path)
    plain = studies_gpu.find_study("mlm-vs-electra")
    assert plain == studies_gpu.ROOT / "studies" / "mlm-vs-electra.yaml"
    changed = studies_gpu.find_study("mlm-vs-electra:seeds.pretrain=5:set.train.lr=3e-4")
    known, study = (Study.load(path, gpu=True) for path in (plain, changed))
    assert known.seeds.pretrain == 3 and study.seeds.pretrain == 5 and study.set["train.lr"] == 3e-4
    expected = known.dump()
    expected["seeds"]["pretrain"], expected["set"]["train.lr"] = 5, 3e-4
    assert study.dump() == expected

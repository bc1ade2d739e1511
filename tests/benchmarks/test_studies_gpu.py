"""What a visit to a GPU takes home of its studies."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import studies_gpu


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

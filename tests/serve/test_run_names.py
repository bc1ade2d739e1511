"""Runs behind one server have names that tell them apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from etude.baselines.registry import fit
from etude.errors import UserError
from etude.serve.run_names import name_runs
from etude.serve.server import Server
from etude.verbs.serving import serve
from tests.baselines.test_labels import reviews


def make_folders(root: Path, *names: str) -> list[Path]:
    for name in names:
        (root / name).mkdir(parents=True)
    return [root / name for name in names]


def test_a_name_is_as_short_as_it_can_be(tmp_path: Path) -> None:
    folders = make_folders(tmp_path, "one/a/best", "two/a/best", "two/b/best", "bert")
    assert name_runs(folders) == ["one/a/best", "two/a/best", "b/best", "bert"]
    assert name_runs(folders[2:]) == ["best", "bert"]
    assert name_runs([*folders[3:], "hf:google/bert"]) == ["bert", "hf:google/bert"]


def test_a_run_that_is_named_twice_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folders(tmp_path, "best")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="named twice"):
        name_runs(["best", tmp_path / "best"])


def test_what_two_picks_found_is_served_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [tmp_path / pick / "best" for pick in ("reviews", "news")]
    for folder in folders:
        folder.parent.mkdir()
        fit("tfidf", "classify", None, reviews()).save(folder)
    servers: list[Server] = []
    monkeypatch.setattr(Server, "run", lambda server: server._socket.close())
    serve(folders, port=0, workers=1, quiet=True, on_start=servers.append)
    service = servers[0].service
    assert list(service.models) == ["reviews/best", "news/best"] and '"run": "reviews/best"' in servers[0].curl
    assert [run.name for run in service.describe().runs] == ["reviews/best", "news/best"]

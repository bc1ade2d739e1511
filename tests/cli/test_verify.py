"""`etude verify` names what was checked."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from etude.cli import verify as presented
from etude.cli.main import app
from etude.graph.graph import Graph
from etude.verbs.verify import Verified


def test_the_article_fits_the_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Graph.from_triples([[0, 0, 1], [1, 0, 2]], ["a", "b", "c"], ["r"]).save(tmp_path / "graph")
    assert f"{tmp_path / 'graph'}: a graph; " in CliRunner().invoke(app, ["verify", str(tmp_path / "graph")]).output
    said: list[str] = []
    monkeypatch.setattr(presented, "echo", said.append)
    presented.present_verify(lambda: Verified(tmp_path, "export", 3))  # type: ignore[arg-type]
    assert said == [f"{tmp_path}: an export; 3 files agree with their hashes"]

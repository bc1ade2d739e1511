"""`etude verify`: every kind of folder, whole and damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

import etude
from etude.errors import UserError
from etude.graph.graph import Graph
from etude.world import World


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verify")
    (folder / "town.txt").write_text("\n\n".join(World().text(0.05)), encoding="utf-8")
    etude.prepare(str(folder / "town.txt"), out=folder / "corpus", tokenizer="wordpiece:300")
    return folder / "corpus"


def test_a_corpus(corpus: Path) -> None:
    result = etude.verify(corpus)
    assert result.kind == "corpus" and result.files >= 8
    flip(corpus / "train" / "00000.tokens.u16")
    with pytest.raises(UserError, match=r"00000\.tokens\.u16"):
        etude.verify(corpus)
    flip(corpus / "train" / "00000.tokens.u16")


def test_a_graph(tmp_path: Path) -> None:
    Graph.from_triples([[0, 0, 1], [1, 0, 2]], ["a", "b", "c"], ["r"]).save(tmp_path / "graph")
    assert etude.verify(tmp_path / "graph").kind == "graph"
    flip(tmp_path / "graph" / "train.triples.i32")
    with pytest.raises(UserError, match=r"train\.triples\.i32"):
        etude.verify(tmp_path / "graph")


def test_a_run_with_its_checkpoints(corpus: Path, tmp_path: Path) -> None:
    settings = {"train.steps": 2, "model.layers": 1, "model.width": 16, "model.heads": 2, "train.batch_tokens": 256}
    run = etude.pretrain("bert-toy", corpus, out=tmp_path / "run", settings=settings, quiet=True)
    result = etude.verify(run.folder)
    assert result.kind == "run" and result.files >= 7 and not result.notes
    state = run.checkpoints / f"step-{run.steps[-1]:012d}" / "weights.safetensors"
    flip(state)
    with pytest.raises(UserError, match=r"weights\.safetensors is damaged"):
        etude.verify(run.folder)


def test_what_has_no_hashes_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run, corpus, graph, study, pick or export"):
        etude.verify(tmp_path)
    with pytest.raises(UserError, match="There is no folder"):
        etude.verify(tmp_path / "missing")

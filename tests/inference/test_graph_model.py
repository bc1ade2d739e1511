"""A run on a graph from beginning to end: trained, killed and resumed, opened, evaluated, exported, and refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etude
from etude.errors import UserError
from etude.graph.entity_table import load_entity_table, write_entity_file
from etude.graph.graph import Graph
from etude.graph.graph_split import GraphSplit
from etude.hub import entity_vectors
from etude.inference.graph_model import GraphModel
from etude.pretraining.check import check
from etude.recipes.schema import Recipe
from etude.runs.run import Run
from etude.train import checkpoint

ENTITIES, RELATIONS = 40, 4
SETTINGS = {
    "model.width": 16, "train.steps": 60, "train.save_every": 20, "train.eval_every": 30, "train.log_every": 10,
    "train.batch_tokens": 64, "train.workers": 0, "train.device": "cpu",
}  # fmt: skip


def write_triples(path: Path, triples: list[tuple[str, str, str]]) -> Path:
    path.write_text("".join("\t".join(triple) + "\n" for triple in triples), encoding="utf-8")
    return path


def ring_names(step: int = 0) -> list[tuple[str, str, str]]:
    return [
        (f"place {e}", f"r{r}", f"place {(e + r + 1 + step) % ENTITIES}")
        for e in range(ENTITIES)
        for r in range(RELATIONS)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a graph of a ring, its files, another graph, and a finished run."""
    folder = tmp_path_factory.mktemp("graph")
    triples = ring_names()
    order = np.random.default_rng(0).permutation(len(triples))
    held_out = [triples[number] for number in order[:20]]
    train = write_triples(folder / "train.tsv", [triples[number] for number in order[20:]])
    write_triples(folder / "valid.tsv", held_out)
    etude.prepare_graph(train, out=folder / "ring", valid=str(folder / "valid.tsv"))
    etude.prepare_graph(write_triples(folder / "other.tsv", ring_names(7)), out=folder / "other")
    etude.pretrain("rotate-toy", folder / "ring", out=folder / "run", settings=SETTINGS, quiet=True)
    return folder


def test_a_run_is_complete_and_needs_no_tokenizer(folder: Path) -> None:
    run = Run.open(folder / "run")
    assert run.finished and run.recipe.reads_graph and not (run.folder / "tokenizer.json").exists()
    model_card = (run.folder / "README.md").read_text()
    assert "140 triples of 40 entities and 4 relations" in model_card and "tokenizer" not in model_card
    assert json.loads((run.folder / "entities.json").read_text())["graph"] == Graph.open(folder / "ring").fingerprint
    assert {"loss", "mrr", "mean_rank", "hits_at_10"} <= run.metrics("valid")[-1].keys()
    assert run.metrics("train")[-1]["tokens"] == 60 * 64
    with pytest.raises(UserError, match="reads no text"):
        _ = run.tokenizer


@pytest.mark.parametrize("last", [0, 20, 40])
def test_killed_anywhere_and_resumed_it_ends_with_the_same_bits(folder: Path, last: int, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(folder / "run", run)
    (run / "model.safetensors").unlink()
    for step in checkpoint.list_steps(run / "checkpoints"):
        if step > last:
            shutil.rmtree(run / "checkpoints" / f"step-{step:012d}")
    steps = checkpoint.list_steps(run / "checkpoints")
    assert all(step <= last for step in steps)
    etude.resume(run, quiet=True)
    assert (run / "model.safetensors").read_bytes() == (folder / "run" / "model.safetensors").read_bytes()
    losses = [[line["loss"] for line in Run.open(path).metrics()] for path in (run, folder / "run")]
    assert losses[0] == losses[1]


def test_vectors_scores_and_answers_by_name(folder: Path) -> None:
    model = etude.load(folder / "run", device="cpu")
    assert isinstance(model, GraphModel)
    assert model.vectors().shape == (ENTITIES, 16)
    np.testing.assert_array_equal(model.vectors(["place 3"])[0], model.vectors()[model.entity("place 3")])
    guesses = model.complete("place 5", "r1", top=3)
    assert len(guesses) == 3 and guesses[0].score >= guesses[1].score
    scores = model.score([("place 5", "r1", guess.entity) for guess in guesses])
    np.testing.assert_allclose(scores, [guess.score for guess in guesses], rtol=1e-4)
    heads = model.complete(None, "r1", "place 5", top=2)
    np.testing.assert_allclose(model.score([(heads[0].entity, "r1", "place 5")]), [heads[0].score], rtol=1e-4)
    with pytest.raises(UserError, match="learnt from a graph and reads no text, so it has no fill"):
        _ = model.fill
    with pytest.raises(UserError, match="no entity 'nowhere'"):
        model.vectors(["nowhere"])
    with pytest.raises(UserError, match="no relation 'r9'"):
        model.complete("place 5", "r9")
    with pytest.raises(UserError, match="Give the head or the tail"):
        model.complete("place 5", "r1", "place 6")
    with pytest.raises(UserError, match="top=-1: ask for one entity or more"):
        model.complete("place 5", "r1", top=-1)


def test_evaluate_ranks_a_split_or_a_file(folder: Path, tmp_path: Path) -> None:
    scores = etude.evaluate(folder / "run", relations=True, predictions=tmp_path / "ranks.jsonl")
    assert {"mrr", "mean rank", "hits@1", "hits@3", "hits@10", "head mrr", "tail hits@10", "r0 mrr"} <= scores.keys()
    assert scores["mrr"].count == 20 and scores["mrr"].low < scores["mrr"].value < scores["mrr"].high
    assert scores["mrr"].value == pytest.approx((scores["head mrr"].value + scores["tail mrr"].value) / 2)
    lines = [json.loads(line) for line in (tmp_path / "ranks.jsonl").read_text().splitlines()]
    mean = np.mean([[1 / line["head_rank"], 1 / line["tail_rank"]] for line in lines])
    assert mean == pytest.approx(scores["mrr"].value)
    from_file = etude.evaluate(folder / "run", folder / "valid.tsv")
    assert from_file["mrr"].value == pytest.approx(scores["mrr"].value)  # in another order
    moved = tmp_path / "moved"
    shutil.copytree(folder / "ring", moved)
    assert etude.evaluate(folder / "run", "valid", graph=moved)["mrr"].value == scores["mrr"].value


def test_vectors_go_out_as_text_and_come_back(folder: Path, tmp_path: Path) -> None:
    export = etude.export(folder / "run", out=tmp_path / "ring.vec")
    assert [path.name for path in export.files] == ["ring.vec", "ring.relations.vec"]
    table = load_entity_table(tmp_path / "ring.vec").align(Graph.open(folder / "ring"))
    run_table = load_entity_table(folder / "run")
    np.testing.assert_array_equal(table.vectors, run_table.vectors)
    assert run_table.graph == Graph.open(folder / "ring").fingerprint and run_table.relations.shape == (RELATIONS, 8)
    with pytest.raises(UserError, match="exists already"):
        etude.export(folder / "run", out=tmp_path / "ring.vec")


def test_check_counts_triples_and_names_problems(folder: Path, short_trials: None) -> None:
    result = check("transe-toy", folder / "other", {"train.device": "cpu", "train.workers": 0, "train.steps": 5})
    assert result.tokens == 5 * 256 and result.unigram_nats is None
    assert result.parameters == 64 * (ENTITIES + RELATIONS)
    assert any("no held-out part" in problem for problem in result.problems)


def test_budgets_in_epochs_count_passes_over_the_triples(folder: Path, tmp_path: Path) -> None:
    settings = SETTINGS | {"train.steps": None, "train.epochs": 3, "objective.row_tokens": 32, "objective.share": 32}
    run = etude.pretrain("transe-toy", folder / "ring", out=tmp_path / "run", settings=settings, quiet=True)
    assert run.recipe.train.steps == 6  # 4 rows of 32 of the 140 triples, 2 a step, 3 times


@pytest.mark.parametrize(("name", "content"), [
    ("header.tsv", "head\trelation\ttail\n{0}\t{1}\t{2}\n"),
    ("marked.tsv", "\ufeff{0}\t{1}\t{2}\r\n"),
    ("spaces.tsv", "{0} \t {1} \t{2}\n\n"),
    ("weights.tsv", "{0}\t{1}\t{2}\t0.5\n"),
    ("columns.csv", "tail,head,relation\n{2},{0},{1}\n"),
    ("lines.jsonl", '{{"head": "{0}", "relation": "{1}", "tail": "{2}"}}\n'),
])  # fmt: skip
def test_a_file_that_a_graph_is_prepared_from_is_evaluated(
    folder: Path, tmp_path: Path, name: str, content: str
) -> None:
    triple = tuple((folder / "valid.tsv").read_text(encoding="utf-8").splitlines()[0].split("\t"))
    (tmp_path / name).write_bytes(content.format(*triple).encode())
    model = etude.load(folder / "run")
    assert isinstance(model, GraphModel)
    report = model.evaluate(tmp_path / name)
    assert [(report.entities[head], report.relations[kind], report.entities[tail])
            for head, kind, tail in report.triples.tolist()] == [triple]  # fmt: skip


def test_files_of_vectors_go_into_new_folders_together(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "new" / "deep"
    assert [path.name for path in etude.export(folder / "run", out=out / "x.vec").files] == ["x.vec", "x.relations.vec"]
    written = []

    def fail_second(names: Any, vectors: Any, path: Path) -> None:
        written.append(path)
        if len(written) == 2:
            raise KeyboardInterrupt
        write_entity_file(names, vectors, path)

    monkeypatch.setattr(entity_vectors, "write_entity_file", fail_second)
    with pytest.raises(KeyboardInterrupt):
        etude.export(folder / "run", out=out / "y.vec")
    assert sorted(path.name for path in out.iterdir()) == ["x.relations.vec", "x.vec"]


def test_wrong_folders_files_and_graphs_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a graph"):
        etude.pretrain("transe-toy", tmp_path, out=tmp_path / "run")
    with pytest.raises(UserError, match="learns from a corpus, and a graph was given"):
        etude.pretrain("bert-toy", GraphSplit.open(folder / "ring").graph, out=tmp_path / "run")
    with pytest.raises(UserError):
        etude.pretrain("bert-toy", folder / "ring", out=tmp_path / "run")
    with pytest.raises(UserError, match=r"fingerprint differs.*Point --graph"):
        etude.evaluate(folder / "run", "valid", graph=folder / "other")
    with pytest.raises(UserError, match="has no split 'test'"):
        etude.evaluate(folder / "run", "test")
    stranger = write_triples(tmp_path / "strange.tsv", [("place 1", "r0", "place 2"), ("place 1", "r0", "Oz")])
    with pytest.raises(UserError, match=r"strange.tsv:2: There is no entity 'Oz' .* Is the file of another graph?"):
        etude.evaluate(folder / "run", stranger)
    with pytest.raises(UserError, match=r"ring is a folder\. Give a file of triples, or the name of a split"):
        etude.evaluate(folder / "run", folder / "ring")
    with pytest.raises(UserError, match=r"strange.tsv is not a graph: it is a file. .* --graph -o FOLDER"):
        Graph.open(stranger)
    (tmp_path / "short.tsv").write_text("place 1\tr0\n")
    with pytest.raises(UserError, match=r"short.tsv:1: 2 columns, not head, relation and tail"):
        etude.evaluate(folder / "run", tmp_path / "short.tsv")
    with pytest.raises(UserError, match="leave out --report"):
        etude.evaluate(folder / "run", report=tmp_path / "page.html")
    with pytest.raises(UserError, match="start a run on the graph with a recipe"):
        etude.pretrain(folder / "run", Graph.open(folder / "ring"), out=tmp_path / "on")
    with pytest.raises(UserError, match=r"model.vocab=7, and the graph has 40 entities"):
        etude.pretrain("transe-toy", folder / "ring", out=tmp_path / "run", settings={"model.vocab": 7})
    with pytest.raises(UserError, match="which has no tokenizer"):
        Recipe.load("transe-toy", {"tokenizer": "bpe:1000"})
    with pytest.raises(UserError, match=r"is not the graph .* was started on"):
        etude.resume(folder / "run", corpus=folder / "other", quiet=True)  # finished: nothing to do, but not on that
    unfinished = tmp_path / "moved"
    shutil.copytree(folder / "run", unfinished)
    (unfinished / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"is not the graph .* was started on"):
        etude.resume(unfinished, corpus=folder / "other", quiet=True)

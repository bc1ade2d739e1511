"""Multiple choice with a graph: two-hop questions, over-fitting, leaks, runs that remember their graph, resumption."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from etude.chance import Chance
from etude.errors import UserError
from etude.graph.entity_table import format_entities
from etude.graph.graph import Graph
from etude.graph.schema_graphs import VERSION
from etude.inference.opening import open_pretrained
from etude.inference.task_model import TaskModel
from etude.runs.run import Run
from etude.tasks import graph_choice
from etude.tasks.graph_choice import GraphChoice, Settings, margin_ranking_sum
from etude.tasks.knowledge_source import KnowledgeSource
from etude.transfer.finetune import finetune, plan_transfer, resume
from tests.two_hop import questions, town_graph, write_graph, write_questions

Base = Callable[[str], Path]
SMALL: dict[str, Any] = {
    "task.concept_width": 16, "task.relation_width": 16, "task.graph_widths": [8, 8], "task.graph_hidden": 32,
    "task.processes": 1, "train.device": "cpu", "train.batch_examples": 20,
}  # fmt: skip


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph folder with training questions about 90 persons, and test questions about 30 others."""
    folder = tmp_path_factory.mktemp("town")
    graph = town_graph()
    write_graph(folder / "graph", graph)
    write_questions(folder / "train.jsonl", questions(graph, range(90)))
    write_questions(folder / "test.jsonl", questions(graph, range(90, 120), seed=1))
    return folder


def settings(town: Path, **changes: Any) -> dict[str, Any]:
    given = {"task.graph": str(town / "graph")} | {name.replace("__", "."): value for name, value in changes.items()}
    of_vectors = {"task.concept_width", "task.relation_width"} if "task.concepts" in given else set()
    return {name: value for name, value in SMALL.items() if name not in of_vectors} | given


def train(base: Path, town: Path, out: Path, **changes: Any) -> float:
    run = finetune(base, "graph_choice", town / "train.jsonl", out, overrides=settings(town, **changes), quiet=True)
    model = TaskModel.open(run.folder, "cpu")
    return model.evaluate(town / "test.jsonl")["accuracy"].value


FROZEN = {"transfer__frozen": True, "train__epochs": 30, "train__lr": 0.02, "train__save_every": 1000}


@pytest.mark.slow  # three trainings; both networks learn the first questions below
def test_kagnet_answers_two_hop_questions_that_the_text_alone_cannot(base: Base, town: Path, tmp_path: Path) -> None:
    kagnet = train(base("bert"), town, tmp_path / "kagnet", **FROZEN)
    counts = train(base("bert"), town, tmp_path / "counts", **FROZEN, task__knowledge="path_counts")
    text = train(base("bert"), town, tmp_path / "text", **FROZEN, task__knowledge="none")
    assert text < 0.5  # of five colours
    assert kagnet > 0.85 and counts > 0.85  # keeps and has colour, not fears and has colour


def build(base: Path, town: Path, **changes: Any) -> tuple[Any, GraphChoice, Any]:
    transfer = plan_transfer(
        open_pretrained(base), "graph_choice", town / "train.jsonl", None, {}, settings(town, **changes), False
    )
    assert isinstance(transfer.task, GraphChoice)
    return transfer.model, transfer.task, transfer.rows


@pytest.mark.parametrize("knowledge", ["kagnet", "path_counts"])
def test_it_over_fits_one_batch_and_every_weight_learns(base: Base, town: Path, knowledge: str) -> None:
    model, task, rows = build(base("bert"), town, task__knowledge=knowledge, task__dropout=0.0, transfer__frozen=True)
    batch = task.batch([rows[number] for number in range(8)], Chance(0, 0))
    optimizer = torch.optim.Adam(task.parameters(), 0.03)
    model.eval()
    for step in range(50):
        term = task.loss(model, batch)["loss"]
        optimizer.zero_grad()
        (term.sum / term.count).backward()
        if not step:
            assert {name for name, p in task.named_parameters() if p.grad is None or not p.grad.any()} <= {
                "pooled.head.bias"  # the same for all answers
            }
        optimizer.step()
    assert float(task.metrics(model, batch)["accuracy"].mean) == 1 and float(term.sum.detach()) < 0.01


def test_the_auxiliary_loss_of_a_causal_model_is_trained(base: Base, town: Path) -> None:
    model, task, rows = build(base("gpt"), town, task__language_model=0.5)
    batch = task.batch([rows[number] for number in range(2)], Chance(0, 0))
    term = task.loss(model, batch)["language_model"]
    assert term.weight == 0.5 and term.count == batch.counts["language_model"] and float(term.sum.detach()) > 0


def test_no_question_sees_another(base: Base, town: Path) -> None:
    model, task, rows = build(base("bert"), town)
    model.eval(), task.eval()
    alone = [task._scores(model, task.batch([rows[number]], Chance(0, 0)))[0] for number in range(6)]
    together = task._scores(model, task.batch([rows[number] for number in range(6)], Chance(0, 0)))[0]
    torch.testing.assert_close(torch.cat(alone), together, rtol=1e-4, atol=1e-5)


def test_rows_of_a_part_keep_their_graphs(base: Base, town: Path) -> None:
    _, _, rows = build(base("bert"), town)
    part = rows.part([7, 3]).part([1])
    assert all(a.equals(b) for a, b in zip(part[0].graphs, rows[3].graphs, strict=True))
    assert len(rows[3].graphs) == 5 and part[0].label == rows[3].label


def test_the_margin_is_between_the_right_answer_and_each_wrong_one() -> None:
    scores = torch.tensor([[1.0, 0.9, 0.5, float("-inf")], [0.1, 0.2, 0.3, 0.4]], requires_grad=True)
    labels = torch.tensor([0, 2])
    expected = sum(
        F.margin_ranking_loss(scores[row, label], scores[row, wrong], torch.tensor(1.0), margin=0.2)
        for row, label in enumerate(labels.tolist())
        for wrong in range(4)
        if wrong != label and torch.isfinite(scores[row, wrong])
    )
    total = margin_ranking_sum(scores, labels, 0.2)
    assert float(total.detach()) == pytest.approx(float(expected.detach()))
    total.backward()
    assert torch.isfinite(scores.grad).all()  # type: ignore[arg-type]


def test_flops_are_counted(base: Base, town: Path) -> None:
    for knowledge in ("kagnet", "path_counts", "none"):
        model, task, rows = build(base("bert"), town, task__knowledge=knowledge)
        batch = task.batch([rows[number] for number in range(4)], Chance(0, 0))
        assert task.flops(model, batch) == task.pooled.flops(model, batch) + 3 * task.graph_flops(batch)
        assert bool(task.graph_flops(batch)) is (knowledge != "none")


# --- runs -------------------------------------------------------------------------------------------


def write_vectors(folder: Path, graph: Graph, seed: int = 0, score: str = "transe") -> Path:
    """A run of a graph embedding as its reader sees it, with random vectors."""
    folder.mkdir()
    draw = torch.Generator().manual_seed(seed)
    (folder / "recipe.yaml").write_text(f"model: {{score: {score}}}\n", encoding="utf-8")
    for name, content in format_entities(graph).items():
        (folder / name).write_text(content, encoding="utf-8")
    tensors = {
        "model.entities.weight": torch.randn(len(graph.entities), 12, generator=draw),
        "model.relations.weight": torch.randn(len(graph.relations), 12, generator=draw),
    }
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_a_run_remembers_its_graph_and_refuses_another(base: Base, town: Path, tmp_path: Path) -> None:
    own = tmp_path / "town"
    shutil.copytree(town, own)
    vectors = write_vectors(tmp_path / "transe", town_graph())
    given = {"task__concepts": str(vectors), "task__threshold": 0.05, "task__cache": str(tmp_path / "cache")}
    assert 0 <= train(base("bert"), own, tmp_path / "run", train__steps=3, **given) <= 1
    plan = TaskModel.open(tmp_path / "run", "cpu").plan
    assert plan.facts["graph"]["fingerprint"] == town_graph().fingerprint and plan.facts["graph"]["width"] == 12
    assert len(list((tmp_path / "cache").iterdir())) == 2  # of train and test questions
    shutil.rmtree(vectors)
    write_vectors(vectors, town_graph(), seed=1)
    with pytest.raises(UserError, match="not the vectors that the run was fine-tuned with"):
        TaskModel.open(tmp_path / "run", "cpu")
    shutil.rmtree(own / "graph")
    write_graph(own / "graph", town_graph(seed=5))
    with pytest.raises(UserError, match="made with another graph"):
        TaskModel.open(tmp_path / "run", "cpu")


def test_defaults_are_those_of_the_released_code() -> None:
    settings = Settings()
    assert (settings.loss, settings.margin, settings.edges, settings.paths) == ("margin", 0.2, 2, 100)
    assert (settings.threshold, settings.score_hidden, settings.tune_concepts) == (0.15, 0, True)
    widths = settings.concept_width, settings.relation_width, settings.graph_widths, settings.graph_hidden
    assert widths == (100, 100, (50, 25), 128)


def test_a_run_refuses_concepts_that_are_numbered_otherwise(town: Path) -> None:
    """Another version may read the same graph as other concepts: their vectors would be those of others."""
    settings = Settings(graph=str(town / "graph"))
    facts = KnowledgeSource(settings).facts()
    assert KnowledgeSource(settings, facts).facts() == facts
    with pytest.raises(UserError, match="other concepts than the run was fine-tuned with"):
        KnowledgeSource(settings, {**facts, "concepts": facts["concepts"] - 1})


def test_a_run_refuses_schema_graphs_that_are_made_otherwise(town: Path, tmp_path: Path) -> None:
    """Of ConceptNet, where other concepts are found since; a graph of one's own is read as before."""
    facts = KnowledgeSource(Settings(graph=str(town / "graph"))).facts()
    del facts["schema_graphs"]  # a run from before this was kept
    assert KnowledgeSource(Settings(graph=str(town / "graph")), facts).facts() == facts | {"schema_graphs": VERSION}
    graph = Graph.from_triples([[0, 0, 1]], ["wheel", "car"], ["PartOf"])
    write_graph(tmp_path / "graph", graph)
    given = Settings(graph=str(tmp_path / "graph"), merge="conceptnet")
    facts = KnowledgeSource(given).facts()
    assert KnowledgeSource(given, facts).facts() == facts
    del facts["schema_graphs"]
    with pytest.raises(UserError, match=r"as an earlier version of this package made them; .* or fine-tune anew"):
        KnowledgeSource(given, facts)


def test_vectors_start_the_concepts_and_prune_paths(base: Base, town: Path, tmp_path: Path) -> None:
    vectors = write_vectors(tmp_path / "transe", town_graph())
    table = load_file(vectors / "model.safetensors")["model.entities.weight"]
    _, task, rows = build(base("bert"), town, task__concepts=str(vectors), task__tune_concepts=False)
    assert task.kagnet is not None and torch.equal(task.kagnet.concepts.weight, table)
    assert not task.kagnet.concepts.weight.requires_grad
    _, _, unpruned = build(base("bert"), town)
    few, many = (sum(len(g.path_pairs) for n in range(20) for g in part[n].graphs) for part in (rows, unpruned))
    assert 0 < few < many
    assert all((graph.path_scores >= 0.15).all() for number in range(20) for graph in rows[number].graphs)


def test_vectors_of_transe_start_the_relations_in_both_directions(base: Base, town: Path, tmp_path: Path) -> None:
    vectors = write_vectors(tmp_path / "transe", town_graph())
    table = load_file(vectors / "model.safetensors")["model.relations.weight"]  # (R, D)
    _, task, _ = build(base("bert"), town, task__concepts=str(vectors))
    assert task.kagnet is not None and task.kagnet.relations.weight.requires_grad
    torch.testing.assert_close(
        task.kagnet.relations.weight.detach(), torch.cat([table, table, torch.zeros(1, table.shape[1])])
    )
    given = Settings(graph=str(town / "graph"), concepts=str(vectors))
    earlier = {name: fact for name, fact in KnowledgeSource(given).facts().items() if name != "relation_width"}
    assert KnowledgeSource(given, earlier).relation_width is None  # such a run has relations of task.relation_width


def test_a_class_of_relations_starts_from_the_mean_of_its_relations(tmp_path: Path) -> None:
    """HasA is the reverse of PartOf: its vector counts with the other sign."""
    graph = Graph.from_triples([[0, 0, 1], [1, 1, 0]], ["wheel", "car"], ["PartOf", "HasA"])
    write_graph(tmp_path / "graph", graph)
    vectors = write_vectors(tmp_path / "transe", graph)
    table = load_file(vectors / "model.safetensors")["model.relations.weight"].numpy()
    rows = [list(graph.relations).index(name) for name in ("PartOf", "HasA")]
    source = KnowledgeSource(Settings(graph=str(tmp_path / "graph"), concepts=str(vectors), merge="conceptnet"))
    assert source.relation_table is not None
    mean, classes = (table[rows[0]] - table[rows[1]]) / 2, len(source.concepts.relations)
    number = source.concepts.relations.index("partof")
    np.testing.assert_allclose(source.relation_table[[number, number + classes]], [mean, mean], rtol=1e-6)
    assert not source.relation_table[source.concepts.relations.index("isa")].any()


def test_paths_are_scored_by_the_vectors_of_transe_alone(town: Path, tmp_path: Path) -> None:
    """A relation of DistMult is no step from head to tail: (1 + cos(r, t - h)) / 2 would say nothing."""
    vectors = str(write_vectors(tmp_path / "distmult", town_graph(), score="distmult"))
    given = Settings(graph=str(town / "graph"), concepts=vectors)
    with pytest.raises(UserError, match=r"distmult has vectors of model.score=distmult, .* set task.threshold=0"):
        KnowledgeSource(given)
    unpruned = KnowledgeSource(given.model_copy(update={"threshold": 0.0}))
    assert unpruned.table is not None and unpruned.builder.hop_scores is None  # they may start the concepts
    (tmp_path / "distmult" / "recipe.yaml").write_text("system: DistMult\n", encoding="utf-8")
    facts = KnowledgeSource(given).facts() | {"relation_width": None}  # a run that was made before this was checked
    write_vectors(tmp_path / "later", town_graph(), score="distmult")
    assert KnowledgeSource(given.model_copy(update={"concepts": str(tmp_path / "later")}), facts).facts() == facts | {
        "vectors_folder": str(tmp_path / "later")
    }


def test_bad_settings_are_one_message_each(base: Base, town: Path, tmp_path: Path) -> None:
    def fails(match: str, **changes: Any) -> None:
        with pytest.raises(UserError, match=match):
            build(base("bert"), town, **changes)

    fails("task.knowledge=kagnet reads a graph", task__graph=None, task__knowledge="kagnet")
    fails("name the graph with task.graph", task__graph=None, task__concepts="x")
    fails("nowhere", task__graph=str(tmp_path / "nowhere"))
    plain = tmp_path / "vectors.txt"
    names = list(town_graph().entities)
    plain.write_text("".join(f"{name}\t1 2\n" for name in names), encoding="utf-8")
    fails("set task.threshold=0", task__concepts=str(plain))
    build(base("bert"), town, task__concepts=str(plain), task__threshold=0.0)
    fails(
        r"task.concept_width=50: the vectors of task.concepts are 2 wide\. Drop task.concept_width",
        task__concepts=str(plain), task__threshold=0.0, task__concept_width=50,
    )  # fmt: skip
    vectors = str(write_vectors(tmp_path / "transe", town_graph()))
    fails("task.relation_width=50: .* are 12 wide", task__concepts=vectors, task__relation_width=50)


def test_a_killed_training_goes_on_bit_for_bit(base: Base, town: Path, tmp_path: Path) -> None:
    given = {"train__steps": 6, "train__save_every": 2, "train__lr": 0.003}
    train(base("bert"), town, tmp_path / "whole", **given)
    overrides = settings(town, **given)
    finetune(
        base("bert"), "graph_choice", town / "train.jsonl", tmp_path / "stopped", overrides=overrides, quiet=True,
        deadline=time.monotonic(),
    )  # fmt: skip
    assert not Run.open(tmp_path / "stopped").finished
    resume(tmp_path / "stopped", quiet=True)
    whole, stopped = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "stopped"))
    assert set(whole) == set(stopped) and all(torch.equal(whole[name], stopped[name]) for name in whole)


def test_explanations_are_the_attention_of_the_prediction(base: Base, town: Path, tmp_path: Path) -> None:
    train(base("bert"), town, tmp_path / "run", train__steps=3)
    opened = TaskModel.open(tmp_path / "run", "cpu")
    assert isinstance(opened.task, GraphChoice)
    examples = graph_choice.read(town / "test.jsonl", labelled=False).part([0, 1])
    answers = opened.answer(examples)
    for answer, explained in zip(answers, opened.task.explain(opened.model, examples), strict=True):
        assert [paths.probability for paths in explained] == pytest.approx(answer["scores"], abs=1e-5)
        for paths in explained:
            if len(paths.graph.pairs):
                assert paths.pair_weights.sum() == pytest.approx(1, abs=1e-5)
                sums = np.bincount(paths.graph.path_pairs, paths.path_weights)
                assert sums == pytest.approx(np.ones(len(paths.graph.pairs)), abs=1e-5)
    assert json.dumps(answers)


def test_the_default_reads_the_text_alone_and_says_so(caplog: pytest.LogCaptureFixture, base: Base, town: Path) -> None:
    build(base("bert"), town, task__graph=None)
    assert "the text alone" in caplog.text
    assert not Settings().reads_graph


@pytest.mark.gpu
def test_a_gpu_gives_the_same_scores(base: Base, town: Path) -> None:
    for knowledge in ("kagnet", "path_counts"):
        model, task, rows = build(base("bert"), town, task__knowledge=knowledge)
        model.eval(), task.eval()
        batch = task.batch([rows[number] for number in range(8)], Chance(0, 0))
        expected = task._scores(model, batch)[0]
        model.cuda(), task.cuda()
        torch.testing.assert_close(task._scores(model, batch.to("cuda"))[0].cpu(), expected, rtol=1e-3, atol=1e-4)

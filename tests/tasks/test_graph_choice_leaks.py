"""No input of KagNet tells the answer: not labels, not the order of choices, not paths found with the answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from etude.chance import Chance
from etude.inference.opening import open_pretrained
from etude.tasks.data.examples import Examples
from etude.tasks.graph_choice import GraphBatch, GraphChoice, Question, ScoreHead, read
from etude.transfer.finetune import plan_transfer
from tests.two_hop import questions, town_graph, write_graph, write_questions

Base = Callable[[str], Path]
SMALL: dict[str, Any] = {
    "task.concept_width": 16, "task.relation_width": 16, "task.graph_widths": [8, 8], "task.graph_hidden": 32,
    "task.processes": 1, "train.device": "cpu", "train.batch_examples": 20, "task.score_hidden": 24,
}  # fmt: skip
KINDS = ["kagnet", "path_counts", "none"]


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("town")
    graph = town_graph()
    write_graph(folder / "graph", graph)
    write_questions(folder / "train.jsonl", questions(graph, range(90)))
    write_questions(folder / "test.jsonl", questions(graph, range(90, 120), seed=1))
    return folder


def build(base: Path, town: Path, knowledge: str, **changes: Any) -> tuple[Any, GraphChoice]:
    settings = SMALL | {"task.graph": str(town / "graph"), "task.knowledge": knowledge} | changes
    start = open_pretrained(base)
    transfer = plan_transfer(start, "graph_choice", town / "train.jsonl", None, {}, settings, False)
    assert isinstance(transfer.task, GraphChoice)
    transfer.model.eval(), transfer.task.eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in transfer.task.parameters():
            if not parameter.any():  # heads of text start at 0 and would score all alike
                parameter.normal_()
    return transfer.model, transfer.task


def make_batch(task: GraphChoice, examples: Examples[Question]) -> GraphBatch:
    rows = task.rows(examples)
    return task.batch([rows[number] for number in range(len(rows))], Chance(0, 0))


def assert_equal_inputs(one: object, two: object) -> None:
    """All fields of two batches but the labels, down to their arrays."""
    assert type(one) is type(two)
    if isinstance(one, torch.Tensor | np.ndarray):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(two))
    elif hasattr(one, "__dataclass_fields__"):
        for field in fields(one):  # type: ignore[arg-type]
            if field.name != "labels":
                assert_equal_inputs(getattr(one, field.name), getattr(two, field.name))
    else:
        assert one == two


@pytest.mark.parametrize("knowledge", KINDS)
def test_labels_reach_the_loss_alone(base: Base, town: Path, knowledge: str) -> None:
    model, task = build(base("bert"), town, knowledge)
    examples = read(town / "test.jsonl").part(range(8))
    moved = Examples(
        [replace(item, answer=(item.answer or 0) * 3 % 5) for item in examples], examples.source, examples.places
    )
    one, two = make_batch(task, examples), make_batch(task, moved)
    assert one.labels is not None and two.labels is not None and not torch.equal(one.labels, two.labels)
    assert_equal_inputs(one, two)
    with torch.no_grad():
        torch.testing.assert_close(task._scores(model, one)[0], task._scores(model, two)[0], rtol=0, atol=0)
        if knowledge != "none":  # the colours are unknown words: their texts are alike
            assert float(task.loss(model, one)["loss"].sum) != float(task.loss(model, two)["loss"].sum)
    hidden = read(town / "test.jsonl", labelled=False).part(range(8))
    assert [answer["answer"] for answer in task.predict(model, hidden)] == [
        answer["answer"] for answer in task.predict(model, examples)
    ]


@pytest.mark.parametrize("knowledge", KINDS)
def test_the_order_of_choices_moves_with_the_scores(base: Base, town: Path, knowledge: str) -> None:
    model, task = build(base("bert"), town, knowledge)
    examples = read(town / "test.jsonl").part(range(8))
    order = [3, 0, 4, 1, 2]
    turned = Examples(
        [Question(item.text, tuple(item.choices[place] for place in order), 0) for item in examples],
        examples.source, examples.places,
    )  # fmt: skip
    with torch.no_grad():
        scores = task._scores(model, make_batch(task, examples))[0]
        moved = task._scores(model, make_batch(task, turned))[0]
    torch.testing.assert_close(moved, scores[:, order], rtol=1e-4, atol=1e-5)
    assert knowledge == "none" or scores.std(1).min() > 0  # choices are told apart at all


def test_other_choices_do_not_change_a_schema_graph(base: Base, town: Path) -> None:
    """The paths of a choice follow from the question and that choice: not from which one is right."""
    _, task = build(base("bert"), town, "kagnet")
    examples = read(town / "test.jsonl").part(range(6))
    rows = task.unlabelled_rows(examples)
    for number, item in enumerate(examples):
        for place, choice in enumerate(item.choices):
            company = Question(item.text, (choice, "market"), 0)
            alone = task.unlabelled_rows(Examples([company], "here", ["1"]))[0].graphs[0]
            assert alone.equals(rows[number].graphs[place])


def test_facts_of_no_question_are_taken_from_its_record(base: Base, town: Path, tmp_path: Path) -> None:
    """Whatever else a line says of its answer is not read."""
    _, task = build(base("bert"), town, "kagnet")
    lines = [json.loads(line) for line in (town / "test.jsonl").read_text(encoding="utf-8").splitlines()[:6]]
    told = [
        {**line, "facts": [["person90", "keeps", "animal3"]], "concept": line["choices"][line["answer"]]}
        for line in lines
    ]
    write_questions(tmp_path / "told.jsonl", told)
    plain = make_batch(task, read(town / "test.jsonl").part(range(6)))
    assert_equal_inputs(plain, make_batch(task, read(tmp_path / "told.jsonl")))


# --- task.score_hidden ------------------------------------------------------------------------------


def test_the_score_is_a_product_or_an_mlp_over_graph_and_text() -> None:
    torch.manual_seed(0)
    vectors, statements = torch.randn(6, 5), torch.randn(6, 3, requires_grad=True)
    product = ScoreHead(5, 3, 0)
    torch.testing.assert_close(product(vectors, statements), vectors @ product.weight[0])
    assert torch.autograd.grad(product(vectors, statements).sum(), statements, allow_unused=True) == (None,)
    head = ScoreHead(5, 3, 7)
    assert head.first is not None
    inner = (torch.cat([vectors, statements], 1) @ head.first.weight.T + head.first.bias).clamp(min=0)
    torch.testing.assert_close(head(vectors, statements), inner @ head.weight[0])
    for one in (product, head):
        with FlopCounterMode(display=False) as counter:
            one(vectors, statements.detach())
        assert one.flops(6) == counter.get_total_flops()


def test_only_the_mlp_asks_whether_a_path_fits_its_question() -> None:
    """Two paths and two questions, each path right for one: a product scores a path alike whatever is asked."""
    paths, asked = torch.eye(2), torch.eye(2)
    vectors, statements = (
        paths.repeat(2, 1),
        asked.repeat_interleave(2, 0),
    )  # question 0 with both, question 1 with both
    labels = torch.tensor([0, 1])
    solved = {}
    for hidden in (0, 16):
        torch.manual_seed(1)
        head = ScoreHead(2, 2, hidden)
        optimizer = torch.optim.Adam(head.parameters(), 0.05)
        for _ in range(200):
            scores = head(vectors, statements).view(2, 2)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(scores, labels).backward()
            optimizer.step()
        solved[hidden] = int((head(vectors, statements).view(2, 2).argmax(1) == labels).sum())
    assert solved == {0: 1, 16: 2}


def test_the_setting_builds_the_head(base: Base, town: Path) -> None:
    model, task = build(base("bert"), town, "kagnet")
    assert task.graph_head is not None and task.graph_head.first is not None
    assert task.kagnet is not None
    assert task.graph_head.first.weight.shape == (24, task.kagnet.width + task.pooled.width)
    batch = make_batch(task, read(town / "test.jsonl").part(range(4)))
    before = task._scores(model, batch)[0]
    with torch.no_grad():
        task.graph_head.weight.zero_()
    states = model(batch)
    text = task.pooled.scores(model, states, batch)[:, 0].view(4, 5)
    torch.testing.assert_close(task._scores(model, batch)[0], text)  # without g it is the text alone
    assert not torch.equal(before, text)

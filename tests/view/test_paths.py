"""Explanations of a question: data, text, picture, page, command and server."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

import etude
from etude.errors import UserError
from etude.inference.task_model import TaskModel
from etude.serve.app import Service
from etude.serve.limits import Limits
from etude.serve.served_model import ServedModel
from etude.serve.server import Server
from etude.transfer.finetune import finetune
from etude.verbs.show import paths as show_paths
from etude.view.paths import AnswerView, Hop, PairView, PathExplanation, PathView, describe_paths, explain_paths
from etude.view.paths_layout import Rectangle, lay_out
from etude.view.paths_page import render_paths_page
from etude.view.paths_picture import draw_answer
from tests.two_hop import questions, town_graph, write_graph, write_questions


@pytest.fixture(scope="module")
def run(base: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explained")
    graph = town_graph()
    write_graph(folder / "graph", graph)
    train = write_questions(folder / "train.jsonl", questions(graph, range(20)))
    overrides = {
        "task.graph": str(folder / "graph"), "train.steps": 2, "train.device": "cpu", "task.concept_width": 8,
        "task.processes": 1,
    }  # fmt: skip
    finetune(base("bert"), "graph_choice", train, folder / "run", overrides=overrides, quiet=True)
    write_questions(folder / "question.json", questions(graph, range(5, 6)))
    return folder / "run"


def test_paths_are_the_facts_of_the_graph(run: Path) -> None:
    explanation = show_paths(run, run.parent / "question.json", device="cpu")
    graph = town_graph()
    facts = {(graph.entities[h], graph.relations[r], graph.entities[t]) for h, r, t in graph.triples().tolist()}
    assert len(explanation.answers) == 5
    scores = [answer.score for answer in explanation.answers]
    assert scores == sorted(scores, reverse=True)
    for answer in explanation.answers:
        assert sum(path.weight or 0 for path in answer.paths) == pytest.approx(1, abs=1e-4)
        for path in answer.paths:
            for hop, first, second in zip(path.hops, path.concepts, path.concepts[1:], strict=False):
                head, tail = (second, first) if hop.reverse else (first, second)
                assert (head, hop.relation, tail) in facts
    assert any(path.concepts[0] == "person5" for answer in explanation.answers for path in answer.paths)
    assert json.loads(json.dumps(explanation.json()))["answers"][0]["text"] == explanation.answers[0].text


EXAMPLE = PathExplanation(
    "고양이는 <어디에> 있나?",
    (
        AnswerView(
            "소파 & 방", 1.5, 0.75,
            (PairView("고양이", "소파", 1.0, (
                PathView(("고양이", "집", "소파"), (Hop("at location", False), Hop("part of", True)), 0.8, 0.5),
                PathView(("고양이", "소파"), (Hop("likes", False),), 0.2, 0.9),
            )),),
        ),
        AnswerView("바다", 0.4, 0.25, ()),
    ),
)  # fmt: skip


def test_text_names_paths_with_their_directions() -> None:
    text = describe_paths(EXAMPLE)
    assert "75.0%  소파 & 방" in text and "80.0%  고양이 -at location-> 집 <-part of- 소파" in text
    assert "no path joins it" in text and describe_paths(EXAMPLE, top=1).count("->") == 1


class WellFormed(HTMLParser):
    """Counts that every element is closed in its order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        if tag not in ("meta", "link", "input", "html"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_in_both_languages_and_escaped() -> None:
    page = render_paths_page(EXAMPLE, "runs/<kagnet>")
    parser = WellFormed()
    parser.feed(page)
    assert not parser.open and parser.names.count("svg") == 1 and parser.names.count("details") == 2
    assert "{{" not in page and "<어디에>" not in page and "<kagnet>" not in page and "소파 &amp; 방" in page
    assert page.count('lang="en"') == page.count('lang="ko"') + 1  # and the page itself
    assert "http" not in page.replace("http-equiv", "")


def test_heavier_paths_have_thicker_lines_and_sides_are_columns() -> None:
    svg = draw_answer(EXAMPLE.answers[0], 0)
    widths = [float(part.split(";")[0]) for part in svg.split("stroke-width:")[1:]]
    assert widths == [5.0, 5.0, 2.0]  # 1 + 5 times the weight: two hops of 0.8, one of 0.2
    assert svg.count('class="concept question"') == svg.count('class="concept answer"') == 1
    assert draw_answer(EXAMPLE.answers[1], 1) == ""


def crowded_paths() -> list[PathView]:
    """Facts that join question and answer at once, several between the same concepts, and columns of two lengths."""
    routes = [
        (["river", "bridge"], ["at"]), (["river", "bridge"], ["related"]), (["cross", "bridge"], ["used_for"]),
        (["river", "water", "bridge"], ["at", "related"]), (["river", "water", "bridge"], ["has", "related"]),
        (["cross", "boat", "bridge"], ["used_for", "at"]), (["river", "boat", "bridge"], ["at", "at"]),
        (["cross", "going on the other side of it", "construction", "bridge"], ["has", "related", "is_a"]),
        (["cross", "river", "bridge"], ["related", "at"]),
    ]  # fmt: skip
    return [
        PathView(tuple(concepts), tuple(Hop(name, False) for name in relations), 1 / len(routes), 1.0)
        for concepts, relations in routes
    ]


def test_parts_of_a_crowded_picture_do_not_cover_each_other() -> None:
    layout = lay_out(crowded_paths())
    assert layout.columns["river"] == layout.columns["cross"] == 0 and layout.columns["bridge"] == 1
    boxes = list(layout.boxes.items())
    for place, (_, box) in enumerate(boxes):
        assert box.y - box.height / 2 > 0 and box.y + box.height / 2 < layout.height
        assert not any(box.overlaps(other) for _, other in boxes[:place])
    for fact, curve in layout.curves.items():
        if {layout.columns[fact.head], layout.columns[fact.tail]} == {0, 1}:  # above what is between
            dots = [Rectangle(*curve.at(t / 50), 1, 1) for t in range(51)]
            assert not any(dot.overlaps(box) for dot in dots for name, box in boxes if 0 < layout.columns[name] < 1)
    labels = list(layout.labels.values())
    for place, label in enumerate(labels):
        assert not any(label.overlaps(other) for other in [*labels[:place], *layout.boxes.values()])
    middles = [curve.at(0.5) for curve in layout.curves.values()]
    assert len(set(middles)) == len(middles)


def test_the_command_writes_a_page(run: Path, tmp_path: Path) -> None:
    question = json.loads((run.parent / "question.json").read_text(encoding="utf-8"))
    result = etude.show.paths(run, question, out=tmp_path / "paths.html", device="cpu")
    page = (tmp_path / "paths.html").read_text(encoding="utf-8")
    assert result.question in page and page.count("<details") == 5
    for bad, message in (("[1]", "There is no file"), ("{", "not one JSON object"), ({"question": "x"}, "choices")):
        with pytest.raises(UserError, match=message):
            show_paths(run, bad, device="cpu")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"ends with \.html"):
        show_paths(run, question, out=tmp_path / "paths.png")


def test_other_runs_have_no_paths(base: Callable[[str], Path], run: Path) -> None:
    with pytest.raises(UserError, match="not fine-tuned"):
        show_paths(base("bert"), {"question": "x", "choices": ["a", "b"]}, device="cpu")


def test_the_server_answers_with_the_same(run: Path) -> None:
    question = json.loads((run.parent / "question.json").read_text(encoding="utf-8"))
    served = ServedModel.open(run, "cpu")
    assert "paths" in served.abilities
    with Server(Service.create([served], Limits()), port=0) as server:
        body = json.dumps({"input": {"question": question["question"], "choices": question["choices"]}}).encode()
        request = urllib.request.Request(f"{server.address}/paths", body, {"Content-Type": "application/json"})
        [answer] = json.load(urllib.request.urlopen(request))["results"]
    expected = explain_paths(TaskModel.open(run, "cpu"), question).json()
    assert [a["text"] for a in answer["answers"]] == [a["text"] for a in expected["answers"]]

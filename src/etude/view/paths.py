"""Why an answer: the schema graph of a question with KagNet's attention, as plain data and as lines of text.

The weight of a path is the attention on its pair times the attention on the path within the pair, so the weights of an
answer's paths sum to 1. A run that counts relation paths attends to nothing: its paths have no weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from etude.errors import UserError
from etude.graph.concept_graph import ConceptGraph
from etude.inference.task_model import TaskModel
from etude.tasks.data.examples import Examples
from etude.tasks.graph_choice import AnswerPaths, GraphChoice


@dataclass(frozen=True)
class Hop:
    """One edge of a path: the relation, read from tail to head where `reverse`."""

    relation: str
    reverse: bool


@dataclass(frozen=True)
class PathView:
    """A path from a concept of the question to one of the answer."""

    concepts: tuple[str, ...]
    hops: tuple[Hop, ...]
    weight: float | None  # of all paths of the answer; None: the run attends to nothing
    score: float  # by TransE; 1 without vectors


@dataclass(frozen=True)
class PairView:
    """A concept of the question with one of the answer."""

    question: str
    answer: str
    weight: float | None
    paths: tuple[PathView, ...]  # the heaviest first


@dataclass(frozen=True)
class AnswerView:
    """One answer: its score, its probability among the answers, and what joins it with the question."""

    text: str
    score: float
    probability: float
    pairs: tuple[PairView, ...]  # the heaviest first

    @property
    def paths(self) -> list[PathView]:
        """All paths, the heaviest first."""
        paths = [path for pair in self.pairs for path in pair.paths]
        return sorted(paths, key=lambda path: -(path.weight or 0.0))


@dataclass(frozen=True)
class PathExplanation:
    """A question with its answers, the most probable first."""

    question: str
    answers: tuple[AnswerView, ...]

    def json(self) -> dict[str, Any]:
        """The same as JSON-ready data."""
        return asdict(self)


def require_graph_task(model: TaskModel | None) -> GraphChoice:
    """The task of a run that reads a graph; UserError where it is another."""
    if model is None or not isinstance(model.task, GraphChoice) or model.task.source is None:
        raise UserError("This run has no paths to show: it was not fine-tuned as graph_choice with task.graph.")
    return model.task


def explain_paths(model: TaskModel, record: Mapping[str, object], place: str = "question") -> PathExplanation:
    """Explain the answers to one question, given as a record of the task's files; it needs no right answer."""
    task = require_graph_task(model)
    question = model.module.parse(dict(record), model.columns, place, labelled=False)
    [answers] = task.explain(model.model, Examples([question], place, [place]))
    assert task.source is not None
    views = [_view_answer(answer, task.source.concepts) for answer in answers]
    return PathExplanation(question.text, tuple(sorted(views, key=lambda view: -view.score)))


def _view_answer(answer: AnswerPaths, concepts: ConceptGraph) -> AnswerView:
    graph = answer.graph
    names = [concepts.names[number].replace("_", " ") for number in graph.concepts.tolist()]
    pairs = []
    for pair, (first, second) in enumerate(graph.pairs.tolist()):
        weight = _plain(answer.pair_weights[pair])
        paths = []
        for path in (graph.path_pairs == pair).nonzero()[0].tolist():
            nodes = [names[node] for node in graph.path_nodes[path].tolist() if node >= 0]
            relations = [relation for relation in graph.path_relations[path].tolist() if relation >= 0]
            within = _plain(answer.path_weights[path])
            share = None if weight is None or within is None else weight * within
            hops = tuple(Hop(*concepts.name_relation(relation)) for relation in relations)
            paths.append(PathView(tuple(nodes), hops, share, float(graph.path_scores[path])))
        paths.sort(key=lambda view: -(view.weight or 0.0))
        pairs.append(PairView(names[first], names[second], weight, tuple(paths)))
    pairs.sort(key=lambda view: -(view.weight or 0.0))
    return AnswerView(answer.text, answer.score, answer.probability, tuple(pairs))


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def format_path(path: PathView) -> str:
    """mina -keeps-> cat <-fears- dog."""
    parts = [path.concepts[0]]
    for hop, concept in zip(path.hops, path.concepts[1:], strict=True):
        parts += [f"<-{hop.relation}-" if hop.reverse else f"-{hop.relation}->", concept]
    return " ".join(parts)


def describe_paths(explanation: PathExplanation, top: int = 3) -> str:
    """The answers with their heaviest paths, for a terminal."""
    lines = [explanation.question]
    for answer in explanation.answers:
        paths = answer.paths
        lines.append(f"{answer.probability:8.1%}  {answer.text}  (score {answer.score:.3f}, {len(paths)} paths)")
        for path in paths[:top]:
            weight = "       " if path.weight is None else f"{path.weight:7.1%}"
            lines.append(f"            {weight}  {format_path(path)}")
        if not paths:
            lines.append("                     no path joins it with the question")
    return "\n".join(lines)

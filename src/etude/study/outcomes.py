"""What became of every single example: a few numbers each, whose sums over any examples give the official score.

A bootstrap asks for the score of thousands of draws of examples. Every score here is a function of sums (right and
all; counts of entities; cells of a confusion matrix; moments), so a draw is a weighting of examples and all draws
are one matrix product. Spearman's ranks are those among all examples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

from etude.errors import UserError
from etude.tasks.data.examples import Examples
from etude.tasks.metrics import average_precision, hit, reciprocal_rank
from etude.tasks.rank import telling
from etude.tasks.span import answers as rules
from etude.tasks.tag.entities import FOUND, GOLD, RIGHT, compare

Answers = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Outcome:
    how: str  # the way from sums to the score
    parts: np.ndarray  # (examples, numbers) float64

    def score(self, weights: np.ndarray | None = None) -> np.ndarray:
        """() of all examples, or (draws,) for (draws, examples) weights: how often each draw holds each example."""
        sums = self.parts.sum(0) if weights is None else weights @ self.parts
        return SCORES[self.how](sums)

    def save(self, path: Path) -> None:
        with open(path, "wb") as file:
            np.lib.format.write_array(file, self.parts, allow_pickle=False)

    @classmethod
    def load(cls, path: Path, how: str) -> Outcome:
        return cls(how, np.load(path, allow_pickle=False))


# --- sums to scores ---------------------------------------------------------------------------------


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    return np.divide(above, below, out=np.zeros(np.broadcast_shapes(above.shape, below.shape)), where=below != 0)


def _mean(sums: np.ndarray) -> np.ndarray:
    return _ratio(sums[..., 0], sums[..., 1])


def _f1(counts: np.ndarray) -> np.ndarray:
    """(..., 3) of RIGHT, FOUND and GOLD."""
    return _ratio(2 * counts[..., RIGHT], counts[..., FOUND] + counts[..., GOLD])


def _macro(sums: np.ndarray) -> np.ndarray:
    """(..., 3 x types): the mean over the types that occur."""
    counts = sums.reshape(*sums.shape[:-1], -1, 3)
    there = counts.sum(-1) > 0
    return _ratio((_f1(counts) * there).sum(-1), there.sum(-1).astype(float))


def _micro(sums: np.ndarray) -> np.ndarray:
    return _f1(sums.reshape(*sums.shape[:-1], -1, 3).sum(-2))


def _matthews(sums: np.ndarray) -> np.ndarray:
    """(..., classes x classes) of gold and predicted; Gorodkin 2004."""
    side = round(sums.shape[-1] ** 0.5)
    table = sums.reshape(*sums.shape[:-1], side, side)
    total = table.sum((-1, -2))
    right = np.trace(table, axis1=-2, axis2=-1)
    gold, predicted = table.sum(-1), table.sum(-2)
    joint = right * total - (gold * predicted).sum(-1)
    spread = np.sqrt((total**2 - (gold**2).sum(-1)) * (total**2 - (predicted**2).sum(-1)))
    return _ratio(joint, spread)


def _pearson(sums: np.ndarray) -> np.ndarray:
    """(..., 6): 1, x, y, xx, yy, xy; x and y centred by the whole set, so that nothing cancels."""
    n, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    spread = np.sqrt(np.maximum(n * xx - x * x, 0) * np.maximum(n * yy - y * y, 0))
    return _ratio(n * xy - x * y, np.where(spread < 1e-12, 0.0, spread))


SCORES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "mean": _mean, "f1": _f1, "micro": _micro, "macro": _macro, "matthews": _matthews, "pearson": _pearson,
}  # fmt: skip


# --- answers to numbers -----------------------------------------------------------------------------


def outcome(kind: str, task: Any, examples: Examples[Any], answers: Answers) -> Outcome:
    """`task` is the built task, which knows its labels, its score and its rules."""
    if kind not in KINDS:
        raise UserError(
            f"A study cannot take the task '{kind}' yet: nobody has said which numbers of an example make its score. "
            f"It takes {', '.join(KINDS)}."
        )
    return KINDS[kind](task, examples, answers)


def _means(values: Sequence[float]) -> Outcome:
    return Outcome("mean", np.stack([np.asarray(values, np.float64), np.ones(len(values))], axis=1))


def _classes(task: Any, examples: Examples[Any], answers: Answers) -> Outcome:
    pairs = [(str(item.label), answer["label"]) for item, answer in zip(examples, answers, strict=True)]
    names = {name: number for number, name in enumerate(task.labels)}
    unknown = next((gold for gold, _ in pairs if gold not in names), None)
    if unknown is not None:
        raise UserError(f"{examples.source}: the label '{unknown}' is not among those that were learnt from.")
    if task.score == "accuracy":
        return _means([float(gold == found) for gold, found in pairs])
    if task.score == "auprc":
        raise UserError(
            "task.score=auprc is no function of sums, so a study cannot draw it: choose micro_f1 or another."
        )
    if task.score == "mcc":
        table = np.zeros((len(pairs), len(names) ** 2))
        for row, (gold, found) in zip(table, pairs, strict=True):
            row[names[gold] * len(names) + names[found]] = 1
        return Outcome("matthews", table)
    counts = np.zeros((len(pairs), len(names), 3))
    for row, (gold, found) in zip(counts, pairs, strict=True):
        row[names[gold], GOLD] += 1
        row[names[found], FOUND] += 1
        row[names[gold], RIGHT] += gold == found
    if task.score == "f1":
        return Outcome("f1", counts[:, task.positive])
    if task.score == "micro_f1":  # over all labels but the one that stands for none
        kept = [number for name, number in names.items() if name != task.settings.nothing]
        return Outcome("micro", counts[:, kept].reshape(len(pairs), -1))
    return Outcome("macro", counts.reshape(len(pairs), -1))


def _choices(task: Any, examples: Examples[Any], answers: Answers) -> Outcome:
    return _means([float(item.answer == answer["answer"]) for item, answer in zip(examples, answers, strict=True)])


def _ranks(task: Any, examples: Examples[Any], answers: Answers) -> Outcome:
    measures: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
        "mrr": reciprocal_rank, "map": average_precision, "hit@1": lambda scores, relevant: hit(scores, relevant, 1),
    }  # fmt: skip
    measure, kept = measures[task.score], telling(examples)
    return _means([measure(np.array(answers[n]["scores"]), np.array(examples[n].relevant, dtype=bool)) for n in kept])


def _ratings(task: Any, examples: Examples[Any], answers: Answers) -> Outcome:
    gold = np.array([item.value for item in examples], dtype=np.float64)
    found = np.array([answer["score"] for answer in answers], dtype=np.float64)
    if task.score == "spearman":
        gold, found = rankdata(gold), rankdata(found)
    gold, found = gold - gold.mean(), found - found.mean()
    return Outcome(
        "pearson", np.stack([np.ones(len(gold)), gold, found, gold * gold, found * found, gold * found], axis=1)
    )


def _spans(task: Any, examples: Examples[Any], answers: Answers) -> Outcome:
    measure = rules.exact if task.settings.score == "exact" else rules.f1
    values = []
    for item, answer in zip(examples, answers, strict=True):
        references = [text for text, _ in item.answers or () if rules.NORMALISE[task.rules](text)] or [""]
        values.append(float(measure(answer["answer"], references, task.rules)))
    return _means(values)


def _tags(task: Any, examples: Examples[Any], answers: Answers) -> Outcome:
    pairs: list[tuple[list[str], list[str]]] = []
    for item, answer in zip(examples, answers, strict=True):
        triples = zip(item.words, item.tags, answer["tags"], strict=True)
        kept = [(gold, found) for word, gold, found in triples if not word.isspace()]
        pairs.append(([gold for gold, _ in kept], [found for _, found in kept]))
    if task.score == "accuracy":
        right = [[sum(map(str.__eq__, gold, found)), len(gold)] for gold, found in pairs]
        return Outcome("mean", np.array(right, dtype=np.float64))
    if task.score == "tag_macro_f1":
        counts = [_tag_counts(gold, found) for gold, found in pairs]
    else:
        strict = task.scheme if task.score == "entity_macro_f1" else None
        counts = [compare(gold, found, strict) for gold, found in pairs]
    kinds = sorted({kind for one in counts for kind in one})
    table = np.zeros((len(counts), len(kinds), 3))
    for row, one in zip(table, counts, strict=True):
        for kind, value in one.items():
            row[kinds.index(kind)] = value
    return Outcome("micro" if task.score == "entity_f1" else "macro", table.reshape(len(counts), -1))


def _tag_counts(gold: Sequence[str], found: Sequence[str]) -> dict[str, np.ndarray]:
    counts: dict[str, np.ndarray] = {}
    for one, other in zip(gold, found, strict=True):
        counts.setdefault(one, np.zeros(3))[GOLD] += 1
        counts.setdefault(other, np.zeros(3))[FOUND] += 1
        counts[one][RIGHT] += one == other
    return counts


KINDS: dict[str, Callable[[Any, Examples[Any], Answers], Outcome]] = {
    "classify": _classes, "pair": _classes, "relation": _classes, "choice": _choices, "similarity": _ratings,
    "span": _spans, "tag": _tags, "rank": _ranks,
}  # fmt: skip


# --- without looking --------------------------------------------------------------------------------


def majority(kind: str, train: Examples[Any], test: Examples[Any]) -> list[dict[str, Any]]:
    """What somebody answers who knows only how often each answer occurs in the training examples."""
    if kind in ("classify", "pair", "relation"):
        best = _commonest(str(item.label) for item in train)
        return [{"label": best} for _ in test]
    if kind == "tag":
        best = _commonest(tag for item in train for tag in item.tags)
        return [{"tags": [best] * len(item.words)} for item in test]
    if kind == "similarity":
        return [{"score": float(np.mean([item.value for item in train]))} for _ in test]
    if kind == "choice":
        best = _commonest(str(item.answer) for item in train)
        return [{"answer": int(best)} for _ in test]
    if kind == "rank":
        return [{"scores": [0.0] * len(item.candidates)} for item in test]
    return [{"answer": ""} for _ in test]  # span: no answer


def _commonest(names: Any) -> str:
    counts = Counter(names)
    return min(counts, key=lambda name: (-counts[name], name))

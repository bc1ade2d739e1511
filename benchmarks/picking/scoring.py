"""The one scorer of every side: accuracy of labels, entity F1 (conlleval's rules) of tags."""

from __future__ import annotations

from collections.abc import Sequence

from etude.tasks.tag.entities import Ratio, compare

from .data import Record, Task

Answer = str | list[str]  # a label, or the tags of a sentence


def score_answers(task: Task, test: Sequence[Record], answers: Sequence[Answer]) -> float:
    """Score answers to the test examples, between 0 and 1."""
    if len(answers) != len(test):
        raise ValueError(f"{task.name}: {len(answers)} answers to {len(test)} examples.")
    if task.kind != "tag":
        return sum(record["label"] == answer for record, answer in zip(test, answers, strict=True)) / len(test)
    pairs = zip(test, answers, strict=True)
    counts = [count for record, tags in pairs for count in compare(record["ner"], list(tags)).values()]
    return Ratio.of(sum(counts[1:], start=counts[0])).f1

"""Every task goes through the same door: fine-tuned, scored by its official metric, saved, opened, asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.inference.task_model import TaskModel
from etude.recipes.datasets import DATASETS
from etude.runs.task_plan import Plan, task_kinds
from etude.tasks import base as tasks_base
from etude.transfer.error_report import write_report
from etude.transfer.finetune import finetune
from tests.tasks.labelled_records import records

INPUTS: dict[str, Any] = {
    "classify": "film good plot",
    "pair": "film good plot\tfilm",
    "similarity": "film good plot\tfilm",
    "choice": {"question": "plot", "choices": ["bad", "good"]},
    "rank": {"query": "plot", "candidates": ["bad", "good", "film bad"]},
    "relation": {"sentence": "film good", "subject": {"start": 0, "end": 4}, "object": {"start": 5, "end": 9}},
    "tag": {"tokens": ["film", "good", "plot"]},
    "span": "who\tfilm good plot",
}
WANTED: dict[str, Callable[[dict[str, Any]], bool]] = {
    "classify": lambda answer: answer["label"] == "good",
    "pair": lambda answer: answer["label"] == "good",
    "similarity": lambda answer: answer["score"] > 2,
    "choice": lambda answer: answer["text"] == "good",
    "rank": lambda answer: answer["best"] == "good",
    "relation": lambda answer: answer["label"] == "likes",
    "tag": lambda answer: answer["tags"] == ["O", "B-X", "O"],
    "span": lambda answer: bool(answer["nbest"]),
}


def same(one: Any, other: Any) -> bool:
    """Equal, numbers to 1e-5."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return abs(one - other) <= 1e-5 * max(1.0, abs(one))
    return bool(one == other)


@pytest.mark.parametrize("task", sorted(INPUTS))
def test_from_a_file_to_an_answer(
    base: Callable[[str], Path], tmp_path: Path, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = []
    for name, seed in (("train", 0), ("dev", 1)):
        files.append(tmp_path / f"{name}.jsonl")
        lines = "".join(json.dumps(record) + "\n" for record in records(task, 64 if seed == 0 else 24, seed))
        files[-1].write_text(lines, encoding="utf-8")
    overrides = {"train.epochs": 6, "train.lr": 5e-3, "train.batch_examples": 16, "task.dropout": 0.0}
    if task == "span":
        overrides |= {"task.length": 32, "task.answer": 3}
    if task == "relation":
        overrides |= {"train.epochs": 10, "task.pooling": "mean"}
    run = finetune(base("bert"), task, files[0], tmp_path / "run", dev=files[1], overrides=overrides, quiet=True)
    plan = Plan.read(run.folder)
    assert plan.score in plan.scores and all(plan.score in line for line in run.metrics("valid"))
    assert plan.scores[plan.score]["value"] > (0.5 if task == "span" else 0.8)
    tuned = TaskModel.open(run.folder)
    again = tuned.evaluate(files[1])
    assert {name: score.json() for name, score in again.items()} == plan.scores, "facts found on dev are saved"
    (answer,) = tuned.predict([INPUTS[task]])
    assert WANTED[task](json.loads(json.dumps(answer)))

    examples = tuned.read(files[1])
    answers = tuned.predict(examples)
    judged, counts = tuned.task.judge(examples, answers), tuned.task.confusion(examples, answers)
    assert len(judged) == len(examples)
    write_report(tmp_path / "report.html", "a <title>", again, examples, judged, counts)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "a &lt;title&gt;" in page and plan.score.replace("_", " ") in page
    assert ("Confusion" in page) == (task in ("classify", "pair", "relation", "tag"))
    assert page.count("<tr>") > sum(not item.correct for item in judged)
    if task == "span":
        assert plan.facts["null"] is True
        tuned.write(answers, tmp_path / "predictions.json")
        for name in ("predictions", "predictions.nbest", "predictions.null_odds"):
            assert len(json.loads((tmp_path / f"{name}.json").read_text())) == 24

    # neither order nor company nor the way in changes an answer
    order = np.random.default_rng(0).permutation(len(examples)).tolist()
    shuffled = tuned.predict(examples.part(order))
    streamed = list(tuned.stream(files[1].read_text(encoding="utf-8").splitlines(keepends=True)))
    monkeypatch.setattr(tasks_base, "TOKENS", 1)
    alone = tuned.predict(examples)
    assert all(same(shuffled[place], answers[number]) for place, number in enumerate(order))
    assert all(map(same, alone, answers)) and all(map(same, streamed, answers))


def test_named_data_sets_have_a_kind() -> None:
    kinds = task_kinds()
    assert set(INPUTS) <= set(kinds)
    assert {item.kind for item in DATASETS.values()} <= set(kinds)


def test_data_sets_by_name(base: Callable[[str], Path], tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text("".join(json.dumps(item) + "\n" for item in records("pair", 8, 0)), encoding="utf-8")
    for number, (changes, score) in enumerate([({}, "f1"), ({"task.score": "mcc"}, "mcc")]):
        run = finetune(base("bert"), "mrpc", file, tmp_path / str(number), quiet=True,
                       overrides={"train.steps": 1, **changes})  # fmt: skip
        plan = Plan.read(run.folder)
        assert plan.kind == "pair" and plan.settings.score == score, "what a person sets counts first"

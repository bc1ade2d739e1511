"""Every task goes through the same door: fine-tuned, scored by its official metric, saved, opened, asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.transfer.finetune import finetune
from etude.transfer.plan import Plan, task_kinds
from etude.transfer.report import write_report
from etude.transfer.tuned import Tuned

WORDS = ["film", "plot", "actor", "very", "really", "not"]


def records(task: str, count: int, seed: int) -> list[dict[str, Any]]:
    draw = np.random.default_rng(seed)
    made: list[dict[str, Any]] = []
    for number in range(count):
        filler = [str(word) for word in draw.choice(WORDS, 3)]
        word = ("good", "bad")[draw.integers(2)]
        text = " ".join([*filler[:1], word, *filler[1:]])
        if task == "pair":
            made.append({"text_a": text, "text_b": "film", "label": word})
        elif task == "similarity":
            made.append({"text_a": text, "text_b": "film", "score": 4.0 if word == "good" else 1.0})
        elif task == "choice":
            answer = int(draw.integers(2))
            made.append({"question": "plot", "choices": ["bad", "good"][:: 1 if answer else -1], "answer": answer})
        elif task == "span":
            places = [] if number % 4 == 3 else [{"text": word, "answer_start": text.index(word)}]
            asked = "who" if places else "where"
            made.append({"id": str(number), "context": text, "question": asked, "answers": places,
                         "is_impossible": not places})  # fmt: skip
    return made


INPUTS: dict[str, Any] = {
    "pair": "film good plot\tfilm",
    "similarity": "film good plot\tfilm",
    "choice": {"question": "plot", "choices": ["bad", "good"]},
    "span": "who\tfilm good plot",
}


@pytest.mark.parametrize("task", sorted(INPUTS))
def test_from_a_file_to_an_answer(base: Callable[[str], Path], tmp_path: Path, task: str) -> None:
    files = []
    for name, seed in (("train", 0), ("dev", 1)):
        files.append(tmp_path / f"{name}.jsonl")
        lines = "".join(json.dumps(record) + "\n" for record in records(task, 64 if seed == 0 else 24, seed))
        files[-1].write_text(lines, encoding="utf-8")
    overrides = {"train.epochs": 6, "train.lr": 5e-3, "train.batch_examples": 16, "task.dropout": 0.0}
    if task == "span":
        overrides |= {"task.length": 32, "task.answer": 3}
    run = finetune(base("bert"), task, files[0], tmp_path / "run", dev=files[1], overrides=overrides, quiet=True)
    plan = Plan.read(run.folder)
    assert plan.score in plan.scores and all(plan.score in line for line in run.metrics("valid"))
    assert plan.scores[plan.score]["value"] > (0.5 if task == "span" else 0.8)
    tuned = Tuned.open(run.folder)
    again = tuned.evaluate(files[1])
    assert {name: score.json() for name, score in again.items()} == plan.scores, "facts found on dev are saved"
    (answer,) = tuned.predict([INPUTS[task]])
    json.dumps(answer)
    examples = tuned.read(files[1])
    judged = tuned.task.judge(examples, tuned.predict(examples))
    assert len(judged) == len(examples)
    write_report(tmp_path / "report.html", "a <title>", again, examples, judged)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "a &lt;title&gt;" in page and plan.score in page and ("Confusion" in page) == (task == "pair")
    assert page.count("<tr>") > sum(not one.right for one in judged)
    if task == "similarity":
        assert answer["score"] > 2
    if task == "pair":
        assert answer["label"] == "good"
    if task == "choice":
        assert answer["text"] == "good"
    if task == "span":
        assert plan.facts["null"] is True
        tuned.write(tuned.read(files[1]), tmp_path / "predictions.json")
        assert len(json.loads((tmp_path / "predictions.json").read_text())) == 24


def test_every_module_keeps_the_contract() -> None:
    kinds = task_kinds()
    assert {"classify", "pair", "similarity", "choice", "span"} <= set(kinds)
    for module in kinds.values():
        assert module.SUMMARY and module.COLUMNS and module.Settings()
        assert set(getattr(module, "INPUTS", ())) <= set(module.COLUMNS)

"""Linear probes: features computed once, heads solved, and runs that answer as the probe does."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from etude.errors import UserError
from etude.inference.opening import open_pretrained
from etude.inference.task_model import TaskModel
from etude.models.transfer_settings import TransferSettings
from etude.runs.task_plan import Plan, task_module
from etude.tasks import base as tasks_base
from etude.transfer import linear_solver
from etude.transfer import probe as probe_module
from etude.transfer.finetune import finetune
from etude.transfer.probe import Features, Probe, Representation, supports
from tests.tasks.labelled_records import records
from tests.transfer.test_every_task import same

Bases = Callable[[str], Path]
KINDS = ("choice", "classify", "pair", "rank", "relation", "similarity", "span", "tag")


@pytest.fixture(autouse=True)
def _short_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two folds and three penalties: how one is chosen among more is looked at in test_linear_solver.py."""
    monkeypatch.setattr(linear_solver, "INNER_FOLDS", 2)
    monkeypatch.setattr(linear_solver, "PENALTIES", (1.0, 0.1, 0.03))


def write_examples(path: Path, kind: str, count: int, seed: int = 0) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records(kind, count, seed)), encoding="utf-8")
    return path


def make_probe(base: Path, kind: str, file: Path, **transfer: Any) -> tuple[Probe, Features]:
    module = task_module(kind)
    settings = module.Settings()
    examples = module.read(file)
    facts = module.learn(examples, settings)
    probe = Probe(open_pretrained(base), kind, settings, facts, "cpu", TransferSettings(probe=True, **transfer))
    return probe, probe.features(examples)


def accuracy(kind: str, probe: Probe, features: Features, answers: list[dict[str, Any]], indices: list[int]) -> float:
    scoring = probe.module.scoring(probe.settings, probe.facts)
    outcome = scoring.outcome(features.examples.part(indices), answers)
    return float(outcome.score())


@pytest.mark.parametrize("kind", KINDS)
def test_a_written_run_answers_as_the_probe(base: Bases, tmp_path: Path, kind: str) -> None:
    file = write_examples(tmp_path / "train.jsonl", kind, 80)
    probe, features = make_probe(base("bert"), kind, file)
    train, valid = list(range(60)), list(range(60, 80))
    head = probe.fit(features, train)
    answers = probe.predict(head, features, valid)
    assert accuracy(kind, probe, features, answers, valid) > 0.7

    run = probe.write(head, tmp_path / "run", file)
    plan = Plan.read(run.folder)
    assert run.finished and plan.transfer.frozen and plan.transfer.probe and "linear probe" in (
        run.folder / "README.md").read_text(encoding="utf-8")  # fmt: skip
    opened = TaskModel.open(run.folder, "cpu")
    again = opened.predict(features.examples.part(valid))
    assert all(map(same, again, answers)), (again[0], answers[0])


@pytest.mark.parametrize("family", ["gpt", "static", "recurrent"])
def test_other_families(base: Bases, tmp_path: Path, family: str) -> None:
    for kind in ("classify", "pair"):
        file = write_examples(tmp_path / f"{kind}.jsonl", kind, 60)
        probe, features = make_probe(base(family), kind, file)
        head = probe.fit(features, range(40))
        answers = probe.predict(head, features, range(40, 60))
        assert accuracy(kind, probe, features, answers, list(range(40, 60))) > 0.7
        run = probe.write(head, tmp_path / kind, file)
        again = TaskModel.open(run.folder, "cpu").predict(features.examples.part(range(40, 60)))
        assert all(map(same, again, answers))


def test_every_representation_is_what_its_run_reads(base: Bases, tmp_path: Path) -> None:
    """Features of each choice equal what the head of a run with those settings reads."""
    file = write_examples(tmp_path / "train.jsonl", "pair", 40)
    probe, features = make_probe(base("bert"), "pair", file)
    readings = {each.reading for each in probe.readers}
    assert readings == {None, "apart"} and len(probe.readers) == 8
    for number, representation in enumerate(probe.readers):
        kept = {representation: features.arrays[representation]}
        alone = Features(features.examples, features.counts, kept, features.rows)
        head = probe.fit(alone, range(40))
        assert head.representation == representation
        answers = probe.predict(head, alone, range(40))
        run = probe.write(head, tmp_path / str(number), file)
        assert all(map(same, TaskModel.open(run.folder, "cpu").predict(features.examples), answers)), representation


def test_features_do_not_hang_on_company(base: Bases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_examples(tmp_path / "train.jsonl", "tag", 20)
    probe, together = make_probe(base("bert"), "tag", file)
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(tasks_base, "TOKENS", 1)
    alone = probe.features(together.examples, on_batch=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (20, 20) and len(calls) == 20
    for representation, array in together.arrays.items():
        np.testing.assert_allclose(alone.arrays[representation], array, atol=1e-5)
    with pytest.raises(TimeoutError, match="1 of 20"):
        probe.features(together.examples, deadline=time.monotonic())


def test_spans_in_several_windows(base: Bases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts longer than a window: one row a question, and the run answers as the probe."""
    rng = np.random.default_rng(0)
    lines = []
    for number in range(60):
        words = [str(word) for word in rng.choice(["film", "plot", "actor", "very", "not"], 40)]
        words[int(rng.integers(40))] = "good"
        context = " ".join(words)
        answer = {"text": "good", "answer_start": context.index("good")}
        lines.append(json.dumps({"id": str(number), "question": "who", "context": context, "answers": [answer]}) + "\n")
    (tmp_path / "train.jsonl").write_text("".join(lines), encoding="utf-8")
    module = task_module("span")
    settings = module.Settings(length=24, stride=8, answer=3)
    examples = module.read(tmp_path / "train.jsonl")
    probe = Probe(open_pretrained(base("bert")), "span", settings, module.learn(examples, settings), "cpu")
    features = probe.features(examples)
    assert features.counts.sum() > len(examples) * 60  # windows overlap: tokens are read more than once
    head = probe.fit(features, range(40))
    answers = probe.predict(head, features, range(40, 60))
    assert accuracy("span", probe, features, answers, list(range(40, 60))) > 0.9
    run = probe.write(head, tmp_path / "run", tmp_path / "train.jsonl")
    again = TaskModel.open(run.folder, "cpu").predict(examples.part(range(40, 60)))
    assert all(map(same, again, answers))
    monkeypatch.setattr(probe_module, "MOST_BYTES", 1000)
    with pytest.raises(UserError, match="tokens would take 0 GiB of memory"):
        probe.features(examples)
    with pytest.raises(UserError, match=r"task\.null=head"):
        null = module.Settings(null="head")
        Probe(open_pretrained(base("bert")), "span", null, {"null": True, "threshold": 0.0}, "cpu")


def test_unlabelled_and_unseen_examples(base: Bases, tmp_path: Path) -> None:
    file = write_examples(tmp_path / "train.jsonl", "classify", 60)
    probe, features = make_probe(base("bert"), "classify", file)
    head = probe.fit(features, range(60))
    unseen = probe.module.read(file, {}, labelled=False)
    assert probe.predict(head, probe.features(unseen), [3, 1]) == probe.predict(head, features, [3, 1])


def test_scaled_logits(base: Bases, tmp_path: Path) -> None:
    file = write_examples(tmp_path / "train.jsonl", "classify", 40)
    probe, features = make_probe(base("bert"), "classify", file)
    head = probe.fit(features, range(40))
    logits = np.concatenate(probe.logits(head, features, range(40))) / 2.5
    wanted = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    scaled = probe.predict(head.scale_logits(2.5), features, range(40))
    np.testing.assert_allclose([list(answer["scores"].values()) for answer in scaled], wanted, atol=1e-6)


def test_by_a_setting_of_finetune(base: Bases, reviews: tuple[Path, Path], tmp_path: Path) -> None:
    before = load_file(base("bert") / "model.safetensors")
    run = finetune(base("bert"), "classify", reviews[0], tmp_path / "run", dev=reviews[1], quiet=True,
                   overrides={"transfer.probe": True})  # fmt: skip
    plan = Plan.read(run.folder)
    assert plan.scores["accuracy"]["value"] > 0.9 and not (run.folder / "checkpoints").exists()
    assert TaskModel.open(run.folder).evaluate(reviews[1])["accuracy"].json() == plan.scores["accuracy"]
    after = load_file(base("bert") / "model.safetensors")
    assert all((before[name] == after[name]).all() for name in before)
    named = finetune(base("bert"), "classify", reviews[0], tmp_path / "named", quiet=True,
                     overrides={"transfer.probe": True, "transfer.layers": [1, 2], "task.pooling": "max"})  # fmt: skip
    plan = Plan.read(named.folder)
    assert plan.transfer.layers == [1, 2] and plan.transfer.combine == "concat" and plan.settings.pooling == "max"


def test_equal_texts_are_held_out_together(base: Bases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, solve, seen = write_examples(tmp_path / "train.jsonl", "classify", 20), probe_module.choose_and_fit, []
    file.write_text(file.read_text(encoding="utf-8") * 2, encoding="utf-8")

    def spied(features: Any, targets: Any, outputs: int, seed: int, groups: np.ndarray) -> Any:
        seen.append(groups)
        return solve(features, targets, outputs, seed, groups)

    monkeypatch.setattr(probe_module, "choose_and_fit", spied)
    finetune(base("static"), "classify", file, tmp_path / "run", overrides={"transfer.probe": True})
    assert seen[0].tolist() == [*range(20), *range(20)]  # numbers, not hashes: folds are dealt out by their order


def test_what_a_probe_cannot_do(base: Bases, reviews: tuple[Path, Path], tmp_path: Path) -> None:
    assert [kind for kind in (*KINDS, "entity_typing") if not supports(kind)] == ["entity_typing"]
    for overrides, words in (
        ({"transfer.probe": True, "task.head": "mlp"}, "task.head=mlp"),
        ({"transfer.probe": True, "transfer.frozen": False}, "drop transfer.frozen=false"),
        ({"transfer.probe": True, "distill.teacher": "x"}, "not from a teacher"),
    ):
        with pytest.raises(UserError, match=words):
            finetune(base("bert"), "classify", reviews[0], tmp_path / "run", overrides=overrides, quiet=True)
    file = write_examples(tmp_path / "typing.jsonl", "entity_typing", 8)
    with pytest.raises(UserError, match="cannot do the task entity_typing"):
        finetune(base("bert"), "entity_typing", file, tmp_path / "run", overrides={"transfer.probe": True}, quiet=True)
    assert not (tmp_path / "run").exists()


def test_one_setting_is_one_representation(base: Bases, tmp_path: Path) -> None:
    file = write_examples(tmp_path / "train.jsonl", "classify", 20)
    probe, _ = make_probe(base("bert"), "classify", file, layers=[-1])
    assert list(probe.readers) == [Representation((2,), "concat", "mean"), Representation((2,), "concat", "start")]

"""Every kind of task keeps the contract of tasks/base.py: the same checks for each, whatever it is."""

from __future__ import annotations

import json
import typing
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from etude.chance import Chance
from etude.errors import UserError
from etude.hub.checkpoint_writer import AUTO_CLASSES
from etude.kinds import CONTRACTS
from etude.models import transformer
from etude.runs.task_plan import task_kinds
from etude.tasks.base import Task, TaskKind
from etude.tasks.data.examples import Examples
from etude.tasks.prompt_form import ChoicePrompt, LabelPrompt, WritePrompt
from etude.tasks.published_head import EncoderFamily
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.train.padding import pad_batch
from etude.train.static_batch import hide_host_values
from etude.transfer.prompt_file import PromptFile
from tests.device_waits import RefuseWaits, let_meta_stand_in
from tests.tasks.labelled_records import WORDS, records

KINDS = task_kinds()
DOCS = Path(__file__).resolve().parents[2] / "docs" / "tasks.md"
COUNT = 40
every_kind = pytest.mark.parametrize("name", sorted(KINDS))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train("word:60", [" ".join([*WORDS, "good bad who where likes"])] * 3)


def build_model(tokenizer: Tokenizer) -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"layers": 1, "width": 16, "heads": 2, "vocab": tokenizer.vocab, "context": 64}
    return transformer.build(transformer.Settings(**sizes, segments=2, pooler=True, init_deviation=0.5))


def read(kind: TaskKind, name: str, folder: Path, seed: int = 0) -> Examples[Any]:
    file = folder / f"{seed}.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records(name, COUNT, seed)), encoding="utf-8")
    return kind.read(file)


def build(kind: TaskKind, examples: Examples[Any], tokenizer: Tokenizer, **settings: Any) -> tuple[Any, Task[Any]]:
    model = build_model(tokenizer)
    chosen = kind.Settings(**settings)
    task = kind.build(chosen, model, tokenizer, kind.learn(examples, chosen))
    for parameter in task.parameters():  # a new head gives all examples nearly the same answer
        torch.nn.init.normal_(parameter)
    return model, task


def scores_of(kind: TaskKind) -> list[str | None]:
    """What the setting `score` may be, or None where a kind has but one."""
    if "score" not in kind.Settings.model_fields:
        return [None]
    annotation = kind.Settings.model_fields["score"].annotation
    choices = [annotation, *typing.get_args(annotation)]
    return next(list(typing.get_args(one)) for one in choices if typing.get_origin(one) is Literal)


def test_the_names_of_the_contract() -> None:
    methods = [name for name, value in vars(TaskKind).items() if callable(value) and not name.startswith("_")]
    assert [*TaskKind.__annotations__, *methods] == list(CONTRACTS["tasks"])
    assert len(KINDS) >= 8


@every_kind
def test_it_says_what_it_is(name: str) -> None:
    kind = KINDS[name]
    assert kind.SUMMARY and kind.SCORES and kind.FILES and kind.Settings()
    assert set(kind.INPUTS) <= set(kind.COLUMNS) and set(kind.TEXTS) <= set(kind.COLUMNS)
    assert all(ending.startswith(".") for ending in kind.FILES)
    assert f"`{name}`" in DOCS.read_text(encoding="utf-8")


@every_kind
def test_records_are_examples_with_and_without_labels(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    examples = read(kind, name, tmp_path)
    parsed = [kind.parse(dict(record), {}, "here") for _, record in kind.records(tmp_path / "0.jsonl")]  # type: ignore[arg-type]
    assert parsed == examples.items
    assert len(kind.read(tmp_path / "0.jsonl", labelled=False)) == COUNT


@every_kind
def test_strata_are_classes(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    strata = [kind.strata(example) for example in read(kind, name, tmp_path)]
    assert all(isinstance(label, str) for labels in strata for label in labels)
    assert all(strata) or not any(strata), "either every example has classes or none has"
    assert len(set().union(*strata)) != 1


@every_kind
def test_the_majority_is_scored_without_a_model(name: str, tmp_path: Path) -> None:
    kind, settings = KINDS[name], KINDS[name].Settings()
    train, test = read(kind, name, tmp_path), read(kind, name, tmp_path, seed=1)
    scoring = kind.scoring(settings, kind.learn(train, settings))
    answers = kind.majority(train, test)
    assert len(answers) == len(test) and json.dumps(answers)
    outcome = scoring.outcome(test, answers)
    assert -1 <= float(outcome.score()) < 1
    assert len(outcome.parts) == COUNT


@every_kind
def test_outcomes_give_the_official_score(name: str, tmp_path: Path, tokenizer: Tokenizer) -> None:
    kind = KINDS[name]
    examples = read(kind, name, tmp_path)
    for score in scores_of(kind):
        settings: dict[str, Any] = {} if score is None else {"score": score}
        if "nothing" in kind.Settings.model_fields:
            settings["nothing"] = kind.majority(examples, examples)[0]["label"]
        model, task = build(kind, examples, tokenizer, **settings)
        if score is not None:
            assert task.score == score
        answers = task.predict(model, examples)
        assert json.loads(json.dumps(answers)) == answers
        if score == "auprc":
            with pytest.raises(UserError, match="no function of sums"):
                task.outcome(examples, answers)
            continue
        outcome = task.outcome(examples, answers)
        official = task.evaluate(model, examples, intervals=False)[task.score].value
        assert float(outcome.score()) == pytest.approx(official, abs=1e-9), score
        # sacrebleu smooths an order without a match by a half of one, however many examples there are
        if outcome.statistic != "bleu" or outcome.parts.sum(0).all():
            doubled = outcome.score(np.full((3, len(outcome.parts)), 2.0))
            assert doubled == pytest.approx([official] * 3, abs=1e-9), "a resample that has every example twice"
        without_model = kind.scoring(task.settings, task.facts()).outcome(examples, answers)  # type: ignore[attr-defined]
        assert (without_model.parts == outcome.parts).all()


@every_kind
def test_errors_are_listed(name: str, tmp_path: Path, tokenizer: Tokenizer) -> None:
    kind = KINDS[name]
    examples = read(kind, name, tmp_path)
    model, task = build(kind, examples, tokenizer)
    answers = task.predict(model, examples)
    errors = task.judge(examples, answers)
    assert len(errors) == len(examples) and all(error.text and error.gold and error.predicted for error in errors)
    counted = task.confusion(examples, answers)
    assert counted is None or counted[1].total()
    assert all(json.dumps(content) for content in task.official_files(answers).values())


@every_kind
def test_it_has_a_published_head_or_says_why_not(name: str, tmp_path: Path, tokenizer: Tokenizer) -> None:
    kind = KINDS[name]
    model, task = build(kind, read(kind, name, tmp_path), tokenizer)
    for family in (EncoderFamily("BERT", "pooler"), EncoderFamily("DistilBERT", "mlp"), EncoderFamily("ELECTRA", None)):
        head = task.published_head(model, family)
        if head is None:
            continue
        assert head.ending in AUTO_CLASSES and json.dumps(dict(head.config))
        assert all(misfit.strip() for misfit in head.misfits)
        if not head.misfits:
            own = {f"{layer}.{part}" for layer in head.layers.values() for part in ("weight", "bias")}
            assert own == set(head.weights)


@every_kind
def test_it_is_put_in_a_prompt_or_refused(name: str, tmp_path: Path) -> None:
    kind, file = KINDS[name], tmp_path / "prompt.yaml"
    examples = read(kind, name, tmp_path)
    field = "text" if kind.PROMPT is None else kind.PROMPT.fields[0]
    file.write_text(f"kind: {name}\ntest: 0.jsonl\ntemplate: '{{{field}}} ='\n", encoding="utf-8")
    if kind.PROMPT is None:
        with pytest.raises(UserError, match="cannot be put in words"):
            PromptFile.load(file)
        return
    description = PromptFile.load(file)
    for example in examples:
        values = kind.PROMPT.values(example)
        assert set(values) == set(kind.PROMPT.fields)
        assert description.question(example) == f"{values[field]} ="
        assert description.demonstration(example).startswith(description.question(example))
    assert isinstance(kind.PROMPT, (LabelPrompt, ChoicePrompt, WritePrompt))


@pytest.mark.parametrize("name, settings", [*((name, {}) for name in sorted(KINDS)), ("tag", {"head": "bilstm_crf"})])
def test_a_step_waits_for_no_gpu(
    name: str, settings: dict[str, Any], tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where its batches are padded, so that steps are recorded, it reads nothing of the host."""
    let_meta_stand_in(monkeypatch)
    kind = KINDS[name]
    examples = read(kind, name, tmp_path)
    model, task = build(kind, examples, tokenizer, **settings)
    rows = task.rows(examples)
    batch = task.batch([rows[number] for number in range(8)], Chance(0, 0))
    batch = (pad_batch(batch) if task.pads_batches else batch).to("meta")
    if task.pads_batches:
        hide_host_values(batch)
    model.to("meta")
    task.to("meta")
    with RefuseWaits():
        torch.stack([term.sum for term in task.loss(model, batch).values()]).sum().backward()

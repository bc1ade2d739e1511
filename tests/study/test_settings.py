"""What a study file may say, and what it is told when it says something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from etude.errors import UserError
from etude.recipes.document import parse
from etude.runs.task_plan import resolve_settings
from etude.study.budget import parse_budget
from etude.study.label_splits import prepare_labels
from etude.study.settings import Study
from etude.study.text_source import TextSource
from tests.study.tiny_study import TINY, tiny

STUDIES = sorted((Path(__file__).resolve().parents[2] / "studies").glob("*.yaml"))


def test_the_grid(study: Study) -> None:
    assert [entry.name for entry in study.entries()] == ["bert", "gpt"]
    assert study.scored_tasks() == [("topic", 16)]
    assert study.budget.kind == "flops" and study.budget.amounts == [4.6e8]
    assert study.controls() == {"no pre-training": "bert"}
    both = tiny(control={"of": "all"}, claims=[])
    assert both.controls() == {"no pre-training (bert)": "bert", "no pre-training (gpt)": "gpt"}


def test_every_value_that_is_varied_is_an_entry_of_its_own() -> None:
    study = tiny(
        vary={"objective.mask_rate": [0.15, 0.4], "train.lr": [1e-3]}, contenders={"bert": "bert-toy"}, claims=[]
    )
    assert [entry.name for entry in study.entries()] == ["bert mask_rate=0.15 lr=0.001", "bert mask_rate=0.4 lr=0.001"]
    assert study.entries()[1].recipe(study).objective.mask_rate == 0.4


def test_a_recipe_over_triples_is_no_contender() -> None:
    study = tiny(contenders={"graph": "transe-toy"}, claims=[], control={"of": "all"})
    with pytest.raises(UserError, match="transe-toy learns from a graph, and a study reads text"):
        study.entries()[0].recipe(study)


def test_a_section_for_a_gpu_takes_the_place_of_the_others() -> None:
    document = parse(TINY + "gpu:\n  budget: {minutes: 2}\n  seeds: {pretrain: 5}\n", "s.yaml")
    assert Study.from_document(document).budget.kind == "flops"
    on_gpu = Study.from_document(document, gpu=True)
    assert (
        on_gpu.budget.minutes == 2
        and on_gpu.seeds.pretrain == 5
        and on_gpu.tasks == Study.from_document(document).tasks
    )
    with pytest.raises(UserError, match="no section 'gpu'"):
        Study.from_document(parse(TINY, "s.yaml"), gpu=True)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("budget: {flops: 4.6e8}", "budgt: {flops: 4.6e8}", "line {}: 'budgt' is not a part of a study. Did you mean"),
        ("flops: 4.6e8", "flops: 4.6e8, tokens: 3", "exactly one of flops, tokens and minutes"),
        ("flops: 4.6e8", "flops: 5e10x", "line {}: 'study.budget.flops' cannot be \"5e10x\": input should be a list"),
        ("flops: 4.6e8", "flops: [1e8, x]", "line {}: 'study.budget.flops.1' cannot be \"x\": input should be a valid"),
        ("flops: 4.6e8", "flops: -1", "line {}: 'study.budget.flops' cannot be -1: input should be greater than 0."),
        ("recipe: bert-toy", "recipe: bert-toi", "line {}: There is no recipe named 'bert-toi'. Did you mean"),
        ("kind: classify,", "kind: clasify,", "line {}: 'clasify' is not a kind of task. Did you mean 'classify'"),
        ("labels: [16],", "labls: [16],", "line {}: there is no setting 'tasks.topic.labls'"),
        ("world: topic", "world: topic, train: x.jsonl", "one of world, made and train"),
        ("better: bert", "better: brt", "line {}: 'brt' is not in this study. Did you mean 'bert'"),
        ("on: topic@16", "on: topic@17", "topic@16"),
        ("text: {world: 0.05", "text: {wrld: 0.05", "line {}"),
        ("recipe: bert-toy", "recpe: bert-toy", "line {}: there is no setting 'contenders.bert.recpe'"),
        ("name: tiny", "", "'study.name' is missing"),
        ("train.batch_examples", "train.batch_exmples", "line {}: there is no setting 'train.batch_exmples'"),
        ("recipe: bert-toy,", "recipe: bert-toy, transfer: {train.stepz: 5},", "line {}: there is no setting"),
        ("kind: classify,", "kind: classify, set: {task.poling: mean},", "line {}: there is no setting 'task.poling'"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_line(old: str, new: str, words: str) -> None:
    with pytest.raises(UserError) as told:
        Study.from_document(parse(TINY.replace(old, new, 1), "tiny.yaml"))
    line = 1 + TINY[: TINY.index(old)].count("\n")
    assert words.format(line) in str(told.value), str(told.value)
    assert len(str(told.value).splitlines()) == 1, "one message, also where a value may be one of two things"


TRIALS = {"tune_pretraining": {"lr": [1.0, 2.0]}, "contenders.gpt.tune": {"train.clip": [0.5, 1.0]}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget": {"flops": []}}, "the list of flops is empty"),
        ({"tasks.topic.labels": []}, "each 1 or more"),
        ({"tasks.topic.labels": [0, 16]}, "each 1 or more"),
        ({"tasks.topic.labels": -4}, "each 1 or more"),
        ({"vary": {"train.lr": []}}, "at least 1 item"),
        ({"tune": {"train.lr": []}}, "at least 1 item"),
        ({"vary": {"train.lr": [1e-3, 1.00000001e-3]}, "claims": []}, "stands twice"),
        ({"tasks": {"../x": {"kind": "classify", "world": "topic", "labels": 8}}, "claims": []}, "the name of a task"),
        ({"tasks": {"mean": {"kind": "classify", "world": "topic", "labels": 8}}, "claims": []}, "together are called"),
        ({"control.set": {"train.lrr": 1}}, r"no setting 'train\.lrr'"),
        ({**TRIALS, "contenders.bert.tune": {"objective.mask_ratee": [0.1, 0.2]}}, "no setting 'objective.mask_ratee'"),
        ({**TRIALS, "contenders.bert.tune": {"objective.mask_rate": []}}, "at least 1 item"),
    ],
)
def test_what_would_fail_after_hours_or_mean_nothing_is_refused_at_once(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        tiny(**changes)


@pytest.mark.parametrize("budget", ["1.2.3m", ".", "m", "1e", "10 parsecs"])
def test_a_budget_that_is_no_number_is_told(budget: str) -> None:
    with pytest.raises(UserError, match="write a time"):
        parse_budget(budget)


def test_changes_by_dotted_names() -> None:
    assert tiny(**{"seeds.pretrain": 4}).seeds.pretrain == 4
    changed = tiny(**{"set.train.lr": 0.5, "contenders.gpt.set.model.width": 32, "transfer.train.epochs": 7})
    assert changed.set == {"train.lr": 0.5} and changed.contenders["gpt"].set["model.width"] == 32
    assert changed.transfer == {"train.epochs": 7, "train.batch_examples": 8}
    assert [entry.recipe(changed).train.lr for entry in changed.entries()] == [0.5, 0.5]


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.stem)
@pytest.mark.parametrize("gpu", [False, True])
def test_the_shipped_studies_are_sound(file: Path, gpu: bool) -> None:
    """Every file has both: toys on the world, and a real corpus on a GPU."""
    study = Study.load(file, gpu=gpu)
    assert (study.text.world is None) == gpu, "the section for a GPU is about a real corpus"
    assert study.name == file.stem and study.claims, "claims are written before the run"
    for entry in study.entries():
        recipe = entry.recipe(study).resolve(vocab=1000)
        with torch.device("meta"):
            model = recipe.build_model()
        for task in study.tasks.values():
            settings = {**study.transfer, **task.set, **study.contenders[entry.contender].transfer}
            resolve_settings(task.kind, {**settings, "train.precision": "float32"}, model, recipe)


def test_looks_are_planned() -> None:
    assert tiny(**{"rule.looks": [2, 4], "seeds.pretrain": 4}).rule.looks == [2, 4]
    with pytest.raises(UserError, match="no planned look"):
        tiny(**{"rule.looks": [2, 4], "seeds.pretrain": 3})
    with pytest.raises(UserError, match="larger than the one before"):
        tiny(**{"rule.looks": [4, 2], "seeds.pretrain": 4})


def test_an_empty_file_is_named() -> None:
    with pytest.raises(UserError, match=r"^empty\.yaml: this file is empty"):
        Study.from_document(parse("# nothing yet", "empty.yaml"))


def test_more_labels_than_there_are_is_an_error_of_the_plan(tmp_path: Path) -> None:
    source = TextSource(tiny().text, tmp_path)
    with pytest.raises(UserError, match="topic asks for 999,999 labels: the built-in world gives 100,000"):
        prepare_labels(tiny(**{"tasks.topic.labels": 999_999}, claims=[]), "topic", source, "word:100")
    file = tmp_path / "train.jsonl"
    lines = [json.dumps({"text": f"text {number}", "label": "ab"[number % 2]}) for number in range(100)]
    file.write_text("\n".join(lines), encoding="utf-8")
    study = tiny(tasks={"mine": {"kind": "classify", "train": str(file), "labels": 99}}, claims=[])
    with pytest.raises(UserError, match="mine asks for 99 labels, and there are 82"):
        prepare_labels(study, "mine", source, "word:100")


FORMS = [(path, gpu) for path in STUDIES for gpu in (False, True) if not gpu or "\ngpu:" in path.read_text("utf-8")]


@pytest.mark.parametrize(("path", "gpu"), FORMS, ids=[f"{path.stem}{' gpu' * gpu}" for path, gpu in FORMS])
def test_who_is_asked_about_pairs_has_met_both_segments(path: Path, gpu: bool) -> None:
    """A masked model that read single texts would stand behind one that read pairs by what marks the second text."""
    study = Study.load(path, gpu=gpu)
    if not {"pair", "similarity", "span", "choice"} & {task.kind for task in study.tasks.values()}:
        return
    for entry in study.entries():
        recipe = entry.recipe(study)
        if getattr(recipe.model, "segments", 0) > 1:
            objective = recipe.objective.model_dump()
            assert objective.get("sentence", "none") != "none" or objective.get("pair_rate", 0) > 0, entry.name

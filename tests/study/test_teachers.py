"""Contenders with a teacher: planned after it, trained on it seed by seed, their cost counted with its reading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from etude.errors import UserError
from etude.recipes.document import parse
from etude.study import planner
from etude.study.budget import Machine
from etude.study.cells import CellStore
from etude.study.claim_scope import base_cells, claim_cells
from etude.study.plan import Plan
from etude.study.runner import run, select_cells
from etude.study.settings import Study
from etude.study.visit import missing_bases

TEACHERS = """
name: teachers
text: {world: 0.05, valid: 0.1}
budget: {tokens: 4096}
epochs: 50
contenders:
  student: {recipe: distilbert, teacher: bert, flops_of: [bert], set: {model.layers: 1}}
  alone: {recipe: distilbert, flops_of: [bert, student], set: {model.layers: 1}}
  bert: {recipe: bert-toy, set: {model.layers: 2, objective.sentence: none, model.pooler: false}}
set:
  {tokenizer: "wordpiece:500,lower", model.width: 16, model.heads: 2, model.segments: 0, model.context: 32,
   model.positions: rotary, objective.length: 32, train.batch_tokens: 256, train.micro_tokens: null, train.lr: 1e-3}
tasks:
  topic: {kind: classify, world: topic, labels: [16], columns: {text: text}, dev_size: 16, test_size: 40}
transfer: {train.epochs: 1, train.batch_examples: 8}
control: {of: [bert]}
curve: 2
claims:
  - {claim: A teacher helps, better: student, than: alone}
"""


def load(**changes: Any) -> Study:
    return Study.from_document(parse(TEACHERS, "teachers.yaml"), changes=changes)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return planner.make_plan(load(), tmp_path_factory.mktemp("plan"), device="cpu")


def _row(plan: Plan, name: str) -> Any:
    return next(row for row in plan.rows if row.name == name)


def test_a_distillation_starts_from_its_teacher_of_the_same_seed(plan: Plan) -> None:
    student = plan.cells[plan.bases["student", 0]]
    assert student.kind == "distill" and student.depends_on == plan.bases["bert", 0]
    assert plan.cells[plan.bases["alone", 0]].kind == "pretrain"
    transfer = plan.trials["student", "topic@16", 0, (0, 0)]
    assert base_cells(plan, transfer) == [plan.bases["bert", 0], plan.bases["student", 0]]
    assert [cell.key for cell in select_cells(plan, transfer)] == [*base_cells(plan, transfer), transfer]
    assert plan.bases["bert", 0] in claim_cells(plan, plan.study.claims[0])  # which names neither


def test_flops_count_what_the_teacher_reads(plan: Plan) -> None:
    student, alone, bert = (_row(plan, name) for name in ("student", "alone", "bert"))
    assert student.draft.cost.flops_per_token > 2 * alone.draft.cost.flops_per_token
    per_step = 256 * student.draft.cost.flops_per_token
    assert abs(student.length.flops - bert.length.flops) <= per_step
    assert abs(alone.length.flops - bert.length.flops - student.length.flops) <= per_step
    assert alone.length.tokens > 2 * student.length.tokens


def test_a_student_whose_weights_are_elsewhere_needs_its_teachers_too(plan: Plan, tmp_path: Path) -> None:
    store = CellStore(tmp_path / "cells")
    chain = [plan.bases["bert", 0], plan.bases["student", 0]]
    for key in chain:
        store.result_folder(key).mkdir(parents=True)
        (store.result_folder(key) / "result.json").write_text('{"seconds": 1.0}')
    assert set(missing_bases(store, plan.cells.values())) == set(chain)
    (store.result_folder(chain[1]) / "run").mkdir()
    assert missing_bases(store, plan.cells.values()) == [chain[0]]  # its own transfers are pending


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"contenders.student.teacher": "brt"}, "'brt' is no other contender of this study. Did you mean 'bert'?"),
        ({"contenders.student.teacher": "student"}, "no other contender"),
        ({"contenders.bert.flops_of": ["student"]}, "each wait for what the other spends"),
        ({"contenders.bert.recipe": "gpt1-toy", "contenders.bert.set": {}}, "a teacher is a masked model"),
        ({"vary": {"train.lr": [1e-3, 2e-3]}, "claims": []}, "is several contenders"),
        ({"budget": {"minutes": 1}}, "in flops or tokens"),
        ({"contenders.student.start": "runs/x"}, "leave out start"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_its_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match="(?s)^(teachers.yaml|the change|study).*" + message.replace("?", r"\?")):
        load(**changes)


def test_a_width_without_an_angle_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"distill\.cosine_weight=0"):
        planner.make_plan(load(**{"contenders.student.set": {"model.layers": 1, "model.width": 8}}), tmp_path)


def test_a_student_learns_from_its_teachers_weights(tmp_path: Path) -> None:
    study = load(**{"contenders.alone": {"recipe": "distilbert", "set": {"model.layers": 1}}})
    plan = planner.make_plan(study, tmp_path, device="cpu")
    report = run(study, tmp_path, device="cpu", only=plan.bases["student", 0])
    assert report.failed == []
    store, key = plan.store, plan.bases["student", 0]
    origin = (store.result_folder(key) / "run" / "distill.yaml").read_text(encoding="utf-8")
    assert str(store.result_folder(plan.bases["bert", 0]) / "run") in origin
    assert {"soft", "mlm", "cosine"} <= set(store.result(key)["valid"])
    cell = next(cell for cell in report.results["cells"] if cell["key"] == key)
    assert cell["commands"][0].startswith("etude distill cells/") and "--teacher cells/" in cell["commands"][0]


@pytest.mark.slow
def test_trials_of_a_student_wait_for_those_of_its_teacher(tmp_path: Path) -> None:
    study = load(tune_pretraining={"lr": [1, 2], "share": 0.5}, seeds={"pretrain": 1})
    first = planner.make_plan(study, tmp_path, device="cpu")
    assert first.tunings["student"].waits and not first.tunings["student"].trials
    assert len(first.tunings["bert"].trials) == 2
    report = run(study, tmp_path, device="cpu")
    assert report.failed == []
    plan = planner.make_plan(study, tmp_path, device="cpu")
    assert plan.untuned == [] and len(plan.tunings["student"].trials) == 2
    trial = plan.tunings["student"].trials[0]
    teacher, student = (plan.cells[key] for key in trial.bases)
    assert student.depends_on == teacher.key and teacher.position["seed"] == 1_000
    assert teacher.key not in plan.bases.values()  # no seed of the study taught in a trial
    rate = plan.tunings["bert"].chosen["train.lr"]
    assert f"lr: {rate:g}\n" in teacher.arguments["recipe"]


def test_word_vectors_have_the_clock_of_what_the_others_really_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A contender may spend what two others spend, and a student reads with its teacher: that is the others' time."""
    monkeypatch.setattr(Machine, "tokens_per_second", lambda self, recipe, corpus: 1e4)
    document = parse(TEACHERS, "teachers.yaml")
    common = document.values.pop("set")
    for contender in document.values["contenders"].values():
        contender["set"] = {**common, **contender["set"]}
    words = {"recipe": "skipgram-toy", "set": {"model.width": 16}}
    late = {"recipe": "distilbert", "flops_of": ["words"], "set": {**common, "model.layers": 1}}
    document.values["contenders"] |= {"words": words}
    study = Study.from_document(document)
    rows = {row.name: row for row in planner.make_plan(study, tmp_path / "study", device="cpu").rows}
    bert, alone, student = (rows[name] for name in ("bert", "alone", "student"))
    assert bert.length and alone.length and student.length and bert.draft and student.draft
    slower = student.draft.cost.flops_per_token / bert.draft.cost.flops_per_token
    tokens = (bert.length.tokens + alone.length.tokens + slower * student.length.tokens) / 3
    length = rows["words"].length
    assert length is not None and length.by_clock and length.tokens == pytest.approx(tokens, rel=0.2)
    document.values["contenders"] |= {"late": late}
    late_row = planner.make_plan(Study.from_document(document), tmp_path / "late", device="cpu").rows
    assert next(row for row in late_row if row.name == "late").length is not None, "and nobody waits for ever"

"""A task learnt from a teacher: the terms are the formulas, it stops and goes on, and what is wrong is told."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

import etude
from etude.chance import Chance
from etude.cli.main import app
from etude.errors import UserError
from etude.inference.task_model import TaskModel
from etude.objectives.distillation.teacher import Teacher
from etude.runs.run import Run
from etude.runs.task_plan import Plan
from etude.tasks.distilled_task import DistilledTask, TaskDistillSettings, label_divergence
from etude.transfer import finetune as transfer

Bases = Callable[[str], Path]
Files = tuple[Path, Path]
QUICK = {"train.epochs": 4, "train.lr": 6e-3, "train.batch_examples": 16, "train.log_every": 1}
INSIDE = {f"distill.{name}_weight": 1.0 for name in ("attention", "hidden", "embedding")}
SILENT = {"distill.soft_weight": 0.0}


@pytest.fixture(scope="module")
def teacher(base: Bases, reviews: Files, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("teachers") / "classify"
    etude.finetune(base("bert"), "classify", train=reviews[0], out=out, dev=reviews[1], quiet=True, settings=QUICK)
    return out


@pytest.fixture(scope="module")
def inside(base: Bases, reviews: Files, teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first step: what is inside the teacher."""
    out = tmp_path_factory.mktemp("taught") / "inside"
    etude.finetune(
        base("bert"), "classify", train=reviews[0], out=out, dev=reviews[1], teacher=teacher, quiet=True,
        settings={**QUICK, **INSIDE, **SILENT},
    )  # fmt: skip
    return out


def lesson(teacher: Path, reviews: Files, **ways: Any) -> tuple[Any, DistilledTask, Any]:
    """A student with the weights of another seed, the objective, and a batch."""
    opened = TaskModel.open(teacher, device="cpu")
    torch.manual_seed(5)
    model, task = opened.plan.build(Run.open(teacher).recipe.build_model(), opened.tokenizer)
    taught = DistilledTask(
        task, TaskDistillSettings(teacher=str(teacher), **ways), model, Teacher(opened.model, opened.task)
    )
    model.eval()
    taught.eval()
    rows = task.rows(opened.read(reviews[0]))
    return model, taught, taught.batch([rows[number] for number in range(12)], Chance(0, 0))


def test_the_terms_are_the_formulas(teacher: Path, reviews: Files) -> None:
    ways = {"hard_weight": 0.5, "hidden_weight": 2.0, "attention_weight": 1.0, "embedding_weight": 1.0}
    model, taught, batch = lesson(teacher, reviews, temperature=3.0, **ways)
    terms = taught.loss(model, batch)
    mean = {name: term.sum.item() / term.count for name, term in terms.items()}
    assert {name: term.weight for name, term in terms.items()} == {
        "soft": 1.0, "hard": 0.5, "attention": 1.0, "hidden": 2.0, "embedding": 1.0,
    }  # fmt: skip
    with torch.no_grad():
        scores = taught.task.pooled(model, batch)[0]
        known = taught.teacher.objective.pooled(taught.teacher.model, batch)[0]
        mine, its = model(batch, layers=True).layers, taught.teacher.model(batch, layers=True).layers
        soft = torch.nn.KLDivLoss(reduction="batchmean")((scores / 3).log_softmax(-1), (known / 3).softmax(-1)) * 9
        hidden = sum(
            F.mse_loss(taught.matching.fit(item), other) for item, other in zip(mine[1:], its[1:], strict=True)
        )
        embedding = F.mse_loss(taught.matching.fit(mine[0]), its[0])
    assert mean["soft"] == pytest.approx(soft.item(), rel=1e-5)
    assert mean["hard"] == pytest.approx(F.cross_entropy(scores, batch.labels).item(), rel=1e-5)
    assert mean["hidden"] == pytest.approx(hidden.item(), rel=1e-5)
    assert mean["embedding"] == pytest.approx(embedding.item(), rel=1e-5)
    assert mean["attention"] > 0
    right = taught.metrics(model, batch)["accuracy"]
    assert right.mean == pytest.approx((scores.argmax(-1) == batch.labels).float().mean().item())


def test_the_divergence_has_the_gradient_of_the_papers_cross_entropy() -> None:
    scores = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    known = torch.randn(5, 3, dtype=torch.float64)
    mine = torch.autograd.grad(label_divergence(scores, known, 1.0), scores)[0]
    papers = -(known.softmax(-1) * scores.log_softmax(-1)).sum()
    torch.testing.assert_close(mine, torch.autograd.grad(papers, scores)[0])
    assert label_divergence(scores, scores.detach(), 4.0).item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    "ways", [{}, {"hard_weight": 1.0}, {"soft_weight": 0.0, "attention_weight": 1.0, "hidden_weight": 1.0}]
)
def test_flops_are_those_torch_counts(teacher: Path, reviews: Files, ways: dict[str, float]) -> None:
    model, taught, _ = lesson(teacher, reviews, **ways)
    model.path = taught.teacher.model.path = "reference"  # fused attention is invisible to the counter
    rows = taught.rows(TaskModel.open(teacher, device="cpu").read(reviews[0]))
    batch = taught.batch([rows[0]], Chance(0, 0))
    with FlopCounterMode(display=False) as counter:
        sum(term.sum for term in taught.loss(model, batch).values()).backward()
    assert counter.get_total_flops() == taught.flops(model, batch)


def test_a_student_learns_the_answers_of_its_teacher(
    base: Bases, reviews: Files, teacher: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    tuned = etude.finetune(
        base("bert"), "classify", train=reviews[0], out=out, dev=reviews[1], teacher=teacher, quiet=True, settings=QUICK
    )
    assert tuned.evaluate(reviews[1])["accuracy"].value > 0.9
    lines = Run.open(out).metrics("train")
    assert lines[-1]["loss"] < 0.2 * lines[0]["loss"]
    plan = Plan.read(out)
    assert plan.distill is not None and plan.distill.teacher == str(teacher.resolve())
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "learnt from classify (`" in card and str(teacher.parent) not in card
    assert etude.load(out).encode(["good film"]).shape == (1, 32)


def test_the_inside_first_and_then_the_answers(reviews: Files, teacher: Path, inside: Path, tmp_path: Path) -> None:
    run = Run.open(inside)
    first, last = run.metrics("train")[0], run.metrics("train")[-1]
    for name in ("attention", "hidden", "embedding"):
        assert last[name] < first[name]
    assert "accuracy" not in run.metrics("valid")[-1] and not Plan.read(inside).scores
    for use in (
        lambda item: item.predict(["good"]),
        lambda item: item.evaluate(reviews[1]),
        lambda item: list(item.stream(["x"])),
    ):
        with pytest.raises(UserError, match="its head nothing yet"):
            use(TaskModel.open(inside))
    tuned = etude.finetune(
        inside,
        "classify",
        train=reviews[0],
        out=tmp_path / "x",
        dev=reviews[1],
        teacher=teacher,
        quiet=True,
        settings=QUICK,
    )
    assert tuned.evaluate(reviews[1])["accuracy"].value > 0.9
    with pytest.raises(UserError, match="its head nothing yet"):
        etude.finetune(inside, "classify", train=reviews[0], out=tmp_path / "y", teacher=inside, quiet=True)


def test_it_goes_on_after_a_stop_to_the_same_bits(
    base: Bases, reviews: Files, teacher: Path, inside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from etude.train.loop import Loop

    advance = Loop.advance

    def stop_in_the_middle(self: Loop, step: Any) -> None:
        advance(self, step)
        self.interrupted = self.state.step == 11

    monkeypatch.setattr(Loop, "advance", stop_in_the_middle)
    settings = {**QUICK, **INSIDE, **SILENT, "distill.teacher": str(teacher)}
    out = tmp_path / "run"
    stopped = transfer.finetune(
        base("bert"), "classify", reviews[0], out, dev=reviews[1], overrides=settings, quiet=True
    )
    assert not stopped.finished
    assert TaskModel.open(out).model.width == 32  # what reads it meanwhile does without the projection
    monkeypatch.undo()
    kept = tmp_path / "kept"
    shutil.copytree(out, kept)
    assert transfer.resume(out, quiet=True).finished
    assert (out / "model.safetensors").read_bytes() == (inside / "model.safetensors").read_bytes()
    plan = (kept / "task.yaml").read_text(encoding="utf-8")
    (kept / "task.yaml").write_text(plan.replace(Plan.read(kept).teacher, "f" * 64), encoding="utf-8")
    with pytest.raises(UserError, match="its weights differ"):
        transfer.resume(kept, quiet=True)


def test_the_card_of_an_unfinished_student_prints_the_command_that_goes_on(inside: Path, teacher: Path) -> None:
    """`etude evaluate` and `predict` refuse it: its head has learnt nothing."""
    card = (inside / "README.md").read_text(encoding="utf-8")
    assert "etude finetune . classify --teacher TEACHER" in card and "etude predict" not in card
    assert "etude predict . < lines.txt" in (teacher / "README.md").read_text(encoding="utf-8")


def test_labels_are_the_teachers(base: Bases, reviews: Files, teacher: Path, tmp_path: Path) -> None:
    """Examples at hand may lack one of them, and may not have others."""
    lines = [json.loads(line) for line in reviews[0].read_text(encoding="utf-8").splitlines()]
    item = tmp_path / "one.jsonl"
    item.write_text("".join(json.dumps(line) + "\n" for line in lines if line["label"] == "good"), encoding="utf-8")
    tuned = etude.finetune(
        base("bert"),
        "classify",
        train=item,
        out=tmp_path / "run",
        teacher=teacher,
        quiet=True,
        settings={**QUICK, "train.epochs": 1},
    )
    assert tuned.model.task.labels == ["bad", "good"]
    item.write_text(json.dumps({"text": "good", "label": "fair"}) + "\n", encoding="utf-8")
    with pytest.raises(UserError, match="the label 'fair'"):
        etude.finetune(base("bert"), "classify", train=item, out=tmp_path / "other", teacher=teacher, quiet=True)


def test_the_command_line(base: Bases, reviews: Files, teacher: Path, tmp_path: Path) -> None:
    line = ["finetune", str(base("bert")), "classify", "--train", str(reviews[0]), "--teacher", str(teacher), "-q"]
    done = CliRunner().invoke(app, [*line, "-o", str(tmp_path / "run"), "train.steps=2", "distill.temperature=2"])
    assert done.exit_code == 0, done.output
    plan = Plan.read(tmp_path / "run")
    assert plan.distill is not None and plan.distill.temperature == 2.0


def pairs(folder: Path) -> Path:
    file = folder / "pairs.jsonl"
    rows = [{"text_a": "good film", "text_b": "bad plot", "label": label} for label in ("yes", "no")] * 4
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("bert", {"distill.teacher": None, "distill.temperature": 2}, "name it with --teacher"),
        ("bert", {"distill.temperatur": 2}, "Did you mean 'temperature'?"),
        ("bert", {"distill.teacher": "nowhere"}, "is no teacher"),
        ("bert", SILENT, "nothing is learnt"),
        ("bert", {"transfer.frozen": True}, "leave out transfer.frozen"),
        ("gpt", {}, "in the same direction"),
        ("static", {}, "are Transformers"),
    ],
)
def test_what_does_not_fit_is_told_and_nothing_is_written(
    base: Bases, reviews: Files, teacher: Path, tmp_path: Path, kind: str, changes: dict[str, Any], message: str
) -> None:
    settings = {key: value for key, value in {"distill.teacher": str(teacher), **changes}.items() if value is not None}
    with pytest.raises(UserError) as told:
        etude.finetune(base(kind), "classify", train=reviews[0], out=tmp_path / "run", quiet=True, settings=settings)
    assert message in str(told.value)
    assert not list(tmp_path.iterdir())


def test_a_teacher_of_another_task_is_refused(base: Bases, teacher: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does the task classify, and pair is to be learnt"):
        etude.finetune(base("bert"), "pair", train=pairs(tmp_path), out=tmp_path / "run", teacher=teacher, quiet=True)
    assert not (tmp_path / "run").exists()


def test_pairs_are_learnt_too(base: Bases, tmp_path: Path) -> None:
    file = pairs(tmp_path)
    few = {"train.steps": 2}
    etude.finetune(base("bert"), "pair", train=file, out=tmp_path / "teacher", quiet=True, settings=few)
    tuned = etude.finetune(
        base("bert"), "pair", train=file, out=tmp_path / "run", teacher=tmp_path / "teacher", quiet=True, settings=few
    )
    assert set(tuned.predict([{"text_a": "good", "text_b": "bad"}])[0]["scores"]) == {"no", "yes"}

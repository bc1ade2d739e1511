"""From a teacher to a student's run: what it begins with, what it keeps, what can go wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors import safe_open
from typer.testing import CliRunner

import etude
from etude.chance import Chance
from etude.cli.main import app
from etude.errors import UserError
from etude.objectives.distill import DistillSettings
from etude.pretraining.student import build_student, choose_layers, load_teacher
from etude.recipes.schema import Recipe
from etude.runs.run import Run
from etude.text.corpus.corpus import Corpus

TOKENIZER = "wordpiece:300,lower"
SHAPE = {"model.width": 32, "model.heads": 2, "model.context": 32, "objective.length": 32, "objective.row_tokens": 64}
TRAIN = {"train.batch_tokens": 256, "train.workers": 0, "train.save_every": 3, "train.eval_every": 0,
         "train.eval_tokens": 1024}  # fmt: skip
STUDENT = {**SHAPE, **TRAIN, "model.layers": 2, "train.micro_tokens": None, "train.steps": 6, "train.lr": 1e-3}


@pytest.fixture(scope="module")
def corpus(prepared: Callable[[str], Path]) -> Path:
    return prepared(TOKENIZER)


@pytest.fixture(scope="module")
def teacher(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of three layers, with segments and a sentence task."""
    out = tmp_path_factory.mktemp("teachers") / "bert"
    settings: dict[str, Any] = {**SHAPE, **TRAIN, "model.layers": 3, "train.steps": 4, "model.activation": "gelu"}
    etude.pretrain("bert-toy", corpus, out=out, quiet=True, settings=settings)
    return out


@pytest.fixture(scope="module")
def student(corpus: Path, teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("students") / "student"
    assert etude.distill("distilbert", corpus, out=out, teacher=teacher, quiet=True, settings=STUDENT).finished
    return out


# --- what a student begins with ---------------------------------------------------------------------


def test_layers_are_distilberts() -> None:
    assert choose_layers(6, 12, None) == [0, 2, 4, 7, 9, 11]
    assert choose_layers(3, 3, None) == [0, 1, 2]
    assert choose_layers(2, 12, None) == [0, 11]
    assert choose_layers(2, 4, [3, 1]) == [3, 1]
    for given in ([1], [0, 4], [-1, 0]):
        with pytest.raises(UserError, match="0 to 3, for each of 2"):
            choose_layers(2, 4, given)


def test_a_student_of_all_layers_is_its_teacher(corpus: Path, teacher: Path) -> None:
    """Also the first segment, which a student without segments has in its positions."""
    opened = Corpus.open(corpus)
    recipe = Recipe.load("distilbert", {**STUDENT, "model.layers": 3}).resolve(vocab=opened.tokenizer.vocab)
    model, objective = build_student(recipe, opened, load_teacher(teacher, opened)[0])
    batch = objective.batch([objective.rows(opened, 0)[0]], Chance(0, 0))
    model.eval()
    terms = objective.eval().loss(model, batch)
    assert float(terms["soft"].sum.detach()) == pytest.approx(0, abs=1e-3)
    assert float(terms["cosine"].sum.detach()) == pytest.approx(0, abs=1e-3)
    assert float(terms["mlm"].sum.detach()) > 1


def test_a_student_may_begin_at_random(corpus: Path, teacher: Path) -> None:
    opened = Corpus.open(corpus)
    ways = {"distill.start": "random", "distill.cosine_weight": 0.0}
    recipe = Recipe.load("distilbert", {**STUDENT, **ways, "model.width": 16}).resolve(vocab=opened.tokenizer.vocab)
    first, _ = build_student(recipe, opened, load_teacher(teacher, opened)[0])
    again, _ = build_student(recipe, opened, load_teacher(teacher, opened)[0])
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))


# --- the run ----------------------------------------------------------------------------------------


def test_a_student_is_a_run_like_any_other(student: Path, teacher: Path) -> None:
    run = Run.open(student)
    assert run.recipe.objective_kind == "distill"
    kept = yaml.safe_load((student / "distill.yaml").read_text(encoding="utf-8"))
    assert kept["teacher"] == str(teacher.resolve())
    assert set(kept) == {"teacher", "fingerprint"}
    assert run.recipe.objective.distill == DistillSettings()
    card = (student / "README.md").read_text(encoding="utf-8")
    assert "| teacher | bert, fingerprint" in card and "--teacher TEACHER" in card
    assert str(teacher.parent) not in card
    lines = run.metrics("train")
    assert {"soft", "mlm", "cosine"} <= set(lines[-1])
    guesses = etude.load(student).fill("the [MASK] is in the town .")
    assert len(guesses) == 5


def test_transformers_opens_it(student: Path) -> None:
    hf = pytest.importorskip("transformers")
    theirs = hf.AutoModelForMaskedLM.from_pretrained(student).eval()
    assert type(theirs).__name__ == "DistilBertForMaskedLM"
    loaded = etude.load(student)
    ids = loaded.frame(loaded.tokenizer.encode("the owner of the inn is a baker").ids)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(ids.astype(np.int64))[None]).logits[0].numpy()
    np.testing.assert_allclose(loaded.logits([ids])[0], expected, atol=1e-5)


def test_a_resume_goes_on_to_the_same_bits(student: Path, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    shutil.copytree(student, begun)
    (begun / "model.safetensors").unlink()
    shutil.rmtree(begun / "checkpoints" / "step-000000000006")
    assert Run.open(begun).steps == [3]
    assert etude.resume(begun, quiet=True).finished
    assert (begun / "model.safetensors").read_bytes() == (student / "model.safetensors").read_bytes()


def test_the_command_line(corpus: Path, teacher: Path, tmp_path: Path) -> None:
    words = [f"{key}={'null' if value is None else value}" for key, value in {**STUDENT, "train.steps": 2}.items()]
    line = ["distill", "distilbert", str(corpus), "--teacher", str(teacher), "-o", str(tmp_path / "run"), "-q", *words]
    done = CliRunner().invoke(app, [*line, "distill.temperature=4", "distill.layers=[2, 0]"])
    assert done.exit_code == 0, done.output
    settings = Run.open(tmp_path / "run").recipe.objective.distill
    assert (settings.temperature, settings.layers) == (4.0, [2, 0])


# --- what can be wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"distill.temperatur": 4}, "Did you mean 'temperature'?"),
        ({"distill.temperature": 0}, "greater than 0"),
        ({"model.width": 16}, "set model.width=32, or distill.cosine_weight=0"),
        ({"model.width": 16, "distill.cosine_weight": 0}, "set distill.start=random"),
        (
            {"model.context": 64, "objective.length": 64},
            "set model.context=32 objective.length=32, or less.",
        ),
        ({"model.context": 64}, "The teacher sees 32 tokens: set model.context=32, or less."),
        ({"model.width": 16, "model.context": 64}, "or distill.cosine_weight=0. The teacher sees 32 tokens"),
        ({"distill.layers": [5, 6]}, "0 to 2, for each of 2"),
        ({"objective.sentence": "order", "model.pooler": True}, "no sentence task"),
        ({"train.minutes": 1}, "in steps, tokens or epochs"),
        ({f"distill.{name}_weight": 0 for name in ("soft", "mlm", "cosine")}, "nothing is learnt"),
        ({"distill.attention_weight": 1}, "layers do not divide the teacher's 3"),
        ({"distill.attention_weight": 1, "model.layers": 3, "model.heads": 4}, "set model.heads=2"),
        (  # a student made for BERT-base: one message leads to a student that fits
            {"distill.hidden_weight": 1, "distill.attention_weight": 1, "model.width": 36, "model.heads": 12},
            "set model.width=32 model.heads=2, or distill.cosine_weight=0. Attention is learnt head by head, and the "
            "student has 12, its teacher 2: set model.heads=2, or distill.attention_weight=0. The student's 2 "
            "layers do not divide the teacher's 3: name one for each with distill.layers, from 0 to 2, or "
            "set model.layers=1.",
        ),
    ],
)
def test_what_does_not_fit_is_told_and_nothing_is_written(
    corpus: Path, teacher: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    settings = {key: value for key, value in STUDENT.items() if key != "train.steps" or "train.minutes" not in changes}
    with pytest.raises(UserError) as told:
        etude.distill(
            "distilbert", corpus, out=tmp_path / "run", teacher=teacher, quiet=True, settings={**settings, **changes}
        )
    assert message in str(told.value)
    assert not list(tmp_path.iterdir())


def test_a_teacher_of_another_kind_or_tokenizer_is_refused(
    corpus: Path, teacher: Path, base: Callable[[str], Path], tmp_path: Path
) -> None:
    for kind, message in (("gpt", "is no teacher"), ("bert", "different tokenizers")):
        with pytest.raises(UserError, match=message):
            etude.distill("distilbert", corpus, out=tmp_path / "run", teacher=base(kind), quiet=True, settings=STUDENT)
    with pytest.raises(UserError, match="not masked"):
        etude.distill(
            "gpt2-toy", corpus, out=tmp_path / "run", teacher=teacher, quiet=True, settings={"train.steps": 1}
        )


def test_a_resume_wants_the_same_teacher(student: Path, teacher: Path, corpus: Path, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    shutil.copytree(student, begun)
    (begun / "model.safetensors").unlink()
    shutil.rmtree(begun / "checkpoints" / "step-000000000006")
    kept = yaml.safe_load((begun / "distill.yaml").read_text(encoding="utf-8"))
    for place, message in (("nowhere", "is not at"), (str(student), "its weights differ")):
        (begun / "distill.yaml").write_text(yaml.safe_dump({**kept, "teacher": place}), encoding="utf-8")
        with pytest.raises(UserError, match=message):
            etude.resume(begun, quiet=True)
    (begun / "distill.yaml").write_text(yaml.safe_dump({"teacher": kept["teacher"]}), encoding="utf-8")
    with pytest.raises(UserError, match=r"distill\.yaml is damaged: fingerprint"):
        etude.resume(begun, quiet=True)


# --- TinyBERT ---------------------------------------------------------------------------------------

TINY = {**STUDENT, "model.layers": 1, "model.width": 24, "model.feedforward": 48, "model.heads": 2}


@pytest.fixture(scope="module")
def tiny(corpus: Path, teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tiny") / "student"
    assert etude.distill("tinybert", corpus, out=out, teacher=teacher, quiet=True, settings=TINY).finished
    return out


def test_a_tiny_student_learns_the_inside_and_keeps_no_head(tiny: Path) -> None:
    run = Run.open(tiny)
    line = run.metrics("train")[-1]
    assert {"attention", "hidden", "embedding"} <= set(line) and "mlm" not in line
    valid = run.metrics("valid")[-1]
    assert {"attention", "hidden", "embedding"} <= set(valid) and "accuracy" not in valid
    loaded = etude.load(tiny)
    assert loaded.encode(["the owner of the inn"]).shape == (1, 24)
    with pytest.raises(UserError, match="without a trained language-model head"):
        loaded.fill("the [MASK] is in the town .")
    names = set(safe_open(tiny / "model.safetensors", "pt").keys())
    assert names and not any("fit" in name or name.startswith("cls.") for name in names)


def test_a_tiny_student_reads_pairs_and_learns_both_segments(corpus: Path, teacher: Path, tmp_path: Path) -> None:
    """The second stage may be a task of pairs: what marks their second text is learnt in the first."""
    opened = Corpus.open(corpus)
    recipe = Recipe.load("tinybert", TINY).resolve(opened.tokenizer.vocab)
    model, objective = build_student(recipe, opened, load_teacher(teacher, opened)[0])
    rows = objective.rows(opened, 0)
    batch = objective.batch([rows[number] for number in range(8)], Chance(0, 0))
    assert batch.segments is not None and 0.2 < batch.segments.float().mean() < 0.8
    sum(term.sum for term in objective.loss(model, batch).values()).backward()
    assert (model.embedding.segments.weight.grad.abs().sum(1) > 0).all()


def test_pairs_are_refused_where_the_teacher_has_one_kind_of_segment(corpus: Path, tmp_path: Path) -> None:
    settings = {**SHAPE, **TRAIN, "model.layers": 3, "model.segments": 1, "model.pooler": False, "train.steps": 1}
    settings |= {"objective.sentence": "none", "train.save_every": 0}
    etude.pretrain("bert-toy", corpus, out=tmp_path / "bert", quiet=True, settings=settings)
    with pytest.raises(UserError, match=r"set objective\.pair_rate=0"):
        etude.distill("tinybert", corpus, out=tmp_path / "tiny", teacher=tmp_path / "bert", quiet=True, settings=TINY)
    alone = {**TINY, "objective.pair_rate": 0.0}
    etude.distill("tinybert", corpus, out=tmp_path / "tiny", teacher=tmp_path / "bert", quiet=True, settings=alone)


def test_transformers_opens_a_tiny_student(tiny: Path) -> None:
    hf = pytest.importorskip("transformers")
    theirs = hf.AutoModel.from_pretrained(tiny, add_pooling_layer=False).eval()
    assert type(theirs).__name__ == "BertModel"
    loaded = etude.load(tiny)
    ids = loaded.frame(loaded.tokenizer.encode("the owner of the inn is a baker").ids)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(ids.astype(np.int64))[None]).last_hidden_state[0].numpy()
    np.testing.assert_allclose(loaded.states([ids], layers="last")[0], expected, atol=1e-5)


def test_a_tiny_resume_goes_on_to_the_same_bits(tiny: Path, tmp_path: Path) -> None:
    """What the projection has learnt is in the checkpoint, and what reads the run meanwhile does without it."""
    begun = tmp_path / "begun"
    shutil.copytree(tiny, begun)
    (begun / "model.safetensors").unlink()
    shutil.rmtree(begun / "checkpoints" / "step-000000000006")
    assert etude.load(begun).encode(["the owner"]).shape == (1, 24)
    with pytest.raises(UserError, match="without a trained language-model head"):
        etude.load(begun).fill("the [MASK] is in the town .")
    assert etude.resume(begun, quiet=True).finished
    assert (begun / "model.safetensors").read_bytes() == (tiny / "model.safetensors").read_bytes()


def test_a_tiny_student_that_speaks_keeps_its_head(corpus: Path, teacher: Path, tmp_path: Path) -> None:
    settings = {**TINY, "distill.mlm_weight": 1.0}
    etude.distill("tinybert", corpus, out=tmp_path / "run", teacher=teacher, quiet=True, settings=settings)
    assert len(etude.load(tmp_path / "run").fill("the [MASK] is in the town .")) == 5
    assert "mlm" in Run.open(tmp_path / "run").metrics("train")[-1]


def test_without_a_teacher_it_learns_from_text_alone(corpus: Path, tmp_path: Path) -> None:
    etude.pretrain("tinybert", corpus, out=tmp_path / "run", quiet=True, settings=TINY)
    assert len(etude.load(tmp_path / "run").fill("the [MASK] is in the town .")) == 5
    with pytest.raises(UserError, match="use 'etude distill'"):
        settings = {**TINY, "distill.mlm_weight": 1.0}
        etude.pretrain("tinybert", corpus, out=tmp_path / "other", quiet=True, settings=settings)

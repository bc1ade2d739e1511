"""Models in use through the verbs: by folder or as an open model, with the same results."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import etude
from etude.errors import UserError
from tests.tiny_models import decoder

Bases = Callable[[str], Path]


def test_load_takes_a_device(base: Bases) -> None:
    model = etude.load(base("bert"), device="cpu")
    assert isinstance(model, etude.LoadedModel) and model.encode(["good film"]).shape == (1, 32)


def test_a_stream_is_the_text_in_pieces() -> None:
    model = decoder()
    pieces: dict[int, list[str]] = {}

    def keep(number: int, piece: str) -> None:
        pieces.setdefault(number, []).append(piece)

    streamed = etude.generate(model, ["the cat", "a"], tokens=8, samples=2, seed=3, on_text=keep)
    plain = etude.generate(model, ["the cat", "a"], tokens=8, samples=2, seed=3)
    assert streamed == plain and len(plain) == 4
    assert ["".join(parts) for parts in pieces.values()] == [str(continuation) for continuation in plain]
    assert plain[0].context == model.model.context
    assert str(etude.generate(model, "the cat", tokens=8, seed=3)[0]) == str(plain[0])


def test_beams_are_neither_streamed_nor_sampled() -> None:
    with pytest.raises(UserError, match="--beams gives one text"):
        etude.generate(decoder(), "a", beams=2, samples=2)
    assert len(etude.generate(decoder(), ["a", "b"], beams=2, tokens=3)) == 2


def test_fill_has_a_list_for_each_blank(base: Bases) -> None:
    model = etude.load(base("bert"), device="cpu")
    assert [len(guesses) for guesses in etude.fill(model, "very [MASK] film", top=2)] == [2]
    assert [len(guesses) for guesses in etude.fill(model, "[MASK] film [MASK]", top=3)] == [3, 3]


def test_perplexity_of_a_file_is_that_of_its_text(tmp_path: Path) -> None:
    model, file = decoder(), tmp_path / "text.txt"
    file.write_text("the cat sat", encoding="utf-8")
    assert etude.perplexity(model, file).nats == model.perplexity("the cat sat").nats
    with pytest.raises(UserError, match="There is no file"):
        etude.perplexity(model, tmp_path / "none.txt")
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="is not UTF-8 text: byte 0"):
        etude.perplexity(model, file)


def test_scores_and_answers_of_a_fine_tuned_run(base: Bases, reviews: tuple[Path, Path], tmp_path: Path) -> None:
    run = etude.finetune(
        base("bert"), "classify", train=reviews[0], out=tmp_path / "run", quiet=True, settings={"train.steps": 3}
    )
    assert isinstance(run, etude.TaskRun) and run.finished and run.scores == {}
    assert "model" not in vars(run), "opened when it is first used"
    answers = list(etude.predict(run.folder, reviews[1]))
    assert len(answers) == 40 and answers[0] == next(etude.predict(run.model, reviews[1]))
    scores = etude.evaluate(
        run.model, reviews[1], predictions=tmp_path / "answers.jsonl", report=tmp_path / "page.html"
    )
    assert isinstance(scores["accuracy"], etude.Score) and (tmp_path / "page.html").is_file()
    lines = (tmp_path / "answers.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["label"] for line in lines] == [answer["label"] for answer in answers]
    with pytest.raises(UserError, match="There is no file"):
        next(etude.predict(run.folder, tmp_path / "none.jsonl"))


def test_a_suite_is_a_verb_of_its_own(base: Bases, reviews: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="use finetune_suite"):
        etude.finetune(base("bert"), "glue", train=tmp_path, out=tmp_path / "run")
    with pytest.raises(UserError, match="holds no task of glue"):
        etude.finetune_suite(base("bert"), "glue", train=tmp_path, out=tmp_path / "run")
    with pytest.raises(UserError, match="seeds=0 is too small"):
        etude.finetune(base("bert"), "classify", train=reviews[0], out=tmp_path / "run", seeds=0)

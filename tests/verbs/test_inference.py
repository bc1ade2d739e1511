"""Models in use through the verbs: by folder or as an open model, with the same results."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import etude
from etude.errors import UserError
from etude.inference.task_model import TaskModel
from etude.models.layer_features import LayerFeatures
from etude.tasks.base import Answer
from etude.tasks.data.examples import Examples
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
    with pytest.raises(UserError, match=r"text.txt, line 1, is not UTF-8. It reads as UTF-16"):
        etude.perplexity(model, file)
    file.write_bytes("the cat sat".encode("utf-8-sig"))
    assert etude.perplexity(model, file).nats == model.perplexity("the cat sat").nats


def test_options_that_a_model_has_no_use_for_are_refused(base: Bases, tmp_path: Path) -> None:
    model, file = decoder(), tmp_path / "text.txt"
    file.write_text("the cat sat", encoding="utf-8")
    for options in ({"temperature": 0.0}, {"top_k": 3}, {"top_p": 0.5}, {"seed": 1}, {"past_end": True}):
        with pytest.raises(UserError, match="applies to sampling, and --beams searches"):
            etude.generate(model, "a", beams=2, tokens=3, **options)
    with pytest.raises(UserError, match="--penalty applies to a beam search"):
        etude.generate(model, "a", tokens=3, penalty=1.0)
    with pytest.raises(UserError, match="--part applies to a corpus"):
        etude.perplexity(model, file, part="train")
    with pytest.raises(UserError, match="--stride applies to a causal model"):
        etude.perplexity(etude.load(base("bert"), device="cpu"), file, stride=2)
    with pytest.raises(UserError, match=r"a biLM's held-out loss is in metrics\.jsonl"):
        etude.perplexity(etude.load(base("recurrent"), device="cpu"), file)
    for form in ("glove", "fasttext"):
        with pytest.raises(UserError, match="--form applies to a file of word vectors"):
            etude.export(base("bert"), out=tmp_path / "out", form=form)
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="--link-noise is of the text with links"):
        etude.world(out=tmp_path / "town", link_noise=0.1)
    assert not (tmp_path / "town").exists()
    for size in (float("nan"), float("inf")):
        with pytest.raises(UserError, match="say how many MB of text a tokenizer is trained on"):
            etude.prepare(file, out=tmp_path / "corpus", sample_mb=size)


def test_a_device_that_is_not_here_is_one_message(base: Bases) -> None:
    for use in (etude.load, etude.fill, etude.show.attention):
        words = () if use is etude.load else ("a [MASK]",)
        with pytest.raises(UserError, match="--device tpu: there is no such device here"):
            use(base("bert"), *words, device="tpu")


def test_scores_and_answers_of_a_fine_tuned_run(
    base: Bases, reviews: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = etude.finetune(
        base("bert"), "classify", train=reviews[0], out=tmp_path / "run", quiet=True, settings={"train.steps": 3}
    )
    assert isinstance(run, etude.TaskRun) and run.finished and run.scores == {}
    assert "model" not in vars(run), "opened when it is first used"
    answers = list(etude.predict(run.folder, reviews[1]))
    assert len(answers) == 40 and answers[0] == next(etude.predict(run.model, reviews[1]))
    answer, answered = TaskModel.answer, list[int]()

    def count(self: TaskModel, examples: Examples[Any]) -> list[Answer]:
        answered.append(len(examples))
        return answer(self, examples)

    monkeypatch.setattr(TaskModel, "answer", count)
    scores = etude.evaluate(
        run.model, reviews[1], predictions=tmp_path / "answers.jsonl", report=tmp_path / "page.html"
    )
    assert answered == [40], "once for scores, file and page"
    assert isinstance(scores["accuracy"], etude.Score) and (tmp_path / "page.html").is_file()
    lines = (tmp_path / "answers.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["label"] for line in lines] == [answer["label"] for answer in answers]
    for option in ("report", "predictions"):
        with pytest.raises(UserError, match=f"There is no folder .* for the {option}"):
            etude.evaluate(run.model, reviews[1], **{option: tmp_path / "none" / "x.html"})
    with pytest.raises(UserError, match="--corpus applies to a pre-training"):
        etude.resume(run.folder, corpus=tmp_path)
    with pytest.raises(UserError, match=r"There is no file .*\. A text itself .*: echo 'TEXT' \| etude predict RUN\."):
        next(etude.predict(run.folder, tmp_path / "none.jsonl"))
    with pytest.raises(UserError, match=r"no file A dull film\.\. A text .*: echo 'TEXT' \| etude translate RUN\."):
        next(etude.translate(run.folder, "A dull film."))


def test_records_and_tables_are_scored_as_their_file_is(
    base: Bases, reviews: tuple[Path, Path], tmp_path: Path
) -> None:
    run = etude.finetune(
        base("bert"), "classify", train=reviews[0], out=tmp_path / "run", quiet=True, settings={"train.steps": 3}
    )
    records = [json.loads(line) for line in reviews[1].read_text(encoding="utf-8").splitlines()]
    scores, table = run.evaluate(reviews[1]), pytest.importorskip("pandas").DataFrame(records)
    assert run.evaluate(records) == scores == run.evaluate(table) == run.model.evaluate(records)
    arrow = pytest.importorskip("pyarrow").Table.from_pylist(records)
    assert run.evaluate(arrow) == scores and run.predict(arrow) == run.predict(records) == run.model.predict(arrow)
    assert run.predict(arrow.to_batches()[0]) == run.predict(records)
    with pytest.raises(UserError, match="input 1 is 'good': give a mapping"):
        run.evaluate(["good"])
    with pytest.raises(UserError, match="no examples to score"):
        run.evaluate([])
    for wrong in ({"text": "good"}, None):  # the keys of one record would pass for texts
        with pytest.raises(UserError, match=r"predict takes a list of inputs: write predict\(\[input\]\)"):
            run.predict(wrong)  # type: ignore[arg-type]
    assert repr(run.model) == f"TaskModel({str(run.folder)!r}, task='classify')"


def test_answers_keep_no_states_of_frozen_layers(base: Bases, reviews: tuple[Path, Path], tmp_path: Path) -> None:
    """Texts to answer do not come again: a long pipe would fill transfer.cache_mb, and then be warned of it."""
    settings = {"train.steps": 3, "transfer.frozen": True}
    out = tmp_path / "run"
    run = etude.finetune(base("bert"), "classify", train=reviews[0], out=out, quiet=True, settings=settings)
    assert len(list(etude.predict(run.model, reviews[1]))) == 40
    assert isinstance(run.model.model, LayerFeatures) and not run.model.model.cache


def test_a_long_pipe_is_warned_of_cut_texts_once(
    base: Bases,
    reviews: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = etude.finetune(
        base("bert"), "classify", train=reviews[0], out=tmp_path / "run", quiet=True, settings={"train.steps": 3}
    )
    monkeypatch.setattr("etude.inference.predictor.LARGEST_CHUNK", 2)
    (tmp_path / "lines.txt").write_text(
        ("good film " * 200 + "\nshort\n") * 3 + "good film " * 200 + "\n", encoding="utf-8"
    )
    caplog.clear()
    assert len(list(etude.predict(run.model, tmp_path / "lines.txt"))) == 7
    assert len([message for message in caplog.messages if "were cut" in message]) == 1


def test_an_unknown_task_is_refused_before_the_run_is_opened(reviews: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'clasify' is not a kind of task\. Did you mean 'classify'\?"):
        etude.finetune(tmp_path, "clasify", train=reviews[0], out=tmp_path / "run")


def test_a_suite_is_a_verb_of_its_own(base: Bases, reviews: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"use etude\.finetune_suite"):
        etude.finetune(base("bert"), "glue", train=tmp_path, out=tmp_path / "run")
    with pytest.raises(UserError, match="holds no task of glue"):
        etude.finetune_suite(base("bert"), "glue", train=tmp_path, out=tmp_path / "run")
    with pytest.raises(UserError, match="seeds=0 is too small"):
        etude.finetune(base("bert"), "classify", train=reviews[0], out=tmp_path / "run", seeds=0)

"""Fine-tuning: it learns, goes on after a stop bit for bit, keeps the best, and what is frozen stays."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from etude.errors import UserError
from etude.hub.run_weights import load_learner
from etude.inference.task_model import TaskModel
from etude.runs.run import Run
from etude.runs.task_plan import Plan
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.train import saver
from etude.train.loop import Loop
from etude.transfer import finetune as transfer
from etude.transfer.finetune import finetune

Bases = Callable[[str], Path]
Files = tuple[Path, Path]
QUICK = {"train.epochs": 6, "train.lr": 6e-3, "train.batch_examples": 16, "train.log_every": 1}


@pytest.fixture(scope="module")
def tuned(base: Bases, reviews: Files, tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("tuned") / "run"
    return finetune(base("bert"), "classify", reviews[0], out, dev=reviews[1], overrides=QUICK, quiet=True)


def test_a_run_that_does_the_task(tuned: Run, reviews: Files) -> None:
    plan = Plan.read(tuned.folder)
    assert tuned.finished and plan.facts == {"labels": ["bad", "good"]} and plan.train.steps == 45
    assert plan.scores["accuracy"]["value"] > 0.9
    valid = tuned.metrics("valid")
    assert [line["step"] for line in valid] == [8, 16, 24, 32, 40, 45], "every epoch, and the end"
    assert max(line["accuracy"] for line in valid) == pytest.approx(plan.scores["accuracy"]["value"])
    assert all({"step", "tokens", "flops", "seconds", "loss"} <= set(line) for line in tuned.metrics())
    again = TaskModel.open(tuned.folder)
    assert again.evaluate(reviews[1])["accuracy"].json() == plan.scores["accuracy"]
    assert not (tuned.folder / "checkpoints").exists() and "accuracy" in (tuned.folder / "README.md").read_text()


def test_predictions_stand_alone(tuned: Run, reviews: Files) -> None:
    model = TaskModel.open(tuned.folder)
    texts = [json.loads(line)["text"] for line in reviews[1].read_text(encoding="utf-8").splitlines()]
    together = model.predict(texts)
    order = np.random.default_rng(0).permutation(len(texts))
    shuffled = model.predict([texts[number] for number in order])
    streamed = list(model.stream(f"{text}\n" for text in texts))
    for number, place in enumerate(order):
        for other in (shuffled[number], streamed[place], model.predict([texts[place]])[0]):
            assert other["label"] == together[place]["label"]
            assert other["scores"]["good"] == pytest.approx(together[place]["scores"]["good"], abs=1e-5)
    assert model.predict([]) == [] and model.predict([{"text": texts[0]}])[0]["label"] == together[0]["label"]


def test_a_tuned_run_is_a_model_too(tuned: Run, base: Bases, reviews: Files, tmp_path: Path) -> None:
    """It loads for vectors, and it can be the start of another transfer; all through the Python interface."""
    import etude

    assert etude.load(tuned.folder).encode(["good film", "bad"]).shape == (2, 32)
    again = etude.finetune(
        tuned.folder, "classify", train=reviews[0], out=tmp_path / "x", dev=reviews[1], quiet=True,
        settings={"transfer.frozen": True, "train.epochs": 5, "train.lr": 0.05},
    )  # fmt: skip
    assert again.evaluate(reviews[1])["accuracy"].value > 0.9
    assert again.predict(["good film"])[0]["label"] == "good"
    assert etude.load(again.folder).encode(["good"]).shape == (1, 32)
    with pytest.raises(UserError, match=r"exists already\. Choose another folder"):
        etude.finetune(base("bert"), "classify", train=reviews[0], out=tuned.folder)


def test_bad_lines_of_a_pipe(tuned: Run) -> None:
    model = TaskModel.open(tuned.folder)
    lines = ["good film\n", "\n", '{"text": "bad film"}\n', '{"txt": "x"}\n', "{oops\n"]
    first: list[dict[str, Any]] = []
    with pytest.raises(UserError, match=r"pipe:2: this line is empty"):
        first.extend(model.stream(lines, "pipe"))
    assert [answer["label"] for answer in first] == ["good"], "what stands before a bad line is answered"
    answers = list(model.stream(lines, "pipe", skip_bad=True))
    assert ["error" in answer for answer in answers] == [False, True, False, True, True]


def test_lines_that_only_this_model_refuses(
    tuned: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A tokenizer may leave nothing of a text: that was found for a whole chunk, and took all its answers along."""
    import etude

    model = TaskModel.open(tuned.folder)
    plain = [answer["label"] for answer in model.predict(["good film", "bad film", "very good"])]
    cleaned = staticmethod(lambda text: text.replace("\u200b", ""))  # as a WordPiece tokenizer cleans its text
    monkeypatch.setattr(Tokenizer, "normalise", cleaned)
    lines = ["good film", "\u200b", "bad film", "\u200b", "very good"]
    first: list[dict[str, Any]] = []
    with pytest.raises(UserError, match="pipe:2: the tokenizer leaves nothing"):
        first.extend(model.stream(lines, "pipe"))
    assert [answer["label"] for answer in first] == plain[:1], "what stands before a bad line is answered"
    answers = list(model.stream(lines, "pipe", skip_bad=True))
    assert [answer["label"] for answer in answers if "error" not in answer] == plain
    assert [answer["error"][:6] for answer in answers if "error" in answer] == ["pipe:2", "pipe:4"]
    table = tmp_path / "texts.csv"
    table.write_text("\n".join(["text", *lines]) + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"texts\.csv:3: the tokenizer leaves nothing"):
        list(etude.predict(tuned.folder, table))
    assert [answer["label"] for answer in etude.predict(tuned.folder, table, skip_bad=True)] == plain
    assert "2 bad examples left out; the first: " in caplog.text
    table.write_text("text\n\u200b\n", encoding="utf-8")
    with pytest.raises(UserError, match="leaves nothing"):
        list(etude.predict(tuned.folder, table, skip_bad=True))


def test_no_line_of_a_pipe_waits_for_the_next(tuned: Run) -> None:
    """Each line is given out only after the answer to the one before it has come back."""
    model = TaskModel.open(tuned.folder)
    answered = threading.Semaphore(1)

    def lines() -> Iterator[str]:
        for text in ("good film", "bad film", "very good end"):
            assert answered.acquire(timeout=60), "the answer before this line never came"
            yield text + "\n"

    result = []
    for answer in model.stream(lines()):
        result.append(answer["label"])
        answered.release()
    assert result == ["good", "bad", "good"]

    def broken() -> Iterator[str]:
        yield "good film\n"
        raise OSError("the pipe broke")

    with pytest.raises(OSError, match="the pipe broke"):
        list(model.stream(broken()))


def stop_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    advance = Loop.advance

    def watched(self: Loop, item: Any) -> None:
        advance(self, item)
        if self.state.step == step:
            self.interrupted = True

    monkeypatch.setattr(Loop, "advance", watched)


@pytest.mark.parametrize("step", [3, 8])
def test_a_stop_changes_nothing(
    tuned: Run, base: Bases, reviews: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    with monkeypatch.context() as patch:
        stop_at(patch, step)
        run = finetune(
            base("bert"), "classify", reviews[0], tmp_path / "x", dev=reviews[1], overrides=QUICK, quiet=True
        )
        assert not run.finished
    transfer.resume(run.folder, quiet=True)
    item, other = (load_file(r.folder / "model.safetensors") for r in (run, tuned))
    assert item.keys() == other.keys() and all(torch.equal(item[name], other[name]) for name in item)
    times = ("seconds",)
    lines = [[{k: v for k, v in line.items() if k not in times} for line in r.metrics()] for r in (run, tuned)]
    assert lines[0] == lines[1]


def give_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the second epoch be the best."""
    scores, update_best = {8: 0.3, 16: 0.9, 24: 0.5, 32: 0.4, 40: 0.3, 45: 0.2}, Loop._update_best

    def score(self: Loop) -> None:
        self.valid["accuracy"] = scores[self.state.step]
        update_best(self)

    monkeypatch.setattr(Loop, "_update_best", score)


@pytest.fixture(scope="module")
def whole(base: Bases, reviews: Files, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose second epoch is the best, and which nobody kills."""
    out = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        give_scores(patch)
        return finetune(base("bert"), "classify", reviews[0], out, dev=reviews[1], overrides=QUICK, quiet=True)


@pytest.mark.parametrize("seconds", [0.0, 1e9])
def test_a_kill_changes_nothing(
    whole: Run, base: Bases, reviews: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """Whether all steps before it were saved or none, and though the best weights were in memory only."""
    advance = Loop.advance

    def die(self: Loop, item: Any) -> None:
        advance(self, item)
        if self.state.step == 27:
            raise KeyboardInterrupt

    give_scores(monkeypatch)
    monkeypatch.setattr(saver.SaveTimer.__init__, "__defaults__", (seconds, time.monotonic))
    monkeypatch.setattr(saver, "COST_SHARE", 1e9)  # each step may be saved
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Loop, "advance", die)
        finetune(base("bert"), "classify", reviews[0], tmp_path / "y", dev=reviews[1], overrides=QUICK, quiet=True)
    assert Run(tmp_path / "y").steps == ([] if seconds else [26])
    killed = transfer.resume(tmp_path / "y", quiet=True)
    expected, weights = (load_file(run.folder / "model.safetensors") for run in (whole, killed))
    assert expected.keys() == weights.keys() and all(torch.equal(weights[name], expected[name]) for name in weights)
    for run in (whole, killed):
        assert "| best | step 16 |" in (run.folder / "README.md").read_text(encoding="utf-8")
        assert not (run.folder / "checkpoints").exists()


def test_one_that_would_be_late_becomes_shorter_and_finishes(base: Bases, reviews: Files, tmp_path: Path) -> None:
    """The learning rate comes to its end with it, and what is in time is as long as it was planned."""
    lengths = {}
    for name, seconds in (("late", 0.0), ("early", 1000.0)):
        run = finetune(
            base("bert"), "classify", reviews[0], tmp_path / name, overrides={**QUICK, "train.epochs": 1}, quiet=True,
            deadline=time.monotonic() + seconds, shorten=True,
        )  # fmt: skip
        assert run.finished and TaskModel.open(run.folder).predict(["good"])
        lengths[name] = run.metrics("train")[-1]["step"]
    assert lengths == {"late": 2, "early": 8}


def test_a_deadline_stops_like_a_signal(
    tuned: Run, base: Bases, reviews: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = Loop.advance

    def wait_at_five(self: Loop, item: Any) -> None:
        advance(self, item)
        while self.state.step == 5 and self.deadline is not None and time.monotonic() <= self.deadline:
            time.sleep(0.01)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "advance", wait_at_five)
        run = finetune(
            base("bert"), "classify", reviews[0], tmp_path / "x", dev=reviews[1], overrides=QUICK, quiet=True,
            deadline=time.monotonic() + 2,
        )  # fmt: skip
    assert not run.finished and 0 <= run.steps[-1] <= 5
    transfer.resume(run.folder, quiet=True, deadline=time.monotonic())  # over before it begins: nothing is lost
    assert not run.finished and 0 <= run.steps[-1] <= 5
    transfer.resume(run.folder, quiet=True, deadline=time.monotonic() + 1000)
    item, other = (load_file(r.folder / "model.safetensors") for r in (run, tuned))
    assert all(torch.equal(item[name], other[name]) for name in other)


def test_the_best_by_score_and_early_stopping(base: Bases, reviews: Files, tmp_path: Path) -> None:
    """A rate of nearly nothing: no evaluation beats the first, so patience ends the run and the first is kept."""
    changes = QUICK | {"train.lr": 1e-12, "train.patience": 2, "train.epochs": 9, "train.warmup": 0.0}
    run = finetune(base("bert"), "classify", reviews[0], tmp_path / "x", dev=reviews[1], overrides=changes, quiet=True)
    assert [line["step"] for line in run.metrics("valid")] == [8, 16, 24] and "step 8" in (
        run.folder / "README.md"
    ).read_text()


@pytest.mark.parametrize("kind", ["gpt", "static", "recurrent"])
def test_every_family(base: Bases, reviews: Files, tmp_path: Path, kind: str) -> None:
    changes = QUICK | {"train.lr": 6e-3 if kind == "gpt" else 2e-2}
    if kind == "gpt":
        changes |= {"task.language_model": 0.05, "train.lr": 3e-3, "train.epochs": 8}
    run = finetune(base(kind), "classify", reviews[0], tmp_path / "x", dev=reviews[1], overrides=changes, quiet=True)
    assert Plan.read(run.folder).scores["accuracy"]["value"] > 0.8
    if kind == "gpt":
        assert all("language_model" in line for line in run.metrics("train"))


@pytest.mark.parametrize("layers", ["last", "last4", [0, -1]])
@pytest.mark.parametrize("combine", ["concat", "mix"])
def test_features_leave_the_model_as_it_was(
    base: Bases, reviews: Files, tmp_path: Path, layers: Any, combine: str
) -> None:
    changes = QUICK | {"transfer.frozen": True, "transfer.layers": layers, "transfer.combine": combine,
                       "train.epochs": 1, "task.pooling": "mean", "task.head": "mlp"}  # fmt: skip
    run = finetune(base("bert"), "classify", reviews[0], tmp_path / "x", dev=reviews[1], overrides=changes, quiet=True)
    before, _, _ = load_learner(Run.open(base("bert")))
    tuned = TaskModel.open(run.folder)
    for name, tensor in before.state_dict().items():
        assert torch.equal(tensor, tuned.model.wrapped.state_dict()[name]), name
    width = 32 * (1 if combine == "mix" else {"last": 1, "last4": 3}.get(str(layers), 2))
    assert tuned.task.pooled.hidden.in_features == width
    if combine == "mix":
        assert tuned.model.mix.gamma.item() != 1.0
    # remembered states, as training remembers them, are those of the model itself
    tuned.model.free_bytes = 2**20
    rows = tuned.task.rows(tuned.read(reviews[1]))
    (_, batch), *_ = tuned.task.batches(tuned.model, rows)
    once, twice = tuned.model(batch).last, tuned.model(batch).last
    assert tuned.model.cache and torch.equal(once, twice)
    if combine == "concat" and layers == "last":
        torch.testing.assert_close(once, before(batch).last, atol=1e-5, rtol=1e-5)


def test_a_card_without_dev_tells_no_scores(base: Bases, reviews: Files, tmp_path: Path) -> None:
    changes = QUICK | {"train.epochs": 1}
    run = finetune(base("bert"), "classify", reviews[0], tmp_path / "x", overrides=changes, quiet=True)
    card = (run.folder / "README.md").read_text(encoding="utf-8")
    assert "none: the last weights were taken" in card and "Scores on dev" not in card and "optimistic" not in card


def test_frozen_lower_layers(base: Bases, reviews: Files, tmp_path: Path) -> None:
    changes = QUICK | {"transfer.freeze": 1, "train.epochs": 1, "train.layer_decay": 0.8, "train.head_lr": 1e-2}
    run = finetune(base("bert"), "classify", reviews[0], tmp_path / "x", dev=reviews[1], overrides=changes, quiet=True)
    before, after = load_learner(Run.open(base("bert")))[0].state_dict(), TaskModel.open(run.folder).model.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert not any(name.startswith(("embedding", "attention.0", "feedforward.0")) for name in moved)
    assert any(name.startswith("attention.1") for name in moved)


def test_what_it_refuses(base: Bases, reviews: Files, tmp_path: Path) -> None:
    def run(**changes: Any) -> None:
        given: dict[str, Any] = {"task": "classify", "train": reviews[0], "dev": reviews[1], "overrides": QUICK}
        given |= changes
        finetune(base("bert"), out=tmp_path / "x", quiet=True, **given)

    odd = tmp_path / "odd.jsonl"
    odd.write_text('{"text": "film", "label": "fine"}\n', encoding="utf-8")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"task": "clasify"}, "'clasify' is not a kind of task. Did you mean 'classify'"),
        ({"train": tmp_path / "gone.csv"}, "There is no file"),
        ({"train": tmp_path}, "is a folder, and a file is expected: name a file in it"),
        ({"columns": {"words": "text"}}, "no column of the role 'words'"),
        ({"dev": odd}, r"odd.jsonl:1: the label 'fine'"),
        ({"overrides": {"train.lrr": 1}}, "no setting 'train.lrr'"),
        ({"overrides": {"model.layers": 1}}, "no setting of a transfer"),
        ({"overrides": {"transfer.freeze": 9}}, "has 2 layers"),
        ({"overrides": {"transfer.layers": [7], "transfer.frozen": True}}, "the layers 0"),
        ({"overrides": {"train.minutes": 1}}, "no budget in minutes"),
        ({"overrides": {"train.layer_decay": 0.8, "transfer.frozen": True}}, "train.layer_decay=0.8 lowers the"),
        ({"overrides": {"train.layer_decay": 0.8, "transfer.probe": True}}, "and transfer.frozen lets none learn"),
        ({"overrides": {"task.hidden": 64}}, "task.hidden=64 is the width of the MLP of task.head=mlp"),
    ]
    for changes, message in cases:
        with pytest.raises(UserError, match=message.replace(".", r"\.").replace("(", r"\(")):
            run(**changes)
    assert not (tmp_path / "x").exists(), "nothing half-made is left"


def test_bad_examples_are_left_out_and_counted(
    base: Bases, reviews: Files, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In training and on dev: empty texts, and labels that are only wrong for this task; each file is told once."""
    train, dev = tmp_path / "train.jsonl", tmp_path / "dev.jsonl"
    train.write_text(reviews[0].read_text(encoding="utf-8") + '{"text": " ", "label": "good"}\n', encoding="utf-8")
    odd = '{"text": "film", "label": "fine"}\n{"text": "' + "good " * 99 + '", "label": "good"}\n'
    dev.write_text(reviews[1].read_text(encoding="utf-8") + odd + "{oops\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"train\.jsonl:121: the text"):
        finetune(base("bert"), "classify", train, tmp_path / "x", dev=dev, overrides=QUICK, quiet=True)
    changes = QUICK | {"train.epochs": 2}
    run = finetune(
        base("bert"), "classify", train, tmp_path / "x", dev=dev, overrides=changes, skip_bad=True, quiet=True
    )
    assert Plan.read(run.folder).scores["accuracy"]["count"] == 41
    assert caplog.text.count("train.jsonl: 1 bad examples left out") == 1
    assert caplog.text.count("dev.jsonl: 2 bad examples left out") == 1
    assert caplog.text.count("dev.jsonl: 1 of 41 texts are longer than 64 tokens and were cut") == 1
    tuned = TaskModel.open(run.folder)
    with pytest.raises(UserError, match=r"dev\.jsonl:43: not JSON"):
        tuned.read(dev)
    result = tuned.read(dev, skip_bad=True)
    assert len(result) == 41 and len(result.bad) == 2

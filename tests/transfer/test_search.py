"""Several rates and seeds: chosen on dev, told with their spread, gone on with after a stop; and the command line."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import etude
from etude.cli.exits import BEGUN, INTERRUPTED, SUITE
from etude.cli.main import app
from etude.errors import UserError
from etude.inference.opening import open_pretrained
from etude.inference.task_model import TaskModel
from etude.runs.run import RECIPE, TRIALS, Run
from etude.runs.task_plan import Plan
from etude.train.loop import Loop
from etude.transfer import search as trials
from etude.transfer.suite import REQUEST
from etude.verbs.task_run import TaskRun

Bases = Callable[[str], Path]
Files = tuple[Path, Path]
QUICK = {"train.epochs": 6, "train.batch_examples": 16, "train.warmup": 0.0}


def test_the_rate_is_chosen_on_dev(base: Bases, reviews: Files, tmp_path: Path, monkeypatch: Any) -> None:
    advance, count = Loop.advance, [0]

    def stopped(self: Loop, step: Any) -> None:  # in the middle of the third of four runs
        advance(self, step)
        count[0] += 1
        self.interrupted = count[0] == 110

    monkeypatch.setattr(Loop, "advance", stopped)
    out = tmp_path / "x"
    run = trials.search(
        base("static"), "classify", reviews[0], out, dev=reviews[1], vary={"train.lr": [1e-9, 0.06]}, seeds=2,
        overrides=QUICK, quiet=True,
    )  # fmt: skip
    assert not run.finished and trials.is_search(out)
    for use in (TaskModel.open, Run.open, open_pretrained):
        with pytest.raises(UserError, match=f"etude finetune --resume {out}") as refused:
            use(out)
        assert "lr-1e-09-seed-0" in str(refused.value) and "pretrain" not in str(refused.value)
    run = trials.resume(out, quiet=True)
    with pytest.raises(UserError, match=f"weights were removed in the end. Use {out}"):
        TaskModel.open(out / "trials" / "lr-1e-09-seed-0")
    assert (out / "README.md").read_text(encoding="utf-8").startswith("# x\n"), "its card has its own name"
    assert run == Run(out) and run.finished
    result = json.loads((out / "trials.json").read_text(encoding="utf-8"))
    assert [(trial["settings"]["train.lr"], trial["seed"]) for trial in result["trials"]] == [
        (1e-9, 0),
        (1e-9, 1),
        (0.06, 0),
        (0.06, 1),
    ]
    scores = [trial["score"] for trial in result["trials"] if trial["settings"]["train.lr"] == 0.06]
    assert result["chosen"]["settings"] == {"train.lr": 0.06} and result["mean"] == pytest.approx(
        statistics.fmean(scores)
    )
    assert result["deviation"] == pytest.approx(statistics.stdev(scores)) and result["score"] == "accuracy"
    assert Plan.read(out).scores["accuracy"]["value"] == max(scores)
    assert TaskModel.open(out).evaluate(reviews[1])["accuracy"].value == max(scores)
    assert [file.parent.name for file in out.rglob("model.safetensors")] == ["x"], "only the winner keeps its weights"
    tuned = TaskRun(out)
    assert [(trial.settings["train.lr"], trial.seed, trial.score) for trial in tuned.trials] == [
        (trial["settings"]["train.lr"], trial["seed"], trial["score"]) for trial in result["trials"]
    ]
    assert (tuned.mean, tuned.deviation) == (result["mean"], result["deviation"])
    assert f"{tuned.mean:.4f} ± {tuned.deviation:.4f}" in tuned._repr_html_()
    rows = trials.format_table(out).splitlines()
    assert rows[0].startswith("accuracy on dev, mean ± deviation of 2 seeds") and len(rows) == 3
    assert rows[1].startswith("lr 1e-09") and " ± " in rows[1] and "*" not in rows[1] and " *" in rows[2]
    assert trials.resume(out, quiet=True) == run


def test_a_rate_that_diverges_has_lost(
    base: Bases, reviews: Files, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The trials before and behind it count: a search must not end without a run because one rate was too high."""
    settings = {"train.steps": 4, "train.batch_examples": 16, "train.warmup": 0.0}
    out, rates = tmp_path / "x", [1e30, 1e-3]
    trials.search(
        base("bert"), "classify", reviews[0], out, dev=reviews[1], vary={"train.lr": rates}, overrides=settings,
        quiet=True,
    )  # fmt: skip
    result = json.loads((out / "trials.json").read_text(encoding="utf-8"))
    assert result["chosen"]["settings"] == {"train.lr": 1e-3} and TaskModel.open(out).plan.train.lr == 1e-3
    [lost] = result["diverged"]
    won, failed = TaskRun(out).trials
    assert (failed.score, failed.error) == (None, lost["error"]) and TaskRun(out).deviation is None
    assert TaskRun(out).mean == won.score
    single = TaskRun(out / "trials" / result["chosen"]["trial"])
    assert single.trials == [] and single.mean is single.deviation is single.search is None
    assert lost["settings"] == {"train.lr": 1e30} and "not finite" in lost["error"]
    assert "lr-1e+30-seed-0 has lost" in caplog.text
    first, second = trials.format_table(out).splitlines()[1:]
    assert first.split() == ["lr", "1e+30", "diverged"] and second.startswith("lr 0.001") and second.endswith("*")
    with pytest.raises(UserError, match=r"No setting trains with all its seeds\. lr-1e\+30-seed-0: .*not finite"):
        trials.search(
            base("bert"), "classify", reviews[0], tmp_path / "y", dev=reviews[1], vary={"train.lr": [1e30, 1e31]},
            overrides=settings, quiet=True,
        )  # fmt: skip
    assert not (tmp_path / "y").exists()


def test_trials_warn_once_of_what_they_all_read(
    base: Bases, reviews: Files, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    long = tmp_path / "long.jsonl"
    rows = [json.loads(line) for line in reviews[0].read_text(encoding="utf-8").splitlines()]
    rows[0]["text"] = " ".join([rows[0]["text"]] * 60)
    long.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    settings = {"train.steps": 2, "train.batch_examples": 8, "task.length": 16}
    for name in ("x", "y"):
        caplog.clear()
        trials.search(
            base("bert"), "classify", long, tmp_path / name, dev=reviews[1], seeds=2, overrides=settings, quiet=True
        )
        told = [record.getMessage() for record in caplog.records if f"{long}:" in record.getMessage()]
        assert len(told) == 1 and "were cut" in told[0], "once in every search"


@pytest.mark.parametrize("rates", [[0.01], [0.01, 0.02]])
def test_a_rate_is_given_once(rates: list[float], base: Bases, reviews: Files, tmp_path: Path) -> None:
    """Of --lr 0.01 and train.lr=0.5 one would count for nothing, without a word."""
    options: dict[str, Any] = {"train": reviews[0], "dev": reviews[1], "out": tmp_path / "x", "quiet": True}
    for settings in ({"train.lr": 0.5}, {"train": {"lr": 0.5}}):
        with pytest.raises(UserError, match=r"train\.lr is both varied and set"):
            etude.finetune(base("static"), "classify", lr=rates, settings=settings, **options)
    assert not (tmp_path / "x").exists()


def test_ctrl_c_between_two_trials_says_how_to_go_on(
    base: Bases, reviews: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended with "Stopped.", as if nothing had been saved."""
    assert (*BEGUN, SUITE) == (RECIPE, TRIALS, REQUEST)
    run_trial, count = trials._run_trial, [0]

    def press(*arguments: Any) -> Run:
        count[0] += 1
        if count[0] == 2:
            raise KeyboardInterrupt
        return run_trial(*arguments)

    monkeypatch.setattr(trials, "_run_trial", press)
    out = tmp_path / "x"
    words = ["finetune", str(base("static")), "classify", "--train", str(reviews[0]), "--dev", str(reviews[1])]
    words += ["-o", str(out), "--lr", "0.03,0.06", "train.epochs=1", "-q"]
    stopped = CliRunner().invoke(app, words)
    assert (
        stopped.exit_code == INTERRUPTED and f"Stopped. Go on with: etude finetune --resume {out}\n" in stopped.stderr
    )
    assert CliRunner().invoke(app, ["finetune", "--resume", str(out), "-q"]).exit_code == 0 and Run.open(out).finished

    def press_at_once(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(trials, "search", press_at_once)
    words[words.index(str(out))] = str(tmp_path / "y")
    stopped = CliRunner().invoke(app, words)
    assert stopped.exit_code == 130 and stopped.stderr.endswith("\nStopped.\n"), "there is nothing to go on with"


def test_dev_is_needed(base: Bases, reviews: Files, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--dev"):
        trials.search(base("static"), "classify", reviews[0], tmp_path / "x", dev=None, seeds=2)


def test_values_with_one_short_name_are_trials_of_their_own(base: Bases, reviews: Files, tmp_path: Path) -> None:
    trials.search(
        base("static"), "classify", reviews[0], tmp_path / "x", dev=reviews[1],
        vary={"train.lr": [0.06, 0.06000000001]}, overrides=QUICK, quiet=True,
    )  # fmt: skip
    rates = [Plan.read(folder).train.lr for folder in sorted((tmp_path / "x" / "trials").iterdir())]
    assert rates == [0.06, 0.06000000001]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vary": {"train.lr": []}}, "train.lr is varied over no value"),
        ({"vary": {"train.lr": [0.1, 0.1]}}, "a value stands there twice"),
        ({"vary": {"train.seed": [1, 2]}}, "train.seed is not varied: --seeds"),
        ({"seeds": 0}, "seeds=0: ask for one or more"),
        (
            {"overrides": {"distill.teacher": "t", "distill.soft_weight": 0, "distill.hidden_weight": 1}},
            "no head learns",
        ),
        ({"base": "nowhere"}, "nowhere"),
        ({"overrides": {"train.lrr": 1}}, "lrr"),
    ],
)
def test_a_bad_search_leaves_nothing(
    base: Bases, reviews: Files, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    request: dict[str, Any] = {"base": base("static"), "dev": reviews[1], "seeds": 2, **changes}
    with pytest.raises(UserError, match=message):
        trials.search(request.pop("base"), "classify", reviews[0], tmp_path / "x", **request, quiet=True)
    assert list(tmp_path.iterdir()) == []


def test_the_commands(base: Bases, reviews: Files, tmp_path: Path) -> None:

    def etude(*words: object, text: str | None = None) -> str:
        done = CliRunner().invoke(app, [str(word) for word in words], input=text, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    csv = tmp_path / "mine.csv"
    lines = [json.loads(line) for line in reviews[0].read_text(encoding="utf-8").splitlines()]
    csv.write_text("review,stars\n" + "".join(f"{item['text']},{item['label']}\n" for item in lines), encoding="utf-8")
    out = tmp_path / "run"
    told = etude(
        "finetune", base("static"), "classify", "--train", csv, "--dev", csv, "-o", out, "--text", "review", "--label",
        "stars", "-q", "train.lr=0.05", "train.epochs=8",
    )  # fmt: skip
    assert "accuracy" in told
    scores = json.loads(etude("evaluate", out, csv, "--json"))
    assert scores["accuracy"]["value"] > 0.9 and scores["accuracy"]["count"] == 120
    assert "accuracy" in etude("evaluate", out, reviews[1], "-c", "text=text", "-c", "label=label")
    file = tmp_path / "lines.txt"
    file.write_text("good film\nbad plot\n", encoding="utf-8")
    answers = [json.loads(line) for line in etude("predict", out, file).splitlines()]
    assert [answer["label"] for answer in answers] == ["good", "bad"]
    bare = tmp_path / "bare.csv"  # a table is read by its columns, and needs no labels
    bare.write_text("number,review\n1,good film\n2,bad plot\n", encoding="utf-8")
    assert [json.loads(line) for line in etude("predict", out, bare).splitlines()] == answers
    bare.write_text("number,review\n1,good film\n2, \n", encoding="utf-8")
    with pytest.raises(UserError, match=r"bare\.csv:3: the text in the column 'review' is empty"):
        etude("predict", out, bare)
    assert [json.loads(line)["label"] for line in etude("predict", out, bare, "--skip-bad").splitlines()] == ["good"]
    assert "classify" in etude("tasks")
    settings = etude("tasks", "sst2").splitlines()
    assert [line for line in settings if line.startswith("task.pooling=null ") and line.endswith("max ends)")]
    assert [line for line in settings if line.startswith("transfer.frozen=false ")]
    assert "task.network.features.suffix=0" in etude("tasks", "tag")
    told = etude(
        "finetune", base("bert"), "classify", "--train", reviews[0], "--dev", reviews[1], "-o", tmp_path / "ways", "-q",
        "--ways", "train.steps=2",
    )  # fmt: skip
    title, head, *rows = told.splitlines()[:4]
    assert title == "accuracy on dev; * is the best and stays"
    assert head.split() == [word for how in ("start", "mean", "max", "last") for word in ("pooling", how)]
    assert [row.split()[0] for row in rows] == ["features", "fine-tuned"]
    assert all(len(row.replace("*", "").split()) == 5 for row in rows) and "".join(rows).count("*") == 1
    etude("features", base("bert"), file, "-o", tmp_path / "v.npz", "--layers", "0,-1", "--pool", "mean")
    with np.load(tmp_path / "v.npz", allow_pickle=False) as arrays:
        assert arrays["vectors"].shape == (2, 2, 32) and arrays["layers"].tolist() == [0, 2]
        vectors = arrays["vectors"]
    etude("features", base("bert"), file, "-o", tmp_path / "t.npz", "--layers", "all", "--pool", "none")
    with np.load(tmp_path / "t.npz", allow_pickle=False) as arrays:
        assert arrays["0"].shape == (3, 4, 32)  # [CLS] good film [SEP]
        np.testing.assert_allclose(arrays["0"][[0, 2]].mean(1), vectors[0], atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"train.lr": "1e-4,1e-3"}, "--vary train.lr=0.0001,0.001"),
        ({"train.lr": [1e-4, 1e-3]}, "--vary train.lr=0.0001,0.001"),
        ({"task.pooling": "start,mean"}, "--vary task.pooling=start,mean"),
        ({"train.lr": "1e-4,x"}, None),  # no value of this setting
        ({"train.betas": [0.9, 0.98], "task.positive": "a: b,{"}, None),  # what they may be
    ],
)
def test_a_list_in_the_place_of_a_value_is_told_how_to_vary(settings: dict[str, Any], words: str | None) -> None:
    if words is None:
        trials.refuse_lists("classify", settings)
        return
    with pytest.raises(UserError, match=rf"cannot be .*To compare several values: {re.escape(words)}$"):
        trials.refuse_lists("classify", settings)


def test_the_command_line_says_how_to_vary(base: Bases, reviews: Files, tmp_path: Path) -> None:
    words = ["finetune", str(base("static")), "classify", "--train", str(reviews[0]), "-o", str(tmp_path / "x")]
    done = CliRunner().invoke(app, [*words, "train.lr=1e-4,1e-3"])
    assert isinstance(done.exception, UserError) and "--vary train.lr=0.0001,0.001" in str(done.exception)
    assert not (tmp_path / "x").exists()
    assert "--vary train.lr=1e-4,1e-3" in " ".join(CliRunner().invoke(app, ["finetune", "--help"]).output.split())

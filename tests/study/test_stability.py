"""Whole runs that get worse while they train, and the lower rate that their contender takes."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from etude.recipes.schema import Recipe
from etude.study import execute, planner
from etude.study.cells import Cell, CellStore
from etude.study.leaderboard import summarize_plan
from etude.study.plan import FullRuns, Plan
from etude.study.report.page import render_page
from etude.study.runner import Report, run
from etude.study.settings import Study
from etude.study.stability import Ending, choose_runs, find_ending
from etude.study.tuning import FIRST_SEED
from etude.train.failures import DivergenceError
from tests.study.test_teachers import load as load_teachers
from tests.study.test_tuning import row_of, store_loss
from tests.study.tiny_study import tiny

RATES = [0.1, 0.5, 1]  # of the recipe's own
DIVERGED = "Training diverged: the loss rose."
Endings = Mapping[
    tuple[float, int], Sequence[float] | None
]  # (multiple of the rate, seed) -> losses; None: it diverges


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Path, float]:
    """A study of two seeds whose trials are done, learning the faster the higher their rate by losses made up."""
    study = tiny(
        tune_pretraining={"lr": RATES, "share": 0.2, "by": "loss"}, **{"seeds.transfer": 1, "seeds.pretrain": 2}
    )
    folder = Path(tmp_path_factory.mktemp("trained")) / "study"
    run(study, folder)
    plan = planner.make_plan(study, folder)
    trials = plan.tunings["bert"].trials
    for trial in trials:
        store_loss(plan, trial.bases[0], 0.01 / trial.value)
    highest = max(trial.value for trial in trials)
    for key, cell in plan.cells.items():
        if cell.position.get("row") == "bert":  # those of the rate that its own losses had chosen
            plan.store.forget(key)
    return study, folder, highest


@pytest.fixture
def behave(monkeypatch: pytest.MonkeyPatch) -> Callable[[float, Endings], list[tuple[float, int]]]:
    """Make BERT's whole runs end as they are told to; returns where those that ran are listed."""

    def make(highest: float, endings: Endings) -> list[tuple[float, int]]:
        ran: list[tuple[float, int]] = []
        original = execute.CELL_RUNNERS["pretrain"]

        def train(cell: Cell, store: CellStore, work: Path, quiet: bool) -> dict[str, Any]:
            result = original(cell, store, work, quiet)
            if cell.position["row"] != "bert" or cell.position["seed"] >= FIRST_SEED:
                return result
            multiple = round(Recipe.parse(cell.arguments["recipe"]).train.lr / highest, 3)
            ran.append(place := (multiple, cell.position["seed"]))
            losses = endings.get(place, [2.0, 1.9])
            if losses is None:
                raise DivergenceError(DIVERGED)
            return {**result, "curve": [{**result["curve"][-1], "loss": loss} for loss in losses]}

        monkeypatch.setitem(execute.CELL_RUNNERS, "pretrain", train)
        return ran

    return make


def copy(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "study")
    return tmp_path / "study"


def check_same_again(study: Study, report: Report) -> None:
    """What a study reports at its end is what `--report` reads, and nothing is left to run."""
    plan = planner.make_plan(study, report.folder)
    again = run(study, report.folder, work=False)
    assert not plan.pending_cells() and again.results["rows"] == report.results["rows"]


@pytest.mark.parametrize(("losses", "ending", "got_worse"), [
    ([3.85, 3.05, 2.79, 2.68, 2.62, 2.558, 2.573, 2.618], Ending(2.558, 2.618), True),  # two towers at 1e-3, seed 0
    ([3.78, 3.12, 3.3, 3.23, 3.22, 3.17, 3.18, 3.16], Ending(3.12, 3.16), True),
    ([3.0, 2.5, 3.6, 2.4], Ending(2.4, 2.4), False),  # a spike from which it recovered
    ([4.428, 4.418, 4.42], Ending(4.418, 4.42), False),
    ([3.0, None, 2.5], Ending(2.5, 2.5), False),
    ([3.0, 2.5, None], Ending(2.5, math.inf), True),  # null in the log: not finite
    ([None], Ending(math.inf, math.inf), True),
])  # fmt: skip
def test_where_a_run_ends_decides(losses: list[float | None], ending: Ending, got_worse: bool) -> None:
    assert find_ending({"curve": [{"loss": loss} for loss in losses]}) == ending
    assert ending.got_worse == got_worse


def test_some_losses_say_nothing() -> None:
    """The task of a discriminator grows harder as its generator learns; weights that were copied have no curve."""
    curve = [{"loss": 16.6, "discriminator": 0.3}, {"loss": 27.1, "discriminator": 0.5}]
    assert find_ending({"curve": curve}) is None and find_ending({}) is None and find_ending({"curve": []}) is None


@pytest.mark.parametrize(("endings", "chosen"), [
    ([[None, None]], (0, False)),
    ([[2.0, None]], (0, False)),
    ([[2.0, "worse 2.5"]], (0, True)),  # one seed is enough
    ([["worse 2.5", None], [None, None]], (1, False)),
    ([["worse 2.5", None], [2.4, None]], (1, False)),
    ([["worse 2.5", 2.3], [2.4, 2.6]], (0, False)),  # 2.4 against 2.5 as means
    ([["worse 2.5", 2.3], [2.3, 2.4]], (1, False)),
    ([["worse 2.5", None], ["worse 2.4", None]], (1, True)),
    ([["worse 2.5", None], ["worse 2.6", None]], (0, False)),  # the rate is not why
    ([["worse 2.5", None], ["worse 2.4", None], ["worse 2.45", None]], (1, False)),
    ([["diverged", None], ["diverged", None]], (1, True)),
    ([["diverged", None], ["worse 9", None]], (1, True)),
])  # fmt: skip
def test_a_lower_rate_stays_if_it_ends_lower(
    endings: list[list[Any]], chosen: tuple[int, bool], tmp_path: Path
) -> None:
    store = CellStore(tmp_path)
    tried = []
    for number, runs in enumerate(endings):
        keys = tuple(f"{number}{seed}" * 16 for seed in range(len(runs)))
        tried.append(FullRuns(1.0 / (number + 1), keys))
        for key, said in zip(keys, runs, strict=True):
            if said == "diverged":
                store.fail(key, DIVERGED)
            elif said is not None:
                last = float(str(said).split()[-1])
                curve = [{"loss": last / 2 if "worse" in str(said) else last}, {"loss": last}]
                store.work_folder(key).mkdir(parents=True)
                store.finish(key, {"seconds": 1.0, "curve": curve})
    assert choose_runs(store, tried) == chosen


def test_a_study_goes_on_at_the_next_lower_rate(
    trained: tuple[Study, Path, float], behave: Callable[..., list[tuple[float, int]]], tmp_path: Path
) -> None:
    study, finished, highest = trained
    folder = copy(finished, tmp_path)
    lines: list[str] = []
    ran = behave(highest, {(1.0, 1): [1.9, 2.0]})  # seed 0 is as it should be, and trained again all the same
    report = run(study, folder, on_progress=lines.append)
    assert ran == [(1.0, 0), (1.0, 1), (0.5, 0), (0.5, 1)]
    row = row_of(report, "bert")
    assert not report.failed and row["scores"] and row["lr"] == pytest.approx(highest / 2)
    assert row["tuning"]["given_up"] == [{"rate": highest, "runs": 2, "rises": [{"lowest": 1.9, "last": 2.0}]}]
    assert row["tuning"]["lowest_loss"] is None, "of the trials that of the rate given up was lowest"
    assert not row["tuning"]["at_end"] and not row["tuning"]["rises"]["rises"]
    assert f"bert: a run at train.lr={highest:g} got worse while it trained, so all are made again" in "\n".join(lines)
    page = render_page(report.results)
    assert f"{highest:g} was given up" in page and "1 of 2 runs" in page and "1.900 → 2.000" in page
    check_same_again(study, report)

    plan = planner.make_plan(study, folder)
    assert f"bert: train.lr={highest:g} was given up" in summarize_plan(plan)
    given_up = [key for runs in plan.tunings["bert"].rejected for key in runs.keys]
    assert len(given_up) == 2 and not set(given_up) & set(plan.cells), "only its cost is the study's"
    spent = sum(plan.store.result(key)["flops"] for key in given_up)
    trials = {key for trial in plan.tunings["bert"].trials for key in trial.keys}
    assert row["tuning"]["flops"] == pytest.approx(spent + sum(plan.store.result(key)["flops"] for key in trials))

    counts = [re.match(r"\[(\d+)/(\d+)\] ", line) for line in lines]
    ended = [(int(count[1]), int(count[2])) for count in counts if count]
    assert [number for number, _ in ended] == list(range(1, len(ended) + 1)), "cells that were there do not count"
    assert ended[-1][0] == ended[-1][1]


def test_where_a_lower_rate_ends_no_lower_the_chosen_one_stays(
    trained: tuple[Study, Path, float], behave: Callable[..., list[tuple[float, int]]], tmp_path: Path
) -> None:
    """As with a text that is too small for its epochs."""
    study, finished, highest = trained
    ran = behave(highest, {(rate, seed): [1.5, 2.0] for rate in RATES for seed in range(2)})
    lines: list[str] = []
    report = run(study, copy(finished, tmp_path), on_progress=lines.append)
    row = row_of(report, "bert")
    assert row["lr"] == highest and row["scores"] and not row["tuning"]["given_up"]
    assert (0.1, 0) not in ran and "which stays" in "\n".join(lines)
    assert len(row["tuning"]["rises"]["rises"]) == 2 and "no lower rate that was tried ends lower" in render_page(
        report.results
    )
    check_same_again(study, report)


def test_the_lowest_rate_may_get_worse_as_well(
    trained: tuple[Study, Path, float], behave: Callable[..., list[tuple[float, int]]], tmp_path: Path
) -> None:
    study, finished, highest = trained
    ran = behave(highest, {(rate, seed): [1.0, 1 + rate] for rate in RATES for seed in range(2)})
    report = run(study, copy(finished, tmp_path))
    row = row_of(report, "bert")
    assert {rate for rate, _ in ran} == set(RATES) and row["lr"] == pytest.approx(highest / 10) and row["scores"]
    assert [each["rate"] for each in row["tuning"]["given_up"]] == pytest.approx([highest, highest / 2])
    assert row["tuning"]["at_end"] == ["train.lr"] and len(row["tuning"]["rises"]["rises"]) == 2
    check_same_again(study, report)


def test_a_run_that_diverges_gives_up_its_rate(
    trained: tuple[Study, Path, float], behave: Callable[..., list[tuple[float, int]]], tmp_path: Path
) -> None:
    """Its failure is no failure of the study."""
    study, finished, highest = trained
    ran = behave(highest, {(1.0, 0): None, (1.0, 1): None})
    report = run(study, copy(finished, tmp_path))
    assert ran == [(1.0, 0), (0.5, 0), (0.5, 1)] and not report.failed
    row = row_of(report, "bert")
    assert row["tuning"]["given_up"] == [{"rate": highest, "runs": 1, "rises": [{"lowest": None, "last": None}]}]
    assert row["scores"] and "∞ → ∞" in render_page(report.results)
    check_same_again(study, report)


def test_seeds_of_a_later_look_change_no_rate(
    trained: tuple[Study, Path, float], behave: Callable[..., list[tuple[float, int]]], tmp_path: Path
) -> None:
    """What the first look settled would be taken back."""
    study, finished, highest = trained
    folder = copy(finished, tmp_path)
    behave(highest, {(1.0, 2): [1.0, 2.0]})
    changes: dict[str, Any] = {"seeds.transfer": 1, "seeds.pretrain": 3, "rule": {"looks": [2, 3]}}
    later = tiny(tune_pretraining=study.tune_pretraining.model_dump(mode="json"), **changes)  # type: ignore[union-attr]
    report = run(later, folder)
    row = row_of(report, "bert")
    assert row["lr"] == highest and not row["tuning"]["given_up"] and row["scores"]


def test_nothing_is_trained_again_for_a_rate_that_was_given_up(
    trained: tuple[Study, Path, float], behave: Callable[..., list[tuple[float, int]]], tmp_path: Path
) -> None:
    """An archive has results without weights."""
    study, finished, highest = trained
    behave(highest, {(1.0, 1): [1.9, 2.0]})
    report = run(study, copy(finished, tmp_path), export_to=tmp_path / "cells.zip")
    lines: list[str] = []
    elsewhere = run(study, tmp_path / "elsewhere", import_from=[tmp_path / "cells.zip"], on_progress=lines.append)
    assert row_of(elsewhere, "bert")["tuning"] == row_of(report, "bert")["tuning"]
    assert not any(line.startswith("[") for line in lines)
    planned: Plan = planner.make_plan(study, tmp_path / "elsewhere")
    given_up = {key for runs in planned.tunings["bert"].rejected for key in runs.keys}
    others = set(planned.store.list_keys()) - set(planned.cells)
    assert len(given_up) == 2 and given_up < others
    assert f"{len(others) - 2} of" in "\n".join(lines), "they belong to the study"
    assert planned.tunings["bert"].chosen == planner.make_plan(study, report.folder).tunings["bert"].chosen


@pytest.mark.slow
def test_a_student_is_tuned_again_where_its_teacher_takes_a_lower_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = load_teachers(tune_pretraining={"lr": [1, 2], "share": 0.5, "by": "loss"}, seeds={"pretrain": 1})
    original = execute.CELL_RUNNERS["pretrain"]
    ran: list[tuple[str, float]] = []

    def train(cell: Cell, store: CellStore, work: Path, quiet: bool) -> dict[str, Any]:
        result = original(cell, store, work, quiet)
        rate = Recipe.parse(cell.arguments["recipe"]).train.lr
        if cell.position["row"] == "bert" and cell.position["seed"] == 0:
            ran.append(("whole", rate))
            losses = [1.0, 2.0] if rate == pytest.approx(2e-3) else [2.0, 1.0]
            return {**result, "curve": [{**result["curve"][-1], "loss": loss} for loss in losses]}
        return {**result, "valid": {**result["valid"], "loss": 0.01 / rate}}  # the faster the higher

    monkeypatch.setitem(execute.CELL_RUNNERS, "pretrain", train)
    lines: list[str] = []
    report = run(study, tmp_path / "study", device="cpu", on_progress=lines.append)
    assert not report.failed and [rate for _, rate in ran] == pytest.approx([2e-3, 1e-3])
    assert row_of(report, "bert")["lr"] == pytest.approx(1e-3) and row_of(report, "student")["scores"]
    plan = planner.make_plan(study, tmp_path / "study", device="cpu")
    assert plan.cells[plan.bases["student", 0]].depends_on == plan.bases["bert", 0]
    trial = plan.cells[plan.tunings["student"].trials[0].bases[-1]]
    assert "lr: 0.001\n" in plan.cells[trial.depends_on or ""].arguments["recipe"], "of the teacher it has now"
    assert not plan.pending_cells() and sum("got worse while it trained" in line for line in lines) == 1

"""Trials of pre-training: equally many for everybody, chosen on dev, and only then the cells of the study."""

from __future__ import annotations

import copy
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from etude.errors import UserError
from etude.recipes.document import parse
from etude.recipes.schema import Recipe
from etude.study import planner
from etude.study.leaderboard import summarize_plan
from etude.study.plan import Plan
from etude.study.report.page import render_page
from etude.study.report.tuning import render_tuning
from etude.study.runner import Report, run
from etude.study.settings import Study
from etude.study.tuning import FIRST_SEED, describe_tuning, read_setting, score_trial, with_settings
from tests.study.tiny_study import TINY, tiny

TRIALS = {"lr": [0.1, 1, 10], "share": 0.2}
OWN = {"contenders.bert.tune": {"objective.mask_rate": [0.15, 0.5]}, "contenders.gpt.tune": {"train.clip": [0.5, 1.0]}}
SHORT = {"seeds.transfer": 1, "tasks.topic.test_size": 20}


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Report]:
    study = tiny(tune_pretraining=TRIALS, **OWN, **SHORT)
    return study, run(study, Path(tmp_path_factory.mktemp("tuned")) / "study")


def row_of(report: Report, name: str) -> dict[str, Any]:
    return next(row for row in report.results["rows"] if row["name"] == name)


@pytest.mark.parametrize(("recipe", "setting", "value"), [
    ("bert-toy", "train.batch_tokens", 1024), ("skipgram-toy", "tokenizer", "word:5000,lower"),
    ("distilbert", "distill.temperature", 2.0), ("bert-toy", "model.nothing", None),
])  # fmt: skip
def test_what_a_recipe_says_of_a_setting(recipe: str, setting: str, value: Any) -> None:
    """The report shows it beside what the study sets for everybody."""
    assert read_setting(Recipe.load(recipe), setting) == value


def test_the_best_on_dev_is_what_the_study_trains_with(tuned: tuple[Study, Report]) -> None:
    study, report = tuned
    assert not report.failed
    plan = planner.make_plan(study, report.folder)
    assert not plan.untuned and not plan.pending_cells()
    for name, own in (("bert", "objective.mask_rate"), ("gpt", "train.clip")):
        tuning = plan.tunings[name]
        assert [trial.setting for trial in tuning.trials] == ["train.lr"] * 3 + [own] * 2
        for setting in ("train.lr", own):
            trials = [trial for trial in tuning.trials if trial.setting == setting]
            best = max(score_trial(plan, trial) for trial in trials)
            assert best in [score_trial(plan, trial) for trial in trials if trial.value == tuning.chosen[setting]]
        row = next(row for row in plan.rows if row.name == name)
        assert row.recipe is not None and row.recipe.train.lr == tuning.chosen["train.lr"]
        assert row_of(report, name)["lr"] == tuning.chosen["train.lr"]


def test_trials_are_shorter_and_share_no_seed_with_the_study(tuned: tuple[Study, Report]) -> None:
    study, report = tuned
    plan = planner.make_plan(study, report.folder)
    seeds = {cell.position["seed"] for cell in plan.tuning_cells.values() if cell.kind == "pretrain"}
    assert seeds == {FIRST_SEED}
    row = next(row for row in plan.rows if row.name == "bert")
    assert row.length is not None
    for cell in plan.tuning_cells.values():
        if cell.kind == "pretrain" and cell.position["row"].startswith("bert"):
            assert cell.flops == pytest.approx(row.length.flops / 5, rel=0.3)


def test_settings_that_cost_more_leave_fewer_steps(tuned: tuple[Study, Report]) -> None:
    """More masks are more predictions, so FLOPs a token differ between trials, and the FLOPs of a trial do not."""
    study, report = tuned
    plan = planner.make_plan(study, report.folder)
    draft = next(row.draft for row in plan.rows if row.name == "bert")
    assert draft is not None
    few, many = (with_settings(draft, {"objective.mask_rate": rate}) for rate in (0.15, 0.5))
    assert many.cost.flops_per_token > 1.05 * few.cost.flops_per_token
    cells = {cell.key: cell for cell in plan.tuning_cells.values()}
    for trial in plan.tunings["bert"].trials:
        spent = sum(plan.store.result(key)["flops"] for key in trial.bases)
        assert spent == pytest.approx(sum(cells[key].flops for key in trial.bases), rel=0.05), trial.value


def test_the_report_shows_trials_cost_and_ends(tuned: tuple[Study, Report]) -> None:
    _, report = tuned
    tuning = row_of(report, "bert")["tuning"]
    assert len(tuning["trials"]) == 5 and tuning["flops"] > 0 and not tuning["pending"]
    assert sum(trial["chosen"] for trial in tuning["trials"]) == 2
    rates = [trial for trial in tuning["trials"] if trial["setting"] == "train.lr"]
    chosen = next(trial["value"] for trial in rates if trial["chosen"])
    at_end = chosen in (min(trial["value"] for trial in rates), max(trial["value"] for trial in rates))
    assert ("train.lr" in tuning["at_end"]) == at_end
    changes = row_of(report, "bert")["changes"]
    assert {
        trial["setting"]: trial["value"] for trial in tuning["trials"] if trial["chosen"]
    }.items() <= changes.items()
    assert tuning["uncorrected"] and not row_of(report, "gpt")["tuning"]["uncorrected"], "BERT's Adam, and GPT's AdamW"
    page = render_page(report.results)
    assert "objective.mask_rate" in page and "공정한 설정" in page
    assert page.count("Adam without bias correction takes longer first steps") == 1


def test_the_report_says_which_rate_has_the_lowest_loss(tuned: tuple[Study, Report], tmp_path: Path) -> None:
    """Rates that dev examples drew by chance made the outcome of a study: the loss had preferred one for all."""
    study, report = tuned
    folder = tmp_path / "study"
    shutil.copytree(report.folder, folder)
    plan = planner.make_plan(study, folder, dry=True)
    tuning = plan.tunings["bert"]
    rates = {trial.value: trial for trial in tuning.trials if trial.setting == "train.lr"}
    chosen = tuning.chosen["train.lr"]
    better = next(rate for rate in rates if rate != chosen)
    for lowest, expected in ((chosen, None), (better, better)):
        for rate, trial in rates.items():
            store_loss(plan, trial.bases[0], 1.0 if rate == lowest else 2.0)
        described = describe_tuning(plan, tuning)
        assert described["lowest_loss"] == expected
        assert {trial["value"]: trial["loss"] for trial in described["trials"][:3]}[lowest] == 1.0
        results = copy.deepcopy(report.results)
        next(row for row in results["rows"] if row["name"] == "bert")["tuning"] = described
        page = render_page(results)
        assert ("held-out loss is lowest at" in page) == (expected is not None) and "(1.00)" in page
    plan.store.forget(rates[chosen].bases[0])
    assert describe_tuning(plan, tuning)["lowest_loss"] is None, "one is not done"


def test_rates_are_chosen_by_loss_where_the_study_says_so(tuned: tuple[Study, Report], tmp_path: Path) -> None:
    """Settings of the objective still by dev: other masks have another loss."""
    by_dev_study, report = tuned
    folder = tmp_path / "study"
    shutil.copytree(report.folder, folder)
    study = tiny(tune_pretraining={**TRIALS, "by": "loss"}, **OWN, **SHORT)
    rates = {trial.value: trial for trial in planner.make_plan(study, folder, dry=True).tunings["bert"].trials[:3]}
    for rate, trial in rates.items():
        for lowest in rates.values():
            plan = planner.make_plan(study, folder, dry=True)
            store_loss(plan, lowest.bases[0], 1.0 if lowest is trial else 2.0)
        tuning = planner.make_plan(study, folder, dry=True).tunings["bert"]
        assert tuning.chosen["train.lr"] == rate
        assert describe_tuning(plan, tuning)["lowest_loss"] is None
    by_dev = planner.make_plan(by_dev_study, folder, dry=True).tunings["bert"]
    for rate, trial in rates.items():  # at the rate of dev the trials of masks are done
        store_loss(plan, trial.bases[0], 1.0 if rate == by_dev.chosen["train.lr"] else 2.0)
    masks = [trial for trial in by_dev.trials if trial.setting == "objective.mask_rate"]
    for mask in masks:
        store_loss(plan, mask.bases[0], 2.0 if mask.value == by_dev.chosen["objective.mask_rate"] else 1.0)
    plan = planner.make_plan(study, folder, dry=True)
    tuning = plan.tunings["bert"]
    assert not tuning.is_pending and tuning.chosen == by_dev.chosen
    results = copy.deepcopy(report.results)
    assert "the value with the lowest loss is chosen" not in render_page(results)
    next(row for row in results["rows"] if row["name"] == "bert")["tuning"] = describe_tuning(plan, tuning)
    assert "the value with the lowest loss is chosen" in render_page(results)
    result = plan.store.result(trial.bases[0])
    store_result(plan, trial.bases[0], {key: value for key, value in result.items() if key != "valid"})
    with pytest.raises(UserError, match=r"no loss on held-out text.*by: dev"):
        planner.make_plan(study, folder, dry=True)


def store_loss(plan: Plan, key: str, loss: float) -> None:
    """Change the held-out loss of a pre-training that is done."""
    result = plan.store.result(key)
    store_result(plan, key, {**result, "valid": {**result["valid"], "loss": loss}})


def store_result(plan: Plan, key: str, result: dict[str, Any]) -> None:
    plan.store.forget(key)
    plan.store.work_folder(key).mkdir(parents=True, exist_ok=True)
    plan.store.finish(key, result)


def test_nothing_but_trials_runs_before_the_settings_are_chosen(report: Report, tmp_path: Path) -> None:
    """Before the trials are done the table has no score, though cells of the recipes' own rates lie in the store."""
    folder = tmp_path / "study"
    shutil.copytree(report.folder, folder)
    study = tiny(tune_pretraining={"lr": [1.0, 1.7], "share": 0.5})
    plan = planner.make_plan(study, folder, dry=True)
    assert plan.untuned == ["bert", "gpt"] and "not chosen yet" in summarize_plan(plan)
    assert {cell.key for cell in plan.ready_cells()} == set(plan.tuning_cells)
    waiting = run(study, folder, work=False)
    assert all(not row["scores"] for row in waiting.results["rows"] if row["kind"] == "contender")


def render_trials(report: Report, tuning: dict[str, Any]) -> str:
    """Render the section on trials of a report in which BERT has these."""
    rows = [{**row, "tuning": tuning} if row["name"] == "bert" else row for row in report.results["rows"]]
    return render_tuning({**report.results, "rows": rows}, defaultdict(str))


def test_a_trial_that_fails_loses(tuned: tuple[Study, Report], tmp_path: Path) -> None:
    study, report = tuned
    folder = tmp_path / "study"
    shutil.copytree(report.folder, folder)
    plan = planner.make_plan(study, folder, dry=True)
    before = plan.tunings["bert"]
    best = next(trial for trial in before.trials if trial.value == before.chosen["train.lr"])
    plan.store.forget(best.bases[0])
    page = render_trials(report, describe_tuning(plan, before))
    assert "Not done" in page and "Failed" not in page
    plan.store.fail(best.bases[0], "the loss became infinite")
    page = render_trials(report, describe_tuning(plan, before))
    assert "Failed" in page and "Not done" not in page
    after = planner.make_plan(study, folder, dry=True).tunings["bert"]
    assert after.chosen["train.lr"] != best.value
    assert score_trial(plan, best) == -float("inf")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tune_pretraining": {"lr": [0.5, 2]}}, "1 among them"),
        ({"tune_pretraining": {"lr": [1, 1]}}, "each once"),
        ({"tune_pretraining": {"tasks": ["topics"]}}, "no task of this study"),
        ({"tune_pretraining": {}, "contenders.bert.tune": {"train.clip": [1.0, 2.0]}}, "different numbers of trials"),
        ({"contenders.bert.tune": {"train.clip": [1.0, 2.0]}}, "tune_pretraining"),
    ],
)
def test_unfair_trials_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Study.from_document(parse(TINY, "tiny.yaml"), changes=changes)

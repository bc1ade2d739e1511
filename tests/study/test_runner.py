"""A study from its file to its results: equal budgets, cells that are kept, failures that disturb nobody."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from etude.errors import UserError
from etude.runs.run import Run
from etude.study import planner, results
from etude.study.leaderboard import summarize_plan
from etude.study.runner import Report, run, select_cells
from etude.study.settings import Study
from tests.study.tiny_study import tiny

TIMES = ("seconds", "date", "registered")


def timeless(value: Any) -> Any:
    """Results without what a clock says."""
    if isinstance(value, dict):
        return {name: timeless(one) for name, one in value.items() if name not in TIMES}
    return [timeless(one) for one in value] if isinstance(value, list) else value


def test_everything_is_there(report: Report, study: Study) -> None:
    found = report.results
    assert not report.failed
    assert [row["kind"] for row in found["rows"]] == ["contender", "contender", "control", "frozen", "majority"]
    for row in found["rows"]:
        assert set(row["scores"]) == {"topic@16"}
        assert len(row["mean"]["seeds"]) == 2 and row["mean"]["low"] <= row["mean"]["mean"] <= row["mean"]["high"]
    # two pre-trainings, one set of first weights (of control and frozen alike), 4 rows x 1 column x 2 seeds, a majority
    assert len(found["cells"]) == 2 + 1 + 4 * 2 + 1
    assert {"study.yaml", "results.json", "report.html", "table.md", "registered.json"} <= {
        path.name for path in report.folder.iterdir()
    }
    assert json.loads((report.folder / "results.json").read_text(encoding="utf-8")) == found
    again = Study.load(report.folder / "study.yaml")
    assert again == study, "what is saved is the study itself"
    assert {claim["verdict"] for claim in found["claims"]} <= {"not settled", "not tested"}, "one pre-training seed"
    table = (report.folder / "table.md").read_text(encoding="utf-8")
    assert "| bert |" in table and "BERT beats GPT <here>" in table


def test_measured_flops_differ_by_two_per_cent_at_most(report: Report) -> None:
    spent = [row["pretraining"]["flops"] for row in report.results["rows"] if row["kind"] == "contender"]
    assert max(spent) / min(spent) < 1.02
    assert all(one == pytest.approx(4.6e8, rel=0.02) for one in spent)


def test_a_second_run_does_nothing(report: Report, study: Study, tmp_path: Path) -> None:
    said: list[str] = []
    again = run(study, report.folder, on_progress=said.append)
    assert not said and timeless(again.results) == timeless(report.results)


def test_only_what_is_new_is_done(report: Report, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(report.folder, folder)
    said: list[str] = []
    more = run(tiny(**{"seeds.transfer": 1, "control.epochs": 3}), folder, on_progress=said.append)
    assert len([line for line in said if line.startswith("[")]) == 1, "the control of one seed"
    assert timeless(more.results["rows"][0]["scores"])["topic@16"]["mean"] == pytest.approx(
        report.results["rows"][0]["scores"]["topic@16"]["seeds"][0]
    )


def test_a_dry_run_tells_cost_and_what_is_cached(report: Report, study: Study, tmp_path: Path) -> None:
    there = planner.make_plan(study, report.folder, dry=True)
    assert there.exact and not there.pending_cells()
    assert "12 cells, 12 of them cached" in summarize_plan(there)
    fresh = planner.make_plan(study, tmp_path, dry=True)
    assert not fresh.exact and len(fresh.pending_cells()) == 12 and not (tmp_path / "corpora").exists()
    assert all(cell.seconds > 0 for cell in fresh.cells.values())
    assert sum(cell.flops for cell in fresh.cells.values()) > 2 * 4.6e8
    words = summarize_plan(fresh)
    assert "12 cells, 0 of them cached" in words and "4.6 × 10⁸ FLOPs for every contender" in words


def test_a_study_cut_off_tells_what_there_is(report: Report, study: Study, tmp_path: Path) -> None:
    folder = tmp_path / "cut"
    shutil.copytree(report.folder, folder)
    plan = planner.make_plan(study, folder)
    shutil.rmtree(folder / "cells" / plan.trials["gpt", "topic@16", 0, (0, 1)])
    said: list[str] = []
    cut = run(study, folder, work=False, on_progress=said.append)
    assert not said, "no cell is done"
    rows = {row["name"]: row for row in cut.results["rows"]}
    assert rows["gpt"]["mean"] is None and timeless(rows["bert"]) == timeless(report.results["rows"][0])
    assert {claim["verdict"] for claim in cut.results["claims"]} == {"not tested"}
    table = (folder / "table.md").read_text(encoding="utf-8")
    assert "not tested" in table and "| not done |" in table and "Not done" in cut.page.read_text(encoding="utf-8")
    done = report.results["rows"][1]["scores"]["topic@16"]["seeds"][0]
    assert rows["gpt"]["partial"] == {"topic@16": {"mean": done, "seeds": [done], "planned": 2}}, "the finished seed"
    assert f"| {100 * done:.1f} (1 of 2 seeds) |" in table and "1/2" in cut.page.read_text(encoding="utf-8")


def test_when_a_transfer_saves_is_no_part_of_its_key(study: Study, report: Report) -> None:
    often = planner.make_plan(tiny(**{"transfer.train.save_every": 1}), report.folder, dry=True)
    usual = planner.make_plan(study, report.folder, dry=True)
    assert list(often.cells) == list(usual.cells)
    transfers = [cell.arguments["settings"] for cell in usual.cells.values() if cell.kind == "transfer"]
    assert transfers and not any("train.save_every" in settings for settings in transfers), "by the clock"


def test_a_study_may_ask_for_a_precision(study: Study, report: Report) -> None:
    measured = planner.make_plan(study, report.folder, dry=True).machine.precision  # bf16 on a CPU that has it
    requested = "bf16" if measured == "float32" else "float32"
    asked = planner.make_plan(tiny(**{"transfer.train.precision": requested}), report.folder, dry=True)
    found = {cell.arguments["settings"]["train.precision"] for cell in asked.cells.values() if cell.kind == "transfer"}
    assert found == {requested} and asked.machine.precision == measured
    assert results.collect(asked, {}, {})["precision"] == "bf16, float32", "as the cells are, not as the machine would"
    assert report.results["precision"] == measured


@pytest.mark.slow
def test_commands_repeat_a_cell(report: Report, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """What the report shows, typed in the study's folder, gives the same number."""
    import shlex
    import sys

    from etude.cli.main import main

    def typed(line: str) -> None:
        monkeypatch.setattr(sys, "argv", shlex.split(line))
        with pytest.raises(SystemExit) as stopped:
            main()
        assert not stopped.value.code, line

    monkeypatch.chdir(report.folder)
    cells = report.results["cells"]
    learnt = next(cell for cell in cells if cell["kind"] == "pretrain")
    typed(learnt["commands"][0] + " --quiet")
    own = Run.open(f"again/{learnt['key'][:8]}").metrics("valid")[-1]
    assert own["loss"] == pytest.approx(learnt["valid"]["loss"], abs=0)
    scored = next(cell for cell in cells if cell["kind"] == "transfer" and cell["place"]["column"] == "topic@16")
    typed(scored["commands"][0] + " --quiet")
    capsys.readouterr()
    typed(scored["commands"][1])
    told = capsys.readouterr().out
    assert f"{scored['value']:.4f}" in told
    typed(f"etude study study.yaml -o . --cell {scored['key'][:8]} --quiet")


def test_a_broken_contender_fails_alone(report: Report, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(report.folder, folder)
    small = {"model.layers": 1, "model.width": 16, "model.heads": 2, "train.batch_tokens": 256}
    contenders = {
        **{name: one.model_dump(exclude_defaults=True) for name, one in tiny().contenders.items()},
        "hot": {"recipe": "bert-toy", "set": {**small, "train.lr": 10.0}},
    }
    said: list[str] = []
    broken = run(tiny(contenders=contenders), folder, on_progress=said.append)
    hot = next(row for row in broken.results["rows"] if row["name"] == "hot")
    assert hot["mean"] is None and len(hot["failed"]) == 2, "its pre-training, and what needed it"
    message = min(hot["failed"], key=len)
    assert ("diverged" in message or "not finite" in message) and "train.lr" in message
    assert any(line.startswith("[1/") and "FAILED" in line for line in said), "told when it happens"
    others = [row for row in broken.results["rows"] if row["name"] != "hot"]
    assert timeless(others) == timeless(report.results["rows"]), "nobody else is disturbed"
    page = broken.page.read_text(encoding="utf-8")
    assert "train.lr=10" in page or "learning rate" in page
    assert "hot:" in (folder / "table.md").read_text(encoding="utf-8")
    said.clear()
    run(tiny(contenders=contenders), folder, on_progress=said.append)
    assert not any("pre-training hot" in line and "FAILED" not in line for line in said), "a failure is remembered"


def test_claims_that_change_after_the_fact_are_told(report: Report, tmp_path: Path) -> None:
    folder = tmp_path / "changed"
    shutil.copytree(report.folder, folder)
    assert not report.results["registered"]["changed"]
    turned = run(tiny(claims=[{"claim": "GPT beats BERT", "better": "gpt", "than": "bert"}]), folder)
    assert turned.results["registered"]["changed"]
    assert "changed after results" in turned.page.read_text(encoding="utf-8")


def test_claims_registered_before_a_setting_of_claims_was_there(report: Report, study: Study, tmp_path: Path) -> None:
    folder = tmp_path / "older"
    shutil.copytree(report.folder, folder)
    path = folder / "registered.json"
    registered = json.loads(path.read_text(encoding="utf-8"))
    for claim in registered["claims"]:
        del claim["trainability"]
    path.write_text(json.dumps(registered), encoding="utf-8")
    (folder / "checksums.json").unlink()
    assert not run(study, folder, work=False).results["registered"]["changed"]


def test_seeds_that_are_added_after_the_fact_are_told(report: Report, study: Study, tmp_path: Path) -> None:
    folder = tmp_path / "seeds"
    shutil.copytree(report.folder, folder)
    assert not report.results["registered"]["unplanned_seeds"]
    fewer = run(tiny(**{"seeds.transfer": 1}), folder, work=False)
    assert fewer.results["registered"]["unplanned_seeds"] == ["1 × 2", "1 × 1"]
    assert fewer.results["registered"]["date"] == report.results["registered"]["date"]
    page = fewer.page.read_text(encoding="utf-8")
    assert (
        "was changed after results could be seen: 1 × 2, 1 × 1" in page
        and "시드 수(사전 학습 × 전이)가 바뀌었습니다" in page
    )


@pytest.mark.slow
def test_processes_give_the_same(report: Report, study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder = tmp_path / "processes"
    shutil.copytree(report.folder, folder)
    plan = planner.make_plan(study, folder)
    doomed = list(plan.trials.values())[:3]
    for key in [*doomed, plan.bases["gpt", 0]]:
        shutil.rmtree(folder / "cells" / key)
    said: list[str] = []
    again = run(study, folder, on="processes", workers=2, on_progress=said.append)
    assert len([line for line in said if line.startswith("[")]) == 4
    close(again.results["rows"], report.results["rows"])


def close(one: Any, other: Any) -> None:
    """Equal to rounding: the number of threads may differ between the two."""
    if isinstance(one, dict):
        for name in one:
            if name not in TIMES:
                close(one[name], other[name])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            close(a, b)
    elif isinstance(one, float) and math.isfinite(one):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-6)
    else:
        assert one == other


@pytest.mark.slow
def test_on_a_local_ray(report: Report, study: Study, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'etude[ray]'")
    folder = tmp_path / "ray"
    shutil.copytree(report.folder, folder)
    plan = planner.make_plan(study, folder)
    for key in [plan.bases["bert", 0], *list(plan.trials.values())[:2]]:
        shutil.rmtree(folder / "cells" / key)
    said: list[str] = []
    again = run(study, folder, on="ray", on_progress=said.append)
    assert len([line for line in said if line.startswith("[")]) == 3
    close(again.results["rows"], report.results["rows"])


def test_one_cell_and_a_second_process(report: Report, study: Study, tmp_path: Path) -> None:
    plan = planner.make_plan(study, report.folder)
    key = next(key for key, cell in plan.cells.items() if cell.depends_on)
    assert [cell.key for cell in select_cells(plan, key[:8])] == [plan.cells[key].depends_on, key]
    with pytest.raises(UserError, match="no cell"):
        select_cells(plan, "zz")
    from etude.study.study_folder import lock_folder

    with lock_folder(report.folder), pytest.raises(UserError, match="another process"):
        run(study, report.folder)

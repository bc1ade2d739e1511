"""`etude demo`: a toy study that ends within minutes.

Several models pre-train on the built-in world for the same compute, are fine-tuned on two tasks with few labels, and
are compared with no pre-training. The budget is measured first: FLOPs per second of each contender give the FLOPs each
may spend for everything to fit the time. It is saved in the folder, so that a demo that was stopped resumes with it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict  # that of Python 3.11 cannot be checked

from etude.cores import count_cores
from etude.settings import read_json
from etude.stages import report_stage
from etude.study import planner
from etude.study.cells import PRETRAININGS
from etude.study.runner import Report, run
from etude.study.settings import Study
from etude.study.study_folder import refuse_other_files
from etude.train import checkpoint

STUDY_FILE = Path(__file__).parent / "demo.yaml"
MINUTES = 4.5  # planned for; a machine that becomes busy takes longer
STARTUP_SECONDS = 15.0  # seconds of every process: loading torch; and of the first: preparing the text
LEAST_FLOPS = 1e9  # of a contender: a step or two
SHARED_SPEED = 0.8  # speed of a core when the others work too
BUDGET_FILE = "budget.json"


class DemoBudget(TypedDict):
    """What `budget.json` of a demo holds."""

    flops: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    minutes: float
    workers: int


def run_demo(
    folder: Path,
    language: str = "en",
    minutes: float = MINUTES,
    workers: int | None = None,
    seed: int = 0,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Report:
    """Run the cells that are not done and write the report."""
    refuse_other_files(folder)
    workers = workers or min(4, count_cores())
    study = Study.load(STUDY_FILE, changes={"text.language": language, "text.seed": seed})
    flops = calibrate_flops(study, folder, minutes, workers, on_progress)
    study = Study.load(STUDY_FILE, changes={"text.language": language, "text.seed": seed, "budget": {"flops": flops}})
    return run(study, folder, on="processes", workers=workers, device="cpu", language=language, on_progress=on_progress)


def calibrate_flops(
    study: Study, folder: Path, minutes: float, workers: int, on_progress: Callable[[str], None]
) -> float:
    """Choose the FLOPs per contender such that pre-training and all transfers fit into the minutes."""
    path = folder / BUDGET_FILE
    if path.is_file():
        saved = read_json(path, DemoBudget, "Remove it: the machine is then measured again.")
        if saved["minutes"] != minutes:
            on_progress(
                f"{folder} goes on with its budget for {saved['minutes']:g} minutes. To plan for {minutes:g}, choose "
                "another folder with -o."
            )
        return saved["flops"]
    on_progress("Measuring this machine")
    report_stage("measuring this machine")
    folder.mkdir(parents=True, exist_ok=True)
    plan = planner.make_plan(study, folder, device="cpu", workers=workers, on_progress=on_progress)
    seconds = minutes * 60 * workers * SHARED_SPEED - workers * STARTUP_SECONDS
    seconds -= sum(cell.seconds for cell in plan.cells.values() if cell.kind not in PRETRAININGS)
    drafts = [row.draft for row in plan.rows if row.kind == "contender" and row.draft]
    by_gradient = [
        1 / (plan.tokens_per_second(draft) * draft.cost.flops_per_token)
        for draft in drafts
        if not draft.cost.updates_itself
    ]
    # those that go by the clock take what the others take on average
    share = sum(by_gradient) * len(drafts) / len(by_gradient) * study.seeds.pretrain
    flops = max(LEAST_FLOPS, seconds / share)
    flops = float(f"{flops:.2g}")  # a round number, and the same one after a small change of speed
    checkpoint.write_text(path, json.dumps({"flops": flops, "minutes": minutes, "workers": workers}))
    seconds_each = [flops * seconds_per_flop for seconds_per_flop in by_gradient]
    on_progress(
        f"{flops:.2g} FLOPs for each contender: {min(seconds_each):.0f} to {max(seconds_each):.0f} s on this machine"
    )
    if flops <= LEAST_FLOPS:
        on_progress(
            f"This machine is too slow or too busy for a comparison in {minutes:g} minutes: pre-training will hardly "
            "begin, and the scores will say nothing. 'etude demo --minutes 20 -o another' gives it time."
        )
    return flops


def best_gain(report: Report) -> tuple[str, float] | None:
    """Return the best contender and its gain in points over no pre-training."""
    ranked = [row for row in report.results["rows"] if row["kind"] == "contender" and row["mean"]]
    best = max(ranked, key=lambda row: row["mean"]["mean"], default=None)
    control = next((row for row in report.results["rows"] if row["kind"] == "control"), None)
    if best is None or control is None or control["mean"] is None:
        return None
    difference = 100 * (best["mean"]["mean"] - control["mean"]["mean"])
    return (str(best["label"]), difference) if math.isfinite(difference) else None

"""`etude finetune RUN glue`: a suite of tasks, each a run of its own, and one score.

GLUE (Wang et al. 2019): the mean over tasks; a task with two metrics is their mean first, MNLI the mean of its
matched and mismatched parts. What is scored here is dev, as the test labels are not public. A folder may hold some
of the tasks: the score then says of how many. WNLI is left out, as in BERT and after: its dev set is adversarial to
its training set, so a majority guess beats learning.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from etude.errors import UserError
from etude.inference.task_model import TaskModel
from etude.recipes.datasets import leaves
from etude.recipes.document import Overrides, parse_overrides
from etude.runs.task_plan import Plan
from etude.train import checkpoint
from etude.transfer import finetune as single

FILE = "suite.json"
SUFFIXES = [kind + squeezed for kind in (".tsv", ".jsonl", ".csv") for squeezed in ("", ".xz", ".gz", ".zst")]


@dataclass(frozen=True)
class Member:
    folders: tuple[str, ...]
    kind: str
    metrics: tuple[str, ...]  # whose mean is its score; the first chooses the best weights
    dev: tuple[str, ...] = ("dev", "valid")
    more: tuple[str, ...] = ()  # further files that are scored beside dev
    settings: dict[str, Any] = field(default_factory=dict)


SUITES: dict[str, dict[str, Member]] = {
    "glue": {
        "CoLA": Member(("CoLA", "cola"), "classify", ("mcc",), settings={"task.score": "mcc"}),
        "SST-2": Member(("SST-2", "sst2"), "classify", ("accuracy",)),
        "MRPC": Member(("MRPC", "mrpc"), "pair", ("f1", "accuracy"), settings={"task.score": "f1"}),
        "STS-B": Member(("STS-B", "stsb"), "similarity", ("pearson", "spearman")),
        "QQP": Member(("QQP", "qqp"), "pair", ("f1", "accuracy"), settings={"task.score": "f1"}),
        "MNLI": Member(
            ("MNLI", "mnli"), "pair", ("accuracy",), ("dev_matched", "dev", "valid"), ("dev_mismatched",)
        ),
        "QNLI": Member(("QNLI", "qnli"), "pair", ("accuracy",)),
        "RTE": Member(("RTE", "rte"), "pair", ("accuracy",)),
    }
}  # fmt: skip


def run_suite(
    base: str | Path,
    name: str,
    data: str | Path,
    out: str | Path,
    overrides: Overrides = (),
    skip_bad: bool = False,
    quiet: bool = False,
) -> dict[str, Any] | None:
    """Fine-tunes every task of the suite that the folder holds; None where it was stopped.

    Called again, it goes on: what is finished stays, what was begun is resumed.
    """
    data, out = Path(data), Path(out)
    found = {task: files for task, member in SUITES[name].items() if (files := _files(data, member))}
    if not found:
        wanted = ", ".join(member.folders[0] for member in SUITES[name].values())
        raise UserError(f"{data} holds no task of {name}: folders such as {wanted}, each with a train and a dev file.")
    given = {".".join(path): value for path, value in leaves(parse_overrides(overrides).values)}
    scores: dict[str, Any] = {}
    for task, (train, dev, more) in found.items():
        member, folder = SUITES[name][task], out / task
        if (folder / "recipe.yaml").is_file():
            run = single.resume(folder, quiet)
        else:
            changes = {**member.settings, **given}
            run = single.finetune(
                base, member.kind, train, folder, dev=dev, overrides=changes, skip_bad=skip_bad, quiet=quiet
            )
        if not run.finished:
            return None
        parts = [{metric: Plan.read(folder).scores[metric]["value"] for metric in member.metrics}]
        for file in more:
            beside = TaskModel.open(folder).evaluate(file, intervals=False)
            parts.append({metric: beside[metric].value for metric in member.metrics})
        value = statistics.fmean(one for part in parts for one in part.values())
        scores[task] = {"score": value, "parts": parts}
    mean = statistics.fmean(one["score"] for one in scores.values())
    result = {"suite": name, "score": mean, "tasks": scores, "of": len(SUITES[name]), "split": "dev"}
    checkpoint.write_text(out / FILE, json.dumps(result, indent=1))
    return result


def _files(data: Path, member: Member) -> tuple[Path, Path, list[Path]] | None:
    """(train, dev, further ones) of a task, where its folder is there."""
    folder = next((data / name for name in member.folders if (data / name).is_dir()), None)
    if folder is None:
        return None
    train, dev = _first(folder, ("train",)), _first(folder, member.dev)
    if train is None or dev is None:
        raise UserError(f"{folder} lacks a {'train' if train is None else 'dev'} file ({', '.join(SUFFIXES[::4])}).")
    return train, dev, [file for name in member.more if (file := _first(folder, (name,))) is not None]


def _first(folder: Path, names: tuple[str, ...]) -> Path | None:
    return next((file for name in names for end in SUFFIXES if (file := folder / f"{name}{end}").is_file()), None)


def table(result: dict[str, Any]) -> str:
    lines = [f"{task:<8} {100 * one['score']:.1f}" for task, one in result["tasks"].items()]
    count = f"{len(result['tasks'])} of {result['of']} tasks"
    return "\n".join(
        [*lines, f"{result['suite']:<8} {100 * result['score']:.1f}  (mean of {count}, on {result['split']})"]
    )

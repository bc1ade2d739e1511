"""Suites of tasks such as GLUE: each task a run of its own, and one mean score (`etude finetune RUN glue`).

GLUE (Wang et al. 2019): the mean over tasks; a task with two metrics is their mean first, MNLI the mean of its
matched and mismatched parts. Scores are on dev, since the test labels are not public. A folder may hold some of the
tasks; the result says how many. WNLI is left out, as in BERT: its dev set is adversarial to its training set, so the
majority class beats learning.
"""

from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict  # that of Python 3.11 cannot be checked

from etude.errors import UserError, explain_write_failure
from etude.inference.task_model import TaskModel
from etude.recipes.datasets import leaves
from etude.recipes.document import Overrides, parse_overrides
from etude.runs.completion import complete_finished
from etude.runs.task_plan import ExampleFile, Plan
from etude.settings import read_json
from etude.train import checkpoint
from etude.transfer import finetune as single

FILE, REQUEST = "suite.json", "suite_request.json"
SUFFIXES = [kind + squeezed for kind in (".tsv", ".jsonl", ".csv") for squeezed in ("", ".xz", ".gz", ".zst")]


@dataclass(frozen=True)
class SuiteTask:
    """A task of a suite: its folder, its kind and its metrics."""

    folders: tuple[str, ...]
    kind: str
    metrics: tuple[str, ...]  # whose mean is its score; the first chooses the best weights
    dev: tuple[str, ...] = ("dev", "valid")
    more: tuple[str, ...] = ()  # further files that are scored beside dev
    settings: dict[str, Any] = field(default_factory=dict)


SUITES: dict[str, dict[str, SuiteTask]] = {
    "glue": {
        "CoLA": SuiteTask(("CoLA", "cola"), "classify", ("mcc",), settings={"task.score": "mcc"}),
        "SST-2": SuiteTask(("SST-2", "sst2"), "classify", ("accuracy",)),
        "MRPC": SuiteTask(("MRPC", "mrpc"), "pair", ("f1", "accuracy"), settings={"task.score": "f1"}),
        "STS-B": SuiteTask(("STS-B", "stsb"), "similarity", ("pearson", "spearman")),
        "QQP": SuiteTask(("QQP", "qqp"), "pair", ("f1", "accuracy"), settings={"task.score": "f1"}),
        "MNLI": SuiteTask(
            ("MNLI", "mnli"), "pair", ("accuracy",), ("dev_matched", "dev", "valid"), ("dev_mismatched",)
        ),
        "QNLI": SuiteTask(("QNLI", "qnli"), "pair", ("accuracy",)),
        "RTE": SuiteTask(("RTE", "rte"), "pair", ("accuracy",)),
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
    """Fine-tune every task of the suite that the folder holds; return None where it was interrupted.

    Called again, it goes on: finished runs stay, an interrupted one is resumed.
    """
    data, out = Path(data), Path(out)
    task_files = {task: files for task, member in SUITES[name].items() if (files := _find_files(data, member))}
    if not task_files:
        folders = ", ".join(member.folders[0] for member in SUITES[name].values())
        raise UserError(f"{data} holds no task of {name}: folders such as {folders}, each with a train and a dev file.")
    settings = {".".join(path): value for path, value in leaves(parse_overrides(overrides).values)}
    _check_request(out, {"run": _resolve(base), "data": _resolve(data), "settings": settings, "skip_bad": skip_bad})
    try:
        return _run_tasks(base, name, task_files, out, settings, skip_bad, quiet)
    except UserError:
        if not any(out.glob("*/recipe.yaml")):  # nothing has begun: the same folder may be named again
            (out / REQUEST).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # it holds something else
                out.rmdir()
        raise


def _run_tasks(
    base: str | Path,
    name: str,
    task_files: Mapping[str, tuple[Path, Path, list[Path]]],
    out: Path,
    settings: dict[str, Any],
    skip_bad: bool,
    quiet: bool,
) -> dict[str, Any] | None:
    scores: dict[str, Any] = {}
    for task, (train, dev, more) in task_files.items():
        member, folder = SUITES[name][task], out / task
        if (folder / "recipe.yaml").is_file():
            for file in (train, dev):
                _check_unchanged(folder, file)
            run = complete_finished(single.resume(folder, quiet))
        else:
            changes = {**member.settings, **settings}
            run = single.finetune(
                base, member.kind, train, folder, dev=dev, overrides=changes, skip_bad=skip_bad, quiet=quiet
            )
        if not run.finished:
            return None
        parts = [{metric: Plan.read(folder).scores[metric]["value"] for metric in member.metrics}]
        for file in more:
            extra_scores = TaskModel.open(folder).evaluate(file, intervals=False)
            parts.append({metric: extra_scores[metric].value for metric in member.metrics})
        value = statistics.fmean(task_score for part in parts for task_score in part.values())
        scores[task] = {"score": value, "parts": parts}
    mean = statistics.fmean(task_score["score"] for task_score in scores.values())
    result = {"suite": name, "score": mean, "tasks": scores, "of": len(SUITES[name]), "split": "dev"}
    checkpoint.write_text(out / FILE, json.dumps(result, indent=1))
    return result


class SuiteRequest(TypedDict):
    """What a suite was asked for: calls with another one do not go on with its runs."""

    run: str
    data: str
    settings: dict[str, Any]
    skip_bad: bool


def _check_request(out: Path, request: SuiteRequest) -> None:
    """Store the request where a suite begins; raise UserError where the folder holds the runs of another one."""
    path = out / REQUEST
    if not path.is_file():
        with explain_write_failure(out, UserError):
            out.mkdir(parents=True, exist_ok=True)
        checkpoint.write_text(path, json.dumps(request, indent=1, ensure_ascii=False))
        return
    stored: dict[str, Any] = {**read_json(path, SuiteRequest, "Name another folder with -o.")}
    requested: dict[str, Any] = json.loads(json.dumps(request))
    for key, value in requested.items():
        if stored[key] != value:
            raise UserError(
                f"{out} holds a suite of another request: {key} was {stored[key]}, and is {value}. "
                "Name another folder with -o."
            )


def _resolve(path: str | Path) -> str:
    """The whole path of what is there; an id of the hub stays as it is."""
    return str(Path(path).resolve()) if Path(path).exists() else str(path)


def _check_unchanged(folder: Path, file: Path) -> None:
    """Raise UserError where a run was trained on another content of a file."""
    plan, now = Plan.read(folder), ExampleFile.from_path(file)
    if now.fingerprint not in {used.fingerprint for used in (plan.examples, plan.dev) if used is not None}:
        raise UserError(f"{file} has changed since {folder} was trained on it. Put it back, or name another folder.")


def _find_files(data: Path, member: SuiteTask) -> tuple[Path, Path, list[Path]] | None:
    """Return the train, dev and further files of a task; None where it has no folder."""
    folder = next((data / name for name in member.folders if (data / name).is_dir()), None)
    if folder is None:
        return None
    train, dev = _first_file(folder, ("train",)), _first_file(folder, member.dev)
    if train is None or dev is None:
        raise UserError(f"{folder} lacks a {'train' if train is None else 'dev'} file ({', '.join(SUFFIXES[::4])}).")
    return train, dev, [file for name in member.more if (file := _first_file(folder, (name,))) is not None]


def _first_file(folder: Path, names: tuple[str, ...]) -> Path | None:
    return next((file for name in names for end in SUFFIXES if (file := folder / f"{name}{end}").is_file()), None)


def format_table(result: dict[str, Any]) -> str:
    """Format the scores of a suite, a line a task and the mean."""
    lines = [f"{task:<8} {100 * task_score['score']:.1f}" for task, task_score in result["tasks"].items()]
    count = f"{len(result['tasks'])} of {result['of']} tasks"
    return "\n".join(
        [*lines, f"{result['suite']:<8} {100 * result['score']:.1f}  (mean of {count}, on {result['split']})"]
    )

"""`etude pick`: the best pre-training for a text, a labelled task and a time limit, exported.

Successive halving (Jamieson and Talwalkar 2016) over recipes and sizes: all candidates pre-train for a short time, the
better half continues with twice as much, and so on until two are left, which are compared with the control without
pre-training over several seeds. All choices are made on dev; the test split is first read in the last round. Where
nothing beats "no pre-training" on dev, the result is the model trained on the labels alone.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from etude.errors import UserError
from etude.hub.exporter import export_run
from etude.runs.task_plan import task_module
from etude.study import runner as running
from etude.study.label_splits import read_records, resolve_path, split_by_hash
from etude.study.plan import Plan
from etude.study.plan import make_plan as make_plan
from etude.study.report.page import write_report
from etude.study.runner import RESULTS, ExecutorName, Report
from etude.study.settings import CONTROL, FROZEN, MAJORITY, Study
from etude.train import checkpoint

CPU_CANDIDATES: dict[str, dict[str, Any]] = {  # what a CPU pre-trains in minutes, each at two widths
    "bert": {"recipe": "bert-toy"},
    "bert-wide": {"recipe": "bert-toy", "set": {"model.width": 128}},
    "electra": {"recipe": "electra-toy", "set": {"model.width": 64, "model.embedding_width": 64}},
    "electra-wide": {"recipe": "electra-toy"},
    "gpt": {"recipe": "gpt1-toy"},
    "gpt-wide": {"recipe": "gpt1-toy", "set": {"model.width": 128}},
    "vectors": {"recipe": "skipgram-toy"},
}
GPU_CANDIDATES: dict[str, dict[str, Any]] = {  # and a GPU
    "bert-mini": {"recipe": "bert-mini"},
    "bert-small": {"recipe": "bert-small"},
    "electra-small": {"recipe": "electra-small"},
    "gpt-small": {"recipe": "gpt1", "set": {"model.layers": 6, "model.width": 512, "model.heads": 8}},
    "vectors": {"recipe": "skipgram-toy", "set": {"model.width": 300}},
}
SEEDS = 3  # transfers of each of the last two
FINALISTS = 2  # contenders of the last round
PLANNED_SHARE = 0.9  # of the minutes; preparing and reporting take the rest
MIN_MINUTES = 1 / 60  # of pre-training: below it a round is uninformative
LOG_FILE = "pick.json"


@dataclass(frozen=True)
class PickResult:
    folder: Path
    winner: str
    pays: bool  # whether it beats no pre-training on dev
    report: Report

    @property
    def model(self) -> Path:
        """The fine-tuned run."""
        return self.folder / "best"


def pick(
    text: Sequence[str],
    task: str,
    train: str | Path,
    out: str | Path,
    minutes: float,
    *,
    dev: str | Path | None = None,
    test: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    candidates: Mapping[str, Mapping[str, Any]] | None = None,
    settings: Mapping[str, Any] | None = None,
    on: ExecutorName = "here",
    workers: int = 1,
    device: str | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> PickResult:
    """Pick the best of `candidates` ({name: {"recipe": ..., "set": {...}}}); `settings` are for the transfers."""
    task_module(task)
    out, start = Path(out), time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    files = _split_files(out / "labelled", task, train, dev, test)
    defaults: Mapping[str, Mapping[str, Any]] = (
        GPU_CANDIDATES if (device or _default_device()) == "cuda" else CPU_CANDIDATES
    )
    chosen = {name: dict(candidate) for name, candidate in (candidates or defaults).items()}
    if len(chosen) < 2:
        raise UserError("One candidate is no choice: name two or more recipes.")
    log = _PickLog(out / LOG_FILE, {"task": task, "candidates": chosen})
    common: dict[str, Any] = {
        "text": _text_settings(text), "columns": dict(columns or {}), "kind": task, "files": files,
        "settings": dict(settings or {}),
    }  # fmt: skip
    survivors, names = _plan_rounds(len(chosen)), list(chosen)
    report: Report | None = None
    for number, survivor_count in enumerate(survivors):
        last = number == len(survivors) - 1
        round_log = log.round(number)
        if round_log is None:
            spent = time.monotonic() - start
            share = (PLANNED_SHARE * minutes * 60 - spent) / (len(survivors) - number)
            study = _build_study(common, {name: chosen[name] for name in names}, 1.0, last)
            minutes_each = _minutes_each(study, out, share, max(1, workers if on == "processes" else 1), device)
            round_log = log.begin(number, names, minutes_each)
        on_progress(
            f"Round {number + 1} of {len(survivors)}: {len(names)} candidates, {round_log['minutes']:.2g} minutes each"
        )
        study = _build_study(common, {name: chosen[name] for name in round_log["names"]}, round_log["minutes"], last)
        report = running.run(study, out, on=on, workers=workers, device=device, keep=last, on_progress=on_progress)
        scores = _dev_scores(report)
        ranked = sorted((name for name in round_log["names"] if name in scores), key=lambda name: -scores[name])
        if not ranked:
            raise UserError(f"Every candidate failed: {'; '.join(report.failed[:3])}")
        names = ranked[:survivor_count]
        log.end(number, scores, names)
    assert report is not None
    return _write_result(out, report, _dev_scores(report), log)


def _default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _plan_rounds(count: int) -> list[int]:
    """List how many candidates survive each round: halves until two, then the winner."""
    survivors = []
    while count > FINALISTS:
        count = max(FINALISTS, -(-count // 2))
        survivors.append(count)
    return [*survivors, 1]


def _text_settings(paths: Sequence[str]) -> dict[str, Any]:
    if len(paths) == 1 and (Path(paths[0]) / "manifest.json").is_file():
        return {"corpus": paths[0]}
    return {"files": list(paths)}


def _split_files(
    folder: Path, kind: str, train: str | Path, dev: str | Path | None, test: str | Path | None
) -> dict[str, str]:
    """Write train, dev and test files that share no example; a missing split is taken from train by content hash."""
    names = {name: folder / f"{name}.jsonl" for name in ("train", "dev", "test")}
    if all(path.is_file() for path in names.values()):
        return {name: str(path) for name, path in names.items()}
    folder.mkdir(parents=True, exist_ok=True)
    train_records = read_records(kind, resolve_path(str(train), None))
    dev_records = None if dev is None else read_records(kind, resolve_path(str(dev), None))
    test_records = None if test is None else read_records(kind, resolve_path(str(test), None))
    if test_records is None:
        train_records, test_records = split_by_hash(train_records, lambda tenth: tenth < 8)
    if dev_records is None:
        train_records, dev_records = split_by_hash(train_records, lambda tenth: tenth < 6)
    for name, part in (("train", train_records), ("dev", dev_records), ("test", test_records)):
        if len(part) < 2:
            raise UserError(f"{train}: too few examples to part: {len(part)} are left for {name}. Give more of them.")
        checkpoint.write_text(names[name], "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in part))
    return {name: str(path) for name, path in names.items()}


def _build_study(common: dict[str, Any], contenders: dict[str, Any], minutes: float, last: bool) -> Study:
    files = common["files"]
    values = {
        "name": "pick",
        "title": {"en": "Which pre-training pays here", "ko": "여기서는 어떤 사전 학습이 이로운가"},
        "text": common["text"], "budget": {"minutes": minutes}, "contenders": contenders,
        "tasks": {
            "task": {
                "kind": common["kind"], "train": files["train"], "dev": files["dev"],
                "test": files["test"] if last else files["dev"],  # nothing but the last round reads the test part
                "columns": common["columns"], "set": common["settings"],
            }
        },
        "seeds": {"pretrain": 1, "transfer": SEEDS if last else 1},
    }  # fmt: skip
    return Study.model_validate(values)


def _minutes_each(study: Study, out: Path, seconds: float, workers: int, device: str | None) -> float:
    """Compute the minutes of pre-training per candidate such that a round with its transfers fits its time."""
    plan: Plan = make_plan(study, out, device=device, dry=True)
    transfers = sum(cell.seconds for cell in plan.cells.values() if cell.kind == "transfer")
    minutes = (seconds * workers - transfers) / len(study.contenders) / 60
    return max(MIN_MINUTES, minutes)


def _dev_scores(report: Report) -> dict[str, float]:
    """Average the dev scores of every row that is complete."""
    scores: dict[str, list[float]] = {}
    for cell in report.results["cells"]:
        if cell["kind"] in ("transfer", "majority") and "dev" in cell:
            scores.setdefault(cell["place"]["row"], []).append(cell["dev"])
    units = report.results["seeds"]["pretrain"] * report.results["seeds"]["transfer"]
    return {name: fmean(values) for name, values in scores.items() if len(values) == units}


class _PickLog:
    """Decisions so far, saved so that a pick that was killed decides the same again."""

    def __init__(self, path: Path, request: dict[str, Any]) -> None:
        self.path = path
        self.values: dict[str, Any] = {**request, "rounds": []}
        if path.is_file():
            saved = json.loads(path.read_text(encoding="utf-8"))
            if {name: saved[name] for name in request} != request:
                raise UserError(f"{path.parent} holds another pick. Choose another folder with -o.")
            self.values = saved

    def round(self, number: int) -> dict[str, Any] | None:
        return self.values["rounds"][number] if number < len(self.values["rounds"]) else None

    def begin(self, number: int, names: list[str], minutes: float) -> dict[str, Any]:
        self.values["rounds"].append({"names": names, "minutes": minutes})
        self._write()
        return self.values["rounds"][number]

    def end(self, number: int, scores: dict[str, float], survivors: list[str]) -> None:
        self.values["rounds"][number] |= {"dev": scores, "kept": survivors}
        self._write()

    def _write(self) -> None:
        checkpoint.write_text(self.path, json.dumps(self.values, indent=1, ensure_ascii=False))


def _write_result(out: Path, report: Report, scores: dict[str, float], log: _PickLog) -> PickResult:
    """Write the report with its rounds, and export the winner."""
    contenders = [name for name in scores if name not in (CONTROL, FROZEN, MAJORITY)]
    winner = max(contenders, key=lambda name: scores[name])
    pays = CONTROL not in scores or scores[winner] > scores[CONTROL]
    winner = winner if pays else CONTROL
    labels = {row["name"]: row["label"] for row in report.results["rows"]}
    rounds = [
        {
            "minutes": round_log["minutes"],
            "rows": [
                {"label": labels.get(name, name), "dev": round_log["dev"][name], "kept": name in round_log["kept"]}
                for name in sorted(round_log["dev"], key=lambda name: -round_log["dev"][name])
                if name in round_log["names"] or name == CONTROL
            ],
        }
        for round_log in log.values["rounds"]
    ]
    results = {**report.results, "rounds": rounds, "winner": winner, "pays": pays}
    results["exported"] = _export_winner(out, results, winner)
    checkpoint.write_text(out / RESULTS, json.dumps(results, indent=1, ensure_ascii=False))
    write_report(report.page, results)
    return PickResult(out, winner, pays, Report(out, results))


def _export_winner(out: Path, results: dict[str, Any], winner: str) -> dict[str, str]:
    """Copy the winner: its fine-tuned run (best seed on dev), its pre-training, and an export where possible."""
    cells = results["cells"]
    transfers = [
        cell for cell in cells if cell["kind"] == "transfer" and cell["place"]["row"] == winner and "dev" in cell
    ]
    best = max(transfers, key=lambda cell: cell["dev"])
    _copy_folder(out / "cells" / best["key"] / "run", out / "best")
    exported = {"best": "best"}
    pretraining = next((cell for cell in cells if cell["kind"] == "pretrain" and cell["place"]["row"] == winner), None)
    if pretraining is not None:
        _copy_folder(out / "cells" / pretraining["key"] / "run", out / "pretrained")
        exported["pretrained"] = "pretrained"
        shutil.rmtree(out / "exported", ignore_errors=True)
        try:
            export_run(out / "pretrained", out / "exported")
            exported["exported"] = "exported"
        except UserError as error:
            exported["not exported"] = str(error).replace(str(out), ".")
    return exported


def _copy_folder(source: Path, target: Path) -> None:
    """Copy a folder atomically, replacing an older copy."""
    writing = target.with_name(f".{target.name}.writing")
    shutil.rmtree(writing, ignore_errors=True)
    shutil.copytree(source, writing)
    shutil.rmtree(target, ignore_errors=True)
    writing.rename(target)

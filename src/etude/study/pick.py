"""`etude pick`: a text, a labelled task and some minutes become the run that does best, exported.

Successive halving (Jamieson and Talwalkar 2016) over recipes and sizes: everybody pre-trains for a short time, the
better half goes on with twice as much, and so on until two are left, which meet the control without pre-training with
several seeds. All choices are made on dev; the test part is first read in the last round. Where nothing beats "no
pre-training" on dev, that is the answer, and the model that never pre-trained is what one takes home.
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
PLANNED_SHARE = 0.9  # of the minutes that are planned with: preparing and reporting take the rest
MIN_MINUTES = 1 / 60  # minutes of pre-training below which a round says nothing
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
    say: Callable[[str], None] = lambda _: None,
) -> PickResult:
    """Chooses among `candidates` ({name: {"recipe": ..., "set": {...}}}); `settings` are those of the transfers."""
    task_module(task)
    out, begun = Path(out), time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    files = _split_files(out / "labelled", task, train, dev, test)
    usual: Mapping[str, Mapping[str, Any]] = (
        GPU_CANDIDATES if (device or _default_device()) == "cuda" else CPU_CANDIDATES
    )
    chosen = {name: dict(one) for name, one in (candidates or usual).items()}
    if len(chosen) < 2:
        raise UserError("One candidate is no choice: name two or more recipes.")
    log = _PickLog(out / LOG_FILE, {"task": task, "candidates": chosen})
    common: dict[str, Any] = {
        "text": _text_settings(text), "columns": dict(columns or {}), "kind": task, "files": files,
        "settings": dict(settings or {}),
    }  # fmt: skip
    lefts, names = _plan_rounds(len(chosen)), list(chosen)
    report: Report | None = None
    for number, left in enumerate(lefts):
        last = number == len(lefts) - 1
        known = log.round(number)
        if known is None:
            spent = time.monotonic() - begun
            share = (PLANNED_SHARE * minutes * 60 - spent) / (len(lefts) - number)
            study = _build_study(common, {name: chosen[name] for name in names}, 1.0, last)
            each = _minutes_each(study, out, share, max(1, workers if on == "processes" else 1), device)
            known = log.begin(number, names, each)
        say(f"Round {number + 1} of {len(lefts)}: {len(names)} candidates, {known['minutes']:.2g} minutes each")
        study = _build_study(common, {name: chosen[name] for name in known["names"]}, known["minutes"], last)
        report = running.run(study, out, on=on, workers=workers, device=device, keep=last, say=say)
        scores = _dev_scores(report)
        able = sorted((name for name in known["names"] if name in scores), key=lambda name: -scores[name])
        if not able:
            raise UserError(f"Every candidate failed: {'; '.join(report.failed[:3])}")
        names = able[:left]
        log.end(number, scores, names)
    assert report is not None
    return _write_result(out, report, _dev_scores(report), log)


def _default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _plan_rounds(count: int) -> list[int]:
    """How many are left after each round: halves until two, and the winner of those."""
    lefts = []
    while count > FINALISTS:
        count = max(FINALISTS, -(-count // 2))
        lefts.append(count)
    return [*lefts, 1]


def _text_settings(places: Sequence[str]) -> dict[str, Any]:
    if len(places) == 1 and (Path(places[0]) / "manifest.json").is_file():
        return {"corpus": places[0]}
    return {"files": list(places)}


def _split_files(
    folder: Path, kind: str, train: str | Path, dev: str | Path | None, test: str | Path | None
) -> dict[str, str]:
    """Three files that share no example; what is not given is taken from what is, by a hash of the content."""
    names = {name: folder / f"{name}.jsonl" for name in ("train", "dev", "test")}
    if all(path.is_file() for path in names.values()):
        return {name: str(path) for name, path in names.items()}
    folder.mkdir(parents=True, exist_ok=True)
    learnt = read_records(kind, resolve_path(str(train), None))
    chosen = None if dev is None else read_records(kind, resolve_path(str(dev), None))
    told = None if test is None else read_records(kind, resolve_path(str(test), None))
    if told is None:
        learnt, told = split_by_hash(learnt, lambda tenth: tenth < 8)
    if chosen is None:
        learnt, chosen = split_by_hash(learnt, lambda tenth: tenth < 6)
    for name, part in (("train", learnt), ("dev", chosen), ("test", told)):
        if len(part) < 2:
            raise UserError(f"{train}: too few examples to part: {len(part)} are left for {name}. Give more of them.")
        checkpoint.write_text(names[name], "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in part))
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
    """Pre-training of each candidate, so that a round with its transfers fits into its share of the time."""
    plan: Plan = make_plan(study, out, device=device, dry=True)
    transfers = sum(cell.seconds for cell in plan.cells.values() if cell.kind == "transfer")
    each = (seconds * workers - transfers) / len(study.contenders) / 60
    return max(MIN_MINUTES, each)


def _dev_scores(report: Report) -> dict[str, float]:
    """Mean score on dev of everybody who came to the end."""
    found: dict[str, list[float]] = {}
    for cell in report.results["cells"]:
        if cell["kind"] in ("transfer", "majority") and "dev" in cell:
            found.setdefault(cell["place"]["row"], []).append(cell["dev"])
    units = report.results["seeds"]["pretrain"] * report.results["seeds"]["transfer"]
    return {name: fmean(values) for name, values in found.items() if len(values) == units}


class _PickLog:
    """What was decided so far, so that a pick that was killed decides the same again."""

    def __init__(self, path: Path, asked: dict[str, Any]) -> None:
        self.path = path
        self.values: dict[str, Any] = {**asked, "rounds": []}
        if path.is_file():
            known = json.loads(path.read_text(encoding="utf-8"))
            if {name: known[name] for name in asked} != asked:
                raise UserError(f"{path.parent} holds another pick. Choose another folder with -o.")
            self.values = known

    def round(self, number: int) -> dict[str, Any] | None:
        return self.values["rounds"][number] if number < len(self.values["rounds"]) else None

    def begin(self, number: int, names: list[str], minutes: float) -> dict[str, Any]:
        self.values["rounds"].append({"names": names, "minutes": minutes})
        self._write()
        return self.values["rounds"][number]

    def end(self, number: int, scores: dict[str, float], kept: list[str]) -> None:
        self.values["rounds"][number] |= {"dev": scores, "kept": kept}
        self._write()

    def _write(self) -> None:
        checkpoint.write_text(self.path, json.dumps(self.values, indent=1, ensure_ascii=False))


def _write_result(out: Path, report: Report, scores: dict[str, float], log: _PickLog) -> PickResult:
    """The report with the rounds in it, and the winner's folders."""
    able = [name for name in scores if name not in (CONTROL, FROZEN, MAJORITY)]
    winner = max(able, key=lambda name: scores[name])
    pays = CONTROL not in scores or scores[winner] > scores[CONTROL]
    winner = winner if pays else CONTROL
    labels = {row["name"]: row["label"] for row in report.results["rows"]}
    rounds = [
        {
            "minutes": one["minutes"],
            "rows": [
                {"label": labels.get(name, name), "dev": one["dev"][name], "kept": name in one["kept"]}
                for name in sorted(one["dev"], key=lambda name: -one["dev"][name])
                if name in one["names"] or name == CONTROL
            ],
        }
        for one in log.values["rounds"]
    ]
    results = {**report.results, "rounds": rounds, "winner": winner, "pays": pays}
    results["exported"] = _export_winner(out, results, winner)
    checkpoint.write_text(out / RESULTS, json.dumps(results, indent=1, ensure_ascii=False))
    write_report(report.page, results)
    return PickResult(out, winner, pays, Report(out, results))


def _export_winner(out: Path, results: dict[str, Any], winner: str) -> dict[str, str]:
    """best: the fine-tuned run, of the seed that was best on dev; pretrained, and exported where that is possible."""
    cells = results["cells"]
    own = [cell for cell in cells if cell["kind"] == "transfer" and cell["place"]["row"] == winner and "dev" in cell]
    best = max(own, key=lambda cell: cell["dev"])
    _copy_folder(out / "cells" / best["key"] / "run", out / "best")
    told = {"best": "best"}
    base = next((cell for cell in cells if cell["kind"] == "pretrain" and cell["place"]["row"] == winner), None)
    if base is not None:
        _copy_folder(out / "cells" / base["key"] / "run", out / "pretrained")
        told["pretrained"] = "pretrained"
        shutil.rmtree(out / "exported", ignore_errors=True)
        try:
            export_run(out / "pretrained", out / "exported")
            told["exported"] = "exported"
        except UserError as problem:
            told["not exported"] = str(problem).replace(str(out), ".")
    return told


def _copy_folder(source: Path, target: Path) -> None:
    """Anew each time, there at once or not at all."""
    writing = target.with_name(f".{target.name}.writing")
    shutil.rmtree(writing, ignore_errors=True)
    shutil.copytree(source, writing)
    shutil.rmtree(target, ignore_errors=True)
    writing.rename(target)

"""Cells of a study: one pre-training, one transfer or one baseline each, cached under a key.

A cell's key is a hash of everything its result depends on: resolved recipe or task settings, data, seed, the code
that matters, the version of torch. Its `settings_key` leaves out code and torch: by it `--any-version` finds cells that
an earlier version has done (plan_cells.py). Its folder is `<key>.work` while it runs, with the checkpoints of its run
inside, and becomes `<key>` by one rename when its result is written: a cell is complete or absent. A failure that would
repeat itself (a learning rate that diverges) is stored as `<key>.failed`, with its message. Failures of a machine (its
memory, its GPU) are not, nor do those count that earlier versions stored.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NotRequired, Self

from typing_extensions import TypedDict  # that of Python 3.11 cannot be checked

from etude.settings import read_json
from etude.study.folder_checksums import verify_cell, write_cell_checksums
from etude.text.run_checksums import CHECKSUMS
from etude.train import checkpoint

Kind = Literal["pretrain", "distill", "untrained", "start", "transfer", "direct", "prompt", "baseline", "majority"]
PRETRAININGS = ("pretrain", "distill")  # cells that learn from text
SCORED = ("transfer", "direct", "prompt", "baseline", "majority")  # cells that end in a score
State = Literal["done", "failed", "begun", "absent"]
RESULT, ERROR = "result.json", "error.json"


DIVERGENCE = re.compile(r"Training diverged: |Training stopped at step \d+: .* is not finite\.")


class StoredFailure(TypedDict):
    """What `error.json` of a cell holds."""

    message: str
    repeats: NotRequired[bool]  # true; earlier versions stored every failure, and did not say


class StoredResult(TypedDict):
    """What `result.json` of a cell holds; a trial of a pick has `contender` and `seconds` alone."""

    seconds: float
    kind: NotRequired[Kind]
    title: NotRequired[str]
    place: NotRequired[dict[str, Any]]
    contender: NotRequired[str]
    step: NotRequired[float]
    tokens: NotRequired[float]
    flops: NotRequired[float]
    score: NotRequired[str]
    how: NotRequired[str]
    value: NotRequired[float]
    dev: NotRequired[float]
    examples: NotRequired[int]
    by_shots: NotRequired[dict[str, float]]
    pace: NotRequired[float]
    valid: NotRequired[dict[str, Any]]
    curve: NotRequired[list[dict[str, Any]]]
    notes: NotRequired[list[str]]
    date: NotRequired[str]
    settings_key: NotRequired[str]
    code: NotRequired[str]
    text: NotRequired[str]


def repeats_itself(failure: Mapping[str, Any]) -> bool:
    """Whether a stored failure is one of the cell: of those that earlier versions stored, divergence alone."""
    return bool(failure.get("repeats")) or DIVERGENCE.match(str(failure["message"])) is not None


@dataclass(frozen=True)
class Cell:
    key: str
    kind: Kind
    title: str  # for people
    arguments: dict[str, Any]  # everything needed to run it, JSON-ready
    position: dict[str, Any]  # row, column and seeds in the grid
    depends_on: str | None = None  # the cell whose run it starts from
    flops: float = 0.0  # about
    seconds: float = 0.0
    needs: dict[str, float] = field(default_factory=dict)  # cpus, gpus
    settings_key: str = ""  # as the key, without code and version of torch
    code: str = ""  # the hash of the code that matters
    text: str = ""  # of a pre-training: the fingerprint of its corpus

    def dump(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def parse(cls, text: str) -> Self:
        return cls(**json.loads(text))


def flush_files(folder: Path) -> None:
    """Force the files that lie directly in a cell to disk; its run has done so for its own."""
    for path in folder.iterdir():
        if path.is_file():
            checkpoint.flush(path)
    checkpoint.flush(folder)


@dataclass(frozen=True)
class CellStore:
    folder: Path

    def result_folder(self, key: str) -> Path:
        return self.folder / key

    def work_folder(self, key: str) -> Path:
        return self.folder / f"{key}.work"

    def failure_folder(self, key: str) -> Path:
        return self.folder / f"{key}.failed"

    def state(self, key: str) -> State:
        if (self.result_folder(key) / RESULT).is_file():
            return "done"
        if (self.failure_folder(key) / ERROR).is_file() and repeats_itself(self._read_failure(key)):
            return "failed"
        return "begun" if (self.work_folder(key) / "run").is_dir() else "absent"

    def result(self, key: str) -> dict[str, Any]:
        folder = self.result_folder(key)
        verify_cell(folder)
        return dict(read_json(folder / RESULT, StoredResult, f"Remove {folder} to run the cell again."))

    def list_keys(self) -> list[str]:
        """Return the keys of all finished cells."""
        names = [folder.name for folder in sorted(self.folder.iterdir())] if self.folder.is_dir() else []
        return [name for name in names if "." not in name and self.state(name) == "done"]

    def list_done(self) -> dict[str, str]:
        """Return the keys of all finished cells by their `settings_key`; of several versions, that of the latest."""
        latest: dict[str, tuple[str, str]] = {}  # date and key
        for key in self.list_keys():
            result = self.result(key)
            if name := result.get("settings_key"):
                latest[name] = max(latest.get(name, ("", "")), (result.get("date", ""), key))
        return {name: key for name, (_, key) in latest.items()}

    def has_run(self, key: str) -> bool:
        """Return whether the run of a finished cell is here; cells from elsewhere come without weights."""
        return (self.result_folder(key) / "run").is_dir()

    def forget(self, key: str) -> None:
        """Remove a finished cell, so that it runs again."""
        shutil.rmtree(self.result_folder(key), ignore_errors=True)

    def error(self, key: str) -> str:
        return self._read_failure(key)["message"]

    def _read_failure(self, key: str) -> StoredFailure:
        folder = self.failure_folder(key)
        verify_cell(folder)
        return read_json(folder / ERROR, StoredFailure, f"Remove {folder} to run the cell again.")

    @contextlib.contextmanager
    def lock(self, key: str) -> Iterator[Path]:
        """Lock the working folder of a cell for one process; the lock ends with the process."""
        work = self.work_folder(key)
        self.folder.mkdir(exist_ok=True)  # not its parents: a study whose folder was removed must not go on elsewhere
        with open(self.folder / f".{key}.lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            work.mkdir(exist_ok=True)
            for leftover in work.glob(".run.creating-*"):  # by a process that died
                shutil.rmtree(leftover, ignore_errors=True)
            yield work

    def finish(self, key: str, result: dict[str, Any]) -> None:
        """Write the result and rename the working folder to its final name."""
        work, target = self.work_folder(key), self.result_folder(key)
        checkpoint.write_text(work / RESULT, json.dumps(result, indent=1, ensure_ascii=False))
        write_cell_checksums(work)
        flush_files(work)
        shutil.rmtree(target, ignore_errors=True)
        os.rename(work, target)
        checkpoint.flush(self.folder)
        shutil.rmtree(self.failure_folder(key), ignore_errors=True)

    def fail(self, key: str, message: str) -> None:
        """Store a failure that would repeat itself and remove the working folder."""
        folder, failure = self.failure_folder(key), StoredFailure(message=message, repeats=True)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CHECKSUMS).unlink(missing_ok=True)
        checkpoint.write_text(folder / ERROR, json.dumps(failure, ensure_ascii=False))
        write_cell_checksums(folder)
        shutil.rmtree(self.work_folder(key), ignore_errors=True)

    def clear_failure(self, key: str) -> None:
        """Remove a stored failure, so that the cell is tried again."""
        shutil.rmtree(self.failure_folder(key), ignore_errors=True)

"""Results as lines of JSON, one file a side: finished ones are not repeated, and files of several machines add up."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "transformers", "scikit-learn", "fasttext-numpy2-wheel", "sklearn-crfsuite", "numpy")
Key = tuple[str, int, int, str]  # task, labels, draw, side


@dataclass(frozen=True)
class Result:
    """One side on one draw of labels; a pick that failed has an error and no score."""

    task: str
    labels: int
    draw: int
    side: str
    score: float | None
    seconds: float
    test: int
    minutes: float | None = None  # that a pick was given
    winner: str | None = None
    error: str | None = None
    details: dict[str, Any] = field(default_factory=dict)
    commit: str = ""
    hardware: str = ""
    versions: str = ""
    date: str = ""

    @property
    def key(self) -> Key:
        return self.task, self.labels, self.draw, self.side


class ResultStore:
    """Reads the results of some folders, and adds new ones to the last of them."""

    def __init__(self, folders: Iterable[Path], after: str = "") -> None:
        """Picks before the date `after` do not count: they are of an older pick. Rivals do not change."""
        self.folders, self.after = list(folders), after
        self.lock = threading.Lock()

    def read(self) -> dict[Key, Result]:
        """All results, the last of each key: a success is never replaced by a failure."""
        results: dict[Key, Result] = {}
        for path in (path for folder in self.folders for path in sorted(folder.glob("*.jsonl"))):
            for line in path.read_text(encoding="utf-8").splitlines():
                result = Result(**json.loads(line))
                if result.side.startswith("pick-") and result.date < self.after:
                    continue
                if result.error is None or results.get(result.key) is None:
                    results[result.key] = result
        return results

    def list_finished(self) -> set[Key]:
        return {key for key, result in self.read().items() if result.error is None}

    def merge(self, folder: Path) -> int:
        """Add the results of another folder that are not here, failures excepted; returns how many."""
        finished, added = self.list_finished(), 0
        for key, result in ResultStore([folder], self.after).read().items():
            if result.error is None and key not in finished:
                self.add(result)
                added += 1
        return added

    def add(self, result: Result) -> None:
        """Append to the side's file; it is replaced whole, so that a kill leaves no half line."""
        path = self.folders[-1] / f"{result.side}.jsonl"
        with self.lock:
            path.parent.mkdir(parents=True, exist_ok=True)
            old_lines = path.read_text(encoding="utf-8") if path.is_file() else ""
            temporary = path.with_suffix(".new")
            temporary.write_text(old_lines + json.dumps(asdict(result), ensure_ascii=False) + "\n", encoding="utf-8")
            os.replace(temporary, path)


def describe_commit() -> str:
    """The commit of this checkout, `+` where tracked files differ from it; unknown outside of git."""
    root = Path(__file__).parent
    try:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True)
        changes = subprocess.run(["git", "status", "--porcelain", "-uno"], cwd=root, capture_output=True, text=True)
    except FileNotFoundError:
        return "unknown"
    return commit.stdout.strip() + ("+" if changes.stdout.strip() else "") if commit.returncode == 0 else "unknown"


def describe_machine(cores: int, device: str = "cpu") -> str:
    """Processor, cores used, and the GPU where it was used."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    ]
    machine = f"{names[0] if names else platform.machine()}, {cores} of {os.cpu_count()} cores"
    if device == "cpu":
        return machine
    import torch

    return f"{torch.cuda.get_device_name() if torch.cuda.is_available() else 'no GPU'}; {machine}"


def describe_packages() -> str:
    versions = [f"Python {platform.python_version()}"]
    for name in PACKAGES:
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(versions)


def stamp(commit: str, hardware: str) -> dict[str, str]:
    """What every result says of where it comes from."""
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return {"commit": commit, "hardware": hardware, "versions": describe_packages(), "date": date}

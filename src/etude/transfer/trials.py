"""The result of a search over settings and seeds, as `trials.json` of its run holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict  # that of Python 3.11 cannot be checked

from etude.runs.run import TRIALS
from etude.settings import read_json


@dataclass(frozen=True)
class Trial:
    """One run of a search: its settings, its seed, and what came of it."""

    settings: Mapping[str, Any]  # those that were varied: {"train.lr": 2e-5}
    seed: int  # counted from 0, which is train.seed
    score: float | None  # the official one on dev; None where training diverged
    error: str = ""  # what went wrong there


@dataclass(frozen=True)
class SearchResult:
    """All trials of a search, and the mean over the seeds of the setting that won."""

    trials: list[Trial]
    score: str  # the name of the official score
    mean: float
    deviation: float | None  # None with one seed


class StoredTrial(TypedDict):
    """A trial in `trials.json`."""

    settings: dict[str, Any]
    seed: int
    score: float


class StoredFailure(TypedDict):
    """A trial that diverged, in `trials.json`."""

    settings: dict[str, Any]
    seed: int
    error: str


class StoredResult(TypedDict, total=False):
    """What `trials.json` holds at the end of a search."""

    trials: list[StoredTrial]
    diverged: list[StoredFailure]
    score: str
    mean: float
    deviation: float | None


def read_result(folder: Path) -> SearchResult | None:
    """Return the result of a finished search; None where the run is of none, or it is not finished."""
    if not (folder / TRIALS).is_file():
        return None
    stored = read_json(folder / TRIALS, StoredResult, "Take it from a copy, or fine-tune again.")
    if "mean" not in stored:
        return None
    trials = [Trial(trial["settings"], trial["seed"], trial["score"]) for trial in stored["trials"]]
    lost = [Trial(trial["settings"], trial["seed"], None, trial["error"]) for trial in stored.get("diverged", [])]
    return SearchResult([*trials, *lost], stored["score"], stored["mean"], stored.get("deviation"))

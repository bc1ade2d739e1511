"""Results of a pick and what a terminal shows of them: the answer, and the table in the order that chose.

The table is ordered by the score that chose (cross-validation or the dev file); the score that counts for the user
comes from examples set aside, and stands in the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from etude.errors import quote_path
from etude.notebook import render_card, render_note, render_table
from etude.pick.contenders import Label
from etude.pick.data import PickData
from etude.pick.final import Calibration, HeldOutScore
from etude.pick.race import Entry, Race
from etude.runs.model_card import describe_hardware, describe_versions
from etude.study.leaderboard import format_points
from etude.study.sections import localize

WORST = 20  # errors shown
BAGS_OF_WORDS = ("tfidf", "ngrams")


class PickedFolder(Protocol):
    """What a summary needs of a finished pick."""

    @property
    def results(self) -> dict[str, Any]: ...

    @property
    def model(self) -> Path: ...

    @property
    def page(self) -> Path: ...


def collect(
    race: Race, winner: Entry, score: HeldOutScore | None, scaling: Calibration | None, not_exported: str | None,
    warnings: Sequence[Label],
) -> dict[str, Any]:  # fmt: skip
    """The results of a pick, JSON-ready: everything the report shows."""
    data, clock = race.data, race.clock
    ranking = race.ranking()
    others = [name for name, entry in race.entries.items() if not entry.is_selectable and entry.trials.answers]
    rows = [_collect_row(race, name) for name in [*ranking, *others]]
    return {
        "task": data.labelled.kind, "score": data.scoring.score, "winner": winner.contender.name,
        "label": winner.contender.label, "rows": rows, "folds": data.planned, "repeat": data.repeat,
        "dev_examples": data.dev_examples,
        "labels": {"chosen_on": len(data.chosen_on), "scored_on": len(data.scored_on), "refit_on": len(data.refit_on),
                   "has_test": data.has_test},
        "held_out": score.json() if score is not None else None,
        "calibration": scaling.json() if scaling is not None else None,
        "errors": _collect_errors(data, score),
        "rounds": race.rounds, "untried": race.untried, "notes": race.notes, "warnings": list(warnings),
        "not_exported": not_exported,
        "seconds": clock.spent, "minutes": clock.total / 60, "device": race.device, "seed": race.seed,
        "hardware": describe_hardware(race.device), "versions": describe_versions(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip


def _collect_row(race: Race, name: str) -> dict[str, Any]:
    entry, standing = race.entries[name], race.standing(name)
    encoder = entry.encoder
    return {
        "name": name, "label": entry.contender.label, "score": standing.score, "error": standing.error,
        "folds": standing.folds, "log_loss": standing.log_loss, "fit_seconds": standing.cost, "note": entry.note,
        "pretraining": dict(encoder.cost) if encoder is not None else None, "is_selectable": entry.is_selectable,
    }  # fmt: skip


def _collect_errors(data: PickData, score: HeldOutScore | None) -> dict[str, Any] | None:
    """Confusion and the worst errors on the examples set aside; None where a task has nothing to show."""
    if score is None:
        return None
    scoring = data.scoring
    examples = data.examples(score.numbers)
    judged = scoring.judge(examples, score.answers)
    confusion = scoring.confusion(examples, score.answers)
    wrong = sorted(
        (pair for pair in zip(judged, examples.places, strict=bool(judged)) if not pair[0].correct),
        key=lambda pair: -pair[0].loss,
    )
    return {
        "confusion": None if confusion is None else {
            "unit": confusion[0], "counts": [[*pair, count] for pair, count in confusion[1].items()],
        },
        "wrong": len(wrong),
        "worst": [
            {"where": Path(where).name, "text": error.text, "gold": error.gold, "predicted": error.predicted,
             "loss": error.loss} for error, where in wrong[:WORST]
        ],
    }  # fmt: skip


# --- the terminal -----------------------------------------------------------------------------------


def build_table(results: dict[str, Any]) -> Any:
    """Build the rich table of contenders, best first by what chose."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for name in _name_columns(results)[1:]:
        table.add_column(name, justify="right")
    for row in results["rows"]:
        is_best = row["name"] == results["winner"]
        table.add_row(*_format_row(row), style="bold" if is_best else "" if row["is_selectable"] else "dim")
    return table


def _name_columns(results: dict[str, Any]) -> tuple[str, ...]:
    return "", results["score"].replace("_", " "), "± error", "folds", "pre-training", "one fit"


def _format_row(row: dict[str, Any]) -> tuple[str, ...]:
    """The cells of a contender, its label first."""
    cost = row["pretraining"]
    spent = "" if cost is None else "unknown" if cost["flops"] is None else f"{cost['seconds']:.0f} s"
    return (row["label"]["en"], format_points(row["score"]), format_points(row["error"]), f"{row['folds']}", spent,
            f"{row['fit_seconds']:.1f} s")  # fmt: skip


def render_notebook(picked: PickedFolder) -> str:
    """The contenders for a notebook, best first, and what a terminal is told below them."""
    results = picked.results
    best = [at for at, row in enumerate(results["rows"]) if row["name"] == results["winner"]]
    rows = [_format_row(row) for row in results["rows"]]
    notes = [render_note(line) for line in summarize(picked)]
    return render_card(f"Pick: {results['task']}", render_table(_name_columns(results), rows, best), *notes)


def describe_untried(results: dict[str, Any]) -> list[str]:
    """Those that were not worth their time, a line for each reason."""
    reasons: dict[str, list[str]] = {}
    for skipped in results["untried"]:
        reasons.setdefault(skipped["reason"]["en"], []).append(skipped["label"]["en"])
    return [f"{', '.join(labels)}: {reason}" for reason, labels in reasons.items()]


def is_first(results: dict[str, Any]) -> bool:
    """Whether the winner is the first of the table: a better one may have been too slow to refit."""
    return bool(results["rows"][0]["name"] == results["winner"])


def summarize(picked: PickedFolder) -> list[str]:
    """What was chosen, how good it is, and how to use it, in a few lines."""
    results, score = picked.results, picked.results["held_out"]
    lines = [*describe_untried(results), *(localize(note, "en") for note in results["notes"])]
    metric = results["score"].replace("_", " ")
    best = f"{'Best' if is_first(results) else 'Best in time'}: {results['label']['en']}."
    if score is not None:
        best += (
            f" {metric} {format_points(score['value'])} (95 % {format_points(score['low'])} to "
            f"{format_points(score['high'])}) on {score['examples']:,} examples that nothing was chosen on."
        )
    lines.append(best)
    has_rival = any(row["is_selectable"] and row["name"] not in BAGS_OF_WORDS for row in results["rows"])
    if results["winner"] in BAGS_OF_WORDS and has_rival and is_first(results):
        lines.append("Nothing beats a bag of words here, with this text and these minutes.")
    if results["not_exported"]:
        lines.append(f"Not exported: {results['not_exported']}")
    lines.append(
        f"Learnt from {results['labels']['refit_on']:,} labels in {results['seconds'] / 60:.1f} minutes. Use it:"
    )
    lines += [f"  etude predict {quote_path(picked.model)} < lines.txt", f"Report: {picked.page}"]
    return lines

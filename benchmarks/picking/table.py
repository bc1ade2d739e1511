"""The table: every side on every task, and how far each pick lies above the best rival it could have been.

A cell is the mean over draws and its standard error. The difference is paired: on each draw of labels, the pick's score
minus that of the best rival, which is the rival with the highest mean on that row. It is within one standard error if
the mean difference lies no further below zero than its own standard error. The probe on MiniLM is a rival only of picks
that were given MiniLM.
"""

from __future__ import annotations

import statistics
from collections.abc import Container, Iterable, Mapping, Sequence

from .data import TASKS
from .results import Key, Result

NAMES = {"tfidf": "TF-IDF + LR", "fasttext": "fastText", "crf": "CRF", "probe": "MiniLM probe"}
STARTS = ("pick-start", "pick-gpu-start")  # picks that were given MiniLM
WITHOUT_START = ("tfidf", "fasttext", "crf")
Row = tuple[str, int]
Scores = dict[str, dict[int, float]]  # side -> draw -> score in percent


def format_table(results: Mapping[Key, Result]) -> str:
    """One Markdown table of all results, with averages; failures are listed below it."""
    rows: dict[Row, Scores] = {}
    for result in results.values():
        if result.score is not None:
            scores = rows.setdefault((result.task, result.labels), {})
            scores.setdefault(result.side, {})[result.draw] = 100 * result.score
    rivals = [side for side in NAMES if any(side in scores for scores in rows.values())]
    picks = sorted({side for scores in rows.values() for side in scores} - set(NAMES), key=lambda s: (len(s), s))
    heads = ["task", "labels", *(NAMES[side] for side in rivals)]
    for side in picks:
        heads += [side, "best rival", "difference", "within 1 SE", "time"]
    lines = [_join(heads), _join(["---"] * len(heads))]
    order = sorted(rows, key=lambda row: (list(TASKS).index(row[0]), row[1]))
    for row in order:
        cells = [row[0], str(row[1]), *(format_mean(rows[row].get(side)) for side in rivals)]
        for side in picks:
            cells += _compare(rows[row], side, _slowest(results, row, side))
        lines.append(_join(cells))
    averages = ["**mean**", "", *(_average(rows.values(), side) for side in rivals)]
    for side in picks:
        averages += _sum_up(rows, side, results)
    lines.append(_join(averages))
    failures = [result for result in results.values() if result.error is not None]
    lines += [f"\nFailed: {r.task} {r.labels} draw {r.draw} {r.side}: {r.error}" for r in failures]
    return "\n".join(lines)


def format_missing(
    finished: Container[Key], modes: Iterable[str], tasks: Sequence[str], labels: Sequence[int], draws: Sequence[int]
) -> str:
    """The picks that are still to be done, a line for each mode and number of labels, with the draws of each task."""
    lines = []
    for mode in modes:
        for count in labels:
            left = {
                task: [draw for draw in draws if (task, count, draw, f"pick-{mode}") not in finished] for task in tasks
            }
            number = sum(map(len, left.values()))
            places = "; ".join(f"{task} {', '.join(map(str, gone))}" for task, gone in left.items() if gone)
            lines.append(f"{mode}, {count} labels: {number} of {len(tasks) * len(draws)} missing. {places}".rstrip())
    return "\n".join(lines)


def compare(scores: Scores, side: str) -> tuple[str, float, float, int] | None:
    """(best rival, mean difference, its standard error, draws) of a pick on one row; None where one is missing."""
    candidates = [*WITHOUT_START, "probe"] if side in STARTS else list(WITHOUT_START)
    means = {name: statistics.fmean(scores[name].values()) for name in candidates if name in scores}
    if side not in scores or not means:
        return None
    best = max(means, key=lambda name: means[name])
    draws = sorted(set(scores[side]) & set(scores[best]))
    if not draws:
        return None
    gaps = [scores[side][draw] - scores[best][draw] for draw in draws]
    return best, statistics.fmean(gaps), standard_error(gaps), len(draws)


def standard_error(values: Sequence[float]) -> float:
    """Of a mean; 0 where there is one value, since nothing is known of its spread."""
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def format_mean(scores: Mapping[int, float] | None) -> str:
    """Mean ± standard error, with the number of draws where they are not three."""
    if not scores:
        return "–"
    values = list(scores.values())
    spread = f" ± {standard_error(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread}" + (f" ({len(values)})" if len(values) != 3 else "")


def _compare(scores: Scores, side: str, slowest: float | None) -> list[str]:
    comparison = compare(scores, side)
    time = "–" if slowest is None else f"{slowest:.0%}"
    if comparison is None:
        return [format_mean(scores.get(side)), "–", "–", "–", time]
    best, gap, error, _ = comparison
    within = "yes" if gap >= -error else "**no**"
    spread = f" ± {error:.1f}" if len(scores[side]) > 1 else ""
    return [format_mean(scores[side]), NAMES[best], f"{gap:+.1f}{spread}", within, time]


def _sum_up(rows: Mapping[Row, Scores], side: str, results: Mapping[Key, Result]) -> list[str]:
    comparisons = [value for scores in rows.values() if (value := compare(scores, side)) is not None]
    if not comparisons:
        return ["–"] * 5
    within = sum(gap >= -error for _, gap, error, _ in comparisons)
    gap = statistics.fmean(gap for _, gap, _, _ in comparisons)
    slowest = [share for row in rows if (share := _slowest(results, row, side)) is not None]
    mean = _average(rows.values(), side)
    return [mean, "", f"{gap:+.1f}", f"{within} of {len(comparisons)}", f"≤ {max(slowest):.0%}"]


def _average(rows: Iterable[Scores], side: str) -> str:
    """The mean over rows, with their number: sides that miss rows do not compare."""
    values = [statistics.fmean(scores[side].values()) for scores in rows if side in scores]
    return f"{statistics.fmean(values):.1f} ({len(values)} rows)" if values else "–"


def _slowest(results: Mapping[Key, Result], row: Row, side: str) -> float | None:
    """The largest share of its minutes that a pick of this row took."""
    shares = [
        result.seconds / (60 * result.minutes)
        for (task, labels, _, name), result in results.items()
        if (task, labels, name) == (*row, side) and result.minutes
    ]
    return max(shares, default=None)


def _join(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"

"""An HTML error report: scores, the confusion matrix and the worst errors on labelled examples.

One file that loads nothing from elsewhere. The worst errors are those with the highest loss: confident and wrong.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.tasks.base import ErrorExample
from etude.tasks.bootstrap import Score
from etude.tasks.data.examples import Examples
from etude.train import checkpoint

WORST = 50  # errors shown
LABELS = 40  # of a matrix; a larger one cannot be read

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0 }
th, td { padding: .25rem .6rem; text-align: left; vertical-align: top }
th { font-weight: 600 } tr + tr { border-top: 1px solid #ddd }
td.n { text-align: right; font-variant-numeric: tabular-nums }
td.text { max-width: 36rem; overflow-wrap: anywhere }
@media (prefers-color-scheme: dark) { body { background: #181818; color: #ddd } tr + tr { border-color: #444 } }
"""


def write_report(
    path: str | Path,
    title: str,
    scores: Mapping[str, Score],
    examples: Examples[Any],
    errors: Sequence[ErrorExample],
    confusion: tuple[str, Counter[tuple[str, str]]] | None = None,
) -> None:
    """Write the report; `confusion` is the unit that is counted and the counts of (gold, predicted)."""
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p>{html.escape(Path(examples.source).name)}, {len(examples):,} examples",
    ]
    if examples.bad:
        parts.append(f"; {len(examples.bad):,} bad ones left out")
    parts += ["</p>", _score_table(scores), _confusion_table(confusion), _error_table(errors, examples)]
    page = (
        f"<!doctype html><meta charset=utf-8><title>{html.escape(title)}</title><style>{STYLE}</style>{''.join(parts)}"
    )
    checkpoint.write_text(Path(path), page)


def _table_row(cells: Sequence[str], head: bool = False) -> str:
    tag = "th" if head else "td"
    return "<tr>" + "".join(cell if cell.startswith("<td") else f"<{tag}>{cell}</{tag}>" for cell in cells) + "</tr>"


def _number_cell(text: str, shade: float = 0.0) -> str:
    style = f' style="background: rgba(70, 130, 220, {shade:.2f})"' if shade else ""
    return f'<td class="n"{style}>{text}</td>'


def _score_table(scores: Mapping[str, Score]) -> str:
    rows = []
    for name, score in scores.items():
        values = [_number_cell(f"{value:.4f}") for value in (score.value, score.low, score.high)]
        rows.append(_table_row([html.escape(name.replace("_", " ")), *values, _number_cell(f"{score.count:,}")]))
    return (
        "<table>"
        + _table_row(["score", "value", "95 % from", "to", "examples"], head=True)
        + "".join(rows)
        + "</table>"
    )


def _confusion_table(confusion: tuple[str, Counter[tuple[str, str]]] | None) -> str:
    """Format the confusion matrix, gold in rows, predicted in columns; a cell's shade is its share of the row."""
    if confusion is None:
        return ""
    entries = [[gold, predicted, count] for (gold, predicted), count in confusion[1].items()]
    return render_confusion(ConfusionTexts(f"Confusion ({confusion[0]})"), entries)


@dataclass(frozen=True)
class ConfusionTexts:
    """What stands around a confusion matrix, as HTML; a page in another language has others."""

    heading: str
    corner: str = "gold \\ predicted"
    too_many: str = "{count} labels: too many for a matrix."


def render_confusion(texts: ConfusionTexts, entries: Sequence[Sequence[Any]]) -> str:
    """Render (gold, predicted, count) as a table, gold in rows; too many labels for one get a sentence."""
    counts = Counter({(gold, predicted): count for gold, predicted, count in entries})
    names = sorted({name for pair in counts for name in pair})
    if len(names) > LABELS:
        return f"<p>{texts.too_many.format(count=len(names))}</p>"
    rows = []
    for gold in names:
        total = sum(counts[gold, name] for name in names)
        cells = [_number_cell(f"{counts[gold, name]:,}", counts[gold, name] / max(1, total)) for name in names]
        rows.append(_table_row([html.escape(gold), *cells]))
    head = _table_row([texts.corner, *map(html.escape, names)], head=True)
    return f"<h3>{texts.heading}</h3><table>{head}{''.join(rows)}</table>"


def _error_table(errors: Sequence[ErrorExample], examples: Examples[Any]) -> str:
    pairs = zip(errors, examples.places, strict=True) if errors else ()
    wrong = [(error, where) for error, where in pairs if not error.correct]
    if not wrong:
        return "<p>No errors.</p>" if errors else ""
    wrong.sort(key=lambda pair: -pair[0].loss)
    rows = [
        _table_row(
            [
                html.escape(Path(where).name),
                f'<td class="text">{html.escape(error.text)}</td>',
                html.escape(error.gold),
                html.escape(error.predicted),
                _number_cell(f"{error.loss:.2f}"),
            ]
        )
        for error, where in wrong[:WORST]
    ]
    head = _table_row(["where", "example", "gold", "predicted", "loss"], head=True)
    selection = f"the worst {len(rows)} of {len(wrong):,}" if len(wrong) > len(rows) else f"all {len(wrong):,}"
    return f"<h2>Errors ({selection})</h2><table>{head}{''.join(rows)}</table>"

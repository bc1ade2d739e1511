"""What the parts of the page share: sections, swatches, numbers."""

from __future__ import annotations

from html import escape
from typing import Any

from etude.study.leaderboard import percent
from etude.study.plan import shown_amount
from etude.study.report.translations import both, words
from etude.study.settings import MEAN

Found = dict[str, Any]
GREY = "var(--base)"
COLOURS = 8  # that report.css knows, distinct in both schemes and to most eyes (after Okabe and Ito 2008)


def colours_of(found: Found) -> dict[str, str]:
    """A colour for each contender, the same everywhere; grey for what they are held against."""
    entries = dict.fromkeys(entry_of(row) for row in found["rows"] if row["kind"] == "contender")
    own = {name: f"var(--c{number % COLOURS})" for number, name in enumerate(entries)}
    return {row["name"]: own.get(entry_of(row), GREY) if row["kind"] == "contender" else GREY for row in found["rows"]}


def entry_of(row: Found) -> str:
    return row["name"].partition(" @ ")[0]


def level_of(found: Found) -> str:
    return f"{100 * found['rule']['interval']:g}\N{NO-BREAK SPACE}%"


def section(title: str, lead: str, inside: str) -> str:
    lead = f'<p class="lead">{lead}</p>' if lead else ""
    return f"<section>\n<h2>{title}</h2>\n{lead}{inside}\n</section>\n" if inside else ""


def signed(value: float) -> str:
    """With a true minus; of what is ten and more, whole numbers."""
    return (f"{value:.2f}" if abs(value) < 9.995 else f"{value:.0f}").replace("-", "−")


def probability(value: float) -> str:
    """Two digits; below one in a thousand a bootstrap of thousands of draws can tell no more."""
    return "&lt; 0.001" if value < 0.001 else f"{value:.2g}"


def stated(value: float) -> str:
    """The same in a sentence: p = 0.03, p < 0.001."""
    told = probability(value)
    return f"p {told}" if told.startswith("&lt;") else f"p = {told}"


def labels_of(column: Found) -> str:
    return both("labels_brief", count=f"{column['labels']:,}")


def place_of(found: Found, on: str) -> str:
    """Where a difference was measured, as the tasks are called: a task, a task with so many labels, or all of them."""
    if on == MEAN:
        return both("all_tasks")
    for column in found["columns"]:
        if on == column["name"] and column["labels"] is not None:
            return f"{words(column['label'])} · {labels_of(column)}"
        if on in (column["name"], column["task"]):
            return words(column["label"])
    return escape(on)


def swatch(colour: str) -> str:
    return f'<i class="swatch" style="--own:{colour}"></i>'


def amount_of(found: Found, row: Found) -> str:
    if len(found["budget"]["amounts"]) < 2 or row["amount"] is None:
        return ""
    return f" · {shown_amount(found['budget']['kind'], row['amount'])}"


def spread(one: Found | None) -> str:
    if one is None:
        return "–"
    deviation = f'<span class="sd">± {percent(one["deviation"])}</span>' if one["deviation"] is not None else ""
    return f"<span>{percent(one['mean'])}{deviation}</span>"

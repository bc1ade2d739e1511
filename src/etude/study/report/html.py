"""What the parts of the page share: sections, swatches, numbers."""

from __future__ import annotations

from html import escape
from typing import Any

from etude.study.leaderboard import format_points
from etude.study.plan import format_budget
from etude.study.report.translations import localize_html, translate
from etude.study.settings import MEAN

JsonDict = dict[str, Any]
GREY = "var(--base)"
COLOURS = 8  # that report.css knows, distinct in both schemes and to most eyes (after Okabe and Ito 2008)


def assign_colours(found: JsonDict) -> dict[str, str]:
    """A colour for each contender, the same everywhere; grey for what they are held against."""
    entries = dict.fromkeys(entry_name(row) for row in found["rows"] if row["kind"] == "contender")
    own = {name: f"var(--c{number % COLOURS})" for number, name in enumerate(entries)}
    return {
        row["name"]: own.get(entry_name(row), GREY) if row["kind"] == "contender" else GREY for row in found["rows"]
    }


def entry_name(row: JsonDict) -> str:
    return row["name"].partition(" @ ")[0]


def format_level(found: JsonDict) -> str:
    return f"{100 * found['rule']['interval']:g}\N{NO-BREAK SPACE}%"


def render_section(title: str, lead: str, inside: str) -> str:
    lead = f'<p class="lead">{lead}</p>' if lead else ""
    return f"<section>\n<h2>{title}</h2>\n{lead}{inside}\n</section>\n" if inside else ""


def format_effect(value: float) -> str:
    """With a true minus; of what is ten and more, whole numbers."""
    return (f"{value:.2f}" if abs(value) < 9.995 else f"{value:.0f}").replace("-", "−")


def format_p(value: float) -> str:
    """Two digits; below one in a thousand a bootstrap of thousands of draws can tell no more."""
    return "&lt; 0.001" if value < 0.001 else f"{value:.2g}"


def format_p_statement(value: float) -> str:
    """The same in a sentence: p = 0.03, p < 0.001."""
    told = format_p(value)
    return f"p {told}" if told.startswith("&lt;") else f"p = {told}"


def format_labels(column: JsonDict) -> str:
    return translate("labels_brief", count=f"{column['labels']:,}")


def describe_task(found: JsonDict, on: str) -> str:
    """Where a difference was measured, as the tasks are called: a task, a task with so many labels, or all of them."""
    if on == MEAN:
        return translate("all_tasks")
    for column in found["columns"]:
        if on == column["name"] and column["labels"] is not None:
            return f"{localize_html(column['label'])} · {format_labels(column)}"
        if on in (column["name"], column["task"]):
            return localize_html(column["label"])
    return escape(on)


def render_swatch(colour: str) -> str:
    return f'<i class="swatch" style="--own:{colour}"></i>'


def format_row_budget(found: JsonDict, row: JsonDict) -> str:
    if len(found["budget"]["amounts"]) < 2 or row["amount"] is None:
        return ""
    return f" · {format_budget(found['budget']['kind'], row['amount'])}"


def render_spread(one: JsonDict | None) -> str:
    if one is None:
        return "–"
    deviation = f'<span class="sd">± {format_points(one["deviation"])}</span>' if one["deviation"] is not None else ""
    return f"<span>{format_points(one['mean'])}{deviation}</span>"

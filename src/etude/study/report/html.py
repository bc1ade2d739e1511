"""Shared HTML helpers of the report: sections, colours, numbers."""

from __future__ import annotations

from html import escape
from typing import Any

from etude.study.leaderboard import format_points
from etude.study.plan import format_scientific
from etude.study.report.translations import localize_html, translate
from etude.study.sections import MEAN, Rule

JsonDict = dict[str, Any]
GREY = "var(--base)"
COLOURS = 8  # that report.css knows, distinct in both schemes and to most eyes (after Okabe and Ito 2008)


def assign_colours(results: JsonDict) -> dict[str, str]:
    """Assign each contender one colour for the whole report; baselines are grey."""
    entries = dict.fromkeys(entry_name(row) for row in results["rows"] if row["kind"] == "contender")
    own = {name: f"var(--c{number % COLOURS})" for number, name in enumerate(entries)}
    return {
        row["name"]: own.get(entry_name(row), GREY) if row["kind"] == "contender" else GREY for row in results["rows"]
    }


def entry_name(row: JsonDict) -> str:
    return row["name"].partition(" @ ")[0]


def format_date(results: JsonDict) -> str:
    """Return the date of the results as a reader has it: 2026-11-18 09:52:32 UTC."""
    return escape(str(results["date"]).replace("T", " ").replace("+00:00", " UTC"))


def format_level(results: JsonDict) -> str:
    """Format the level of a study's intervals; results of early versions name no rule, and had its default."""
    return format_percent(results.get("rule", {}).get("interval", Rule().interval))


def format_error(results: JsonDict) -> str:
    """Format the share of claims that are decided at most where nothing is true."""
    return format_percent(1 - results["rule"]["interval"])


def format_percent(share: float) -> str:
    return f"{100 * share:.4g}\N{NO-BREAK SPACE}%"


def render_section(title: str, lead: str, inside: str) -> str:
    lead = f'<p class="lead">{lead}</p>' if lead else ""
    return f"<section>\n<h2>{title}</h2>\n{lead}{inside}\n</section>\n" if inside else ""


def format_effect(value: float) -> str:
    """Format an effect size with a typographic minus; from ten on, as a whole number."""
    return (f"{value:.2f}" if abs(value) < 9.995 else f"{value:.0f}").replace("-", "−")


def format_p(value: float) -> str:
    """Format a p-value with two digits; below 0.001 no assumption is good enough for more of them."""
    return "&lt; 0.001" if value < 0.001 else f"{value:.2g}"


def format_p_statement(value: float) -> str:
    """Format a p-value as a statement: p = 0.03, p < 0.001."""
    p = format_p(value)
    return f"p {p}" if p.startswith("&lt;") else f"p = {p}"


def format_labels(column: JsonDict) -> str:
    return translate("labels_brief", count=f"{column['labels']:,}")


def describe_task(results: JsonDict, on: str) -> str:
    """Name what a difference was measured on: a task, a task with its number of labels, or all tasks."""
    if on == MEAN:
        return translate("all_tasks")
    for column in results["columns"]:
        if on == column["name"] and column["labels"] is not None:
            return f"{localize_html(column['label'])} · {format_labels(column)}"
        if on in (column["name"], column["task"]):
            return localize_html(column["label"])
    return escape(on)


def render_swatch(colour: str) -> str:
    return f'<i class="swatch" style="--own:{colour}"></i>'


def render_count(count: int, noun: str) -> tuple[str, str]:
    """Return a number and the noun it counts: 1 task, 2 tasks."""
    return f"{count:,}", translate(noun if count == 1 else f"{noun}s")


def describe_budget(kind: str, amount: float) -> str:
    """Describe a budget in both languages: 3 × 10¹⁵ FLOPs, 10⁸ tokens, 5 min."""
    return translate(f"{kind}_budget", amount=f"{amount:g}" if kind == "minutes" else format_scientific(amount))


def format_row_budget(results: JsonDict, row: JsonDict) -> str:
    if len(results["budget"]["amounts"]) < 2 or row["amount"] is None:
        return ""
    return f" · {describe_budget(results['budget']['kind'], row['amount'])}"


def render_spread(score: JsonDict | None) -> str:
    if score is None:
        return "–"
    deviation = (
        f'<span class="sd">± {format_points(score["deviation"])}</span>' if score["deviation"] is not None else ""
    )
    return f"<span>{format_points(score['mean'])}{deviation}</span>"

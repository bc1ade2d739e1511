"""Leaderboard as a terminal table and as Markdown, and the plan of a dry run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from etude.notebook import render_card, render_note, render_table
from etude.recipes.size import format_count
from etude.study.cells import Cell, State
from etude.study.forecast import Forecast, describe_claims, forecast_cells
from etude.study.plan import Plan, format_budget
from etude.study.sections import localize

VERDICTS = {
    "holds": "holds", "fails": "fails", "not settled": "not settled at this budget", "not tested": "not tested",
}  # fmt: skip


UNTESTED = {
    "majority": "no model is clearly better than the most frequent answer",
    "gain": "no model clearly gains from examples in its prompt",
    "missing": "not all of its cells are done",
    "young": "a language model has not passed a bigram of its text",
}


def describe_verdict(claim: dict[str, Any]) -> str:
    reason = f": {UNTESTED[claim['untested']]}" if "untested" in claim else ""
    return VERDICTS[claim["verdict"]] + reason


def rank_rows(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Sort rows by mean score, best first; rows without a mean last."""
    return sorted(results["rows"], key=lambda row: -(row["mean"] or {"mean": -1.0})["mean"])


def format_points(value: float | None, sign: bool = False) -> str:
    """Format a score in points, with a typographic minus; a rounded zero has no sign."""
    if value is None:
        return ""
    points = round(100 * value, 1) + 0.0  # -0.0 + 0.0 is 0.0
    return f"{points:{'+' if sign and points else ''}.1f}".replace("-", "−")


def format_spread(score: dict[str, Any] | None, default: str) -> str:
    """Format mean ± standard deviation over seeds, in points."""
    if score is None:
        return default
    return format_points(score["mean"]) + (
        f" ± {format_points(score['deviation'])}" if score["deviation"] is not None else ""
    )


def missing_reason(row: dict[str, Any]) -> str:
    """Say why a row lacks a score: a cell failed, or the study was interrupted."""
    return "failed" if row["failed"] else "not done"


def format_score(row: dict[str, Any], column: str) -> str:
    """Format the score of a row on a column: mean ± deviation, or the mean of the seeds that are done so far.

    All seeds may be done at one value of a tuned setting, and not at the others.
    """
    partial = row.get("partial", {}).get(column)
    if partial is not None and column not in row["scores"]:
        count, planned = len(partial["seeds"]), partial["planned"]
        missing = f"{count} of {planned} seeds" if count < planned else "tuning not done"
        return f"{format_points(partial['mean'])} ({missing})"
    return format_spread(row["scores"].get(column), missing_reason(row))


def format_cost(row: dict[str, Any]) -> tuple[str, str, str]:
    """Format FLOPs, tokens and seconds of a row's pre-training."""
    spent = row.get("pretraining")
    if "start" in row:  # trained before the study
        spent = row["start"]["earlier"]
        if spent is None:
            return ("unknown",) * 3
    if spent and spent["flops"] is None:  # it has not run yet
        return "", "", ""
    if not spent:
        return "0", "0", "0"
    return f"{spent['flops']:.2e}", format_count(spent["tokens"], "KMBT"), f"{spent['seconds']:.0f}"


def render_markdown(results: dict[str, Any], language: str = "en") -> str:
    """Render leaderboard and claims as one Markdown file."""
    columns = results["columns"]
    head = ["", "mean", *(column["name"] for column in columns), "FLOPs", "tokens", "seconds", "parameters"]
    lines = [f"# {localize(results['title'], language)}", ""]
    if results["question"]:
        lines += [localize(results["question"], language), ""]
    lines += ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rank_rows(results):
        scores = [format_score(row, column["name"]) for column in columns]
        parameters = format_count(row["parameters"], "KMBT") if "parameters" in row else "0"
        cells = [
            localize(row["label"], language),
            format_spread(row["mean"], missing_reason(row)),
            *scores,
            *format_cost(row),
            parameters,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    measured = ", ".join(f"{column['name']}: {column['score']} of {column['examples']:,}" for column in columns)
    lines += ["", f"Points, mean ± deviation over seeds; {measured} test examples. Cost: pre-training, one seed.", ""]
    if results["claims"]:
        lines += [f"| claim | difference | {_format_level(results)} | p (Holm) | verdict |", "|---|---|---|---|---|"]
        lines += [_render_claim(claim, language) for claim in results["claims"]]
        lines.append("")
    lines += [f"- {row['name']}: {message}" for row in results["rows"] for message in row["failed"]]
    lines += ["", f"{results['hardware']}; {results['versions']}; {results['date']}."]
    return "\n".join(lines) + "\n"


def _format_level(results: dict[str, Any]) -> str:
    return f"{100 * results['rule']['interval']:g} % interval"


def _render_claim(claim: dict[str, Any], language: str) -> str:
    sentence = localize(claim["claim"], language)
    if "mean" not in claim:
        return f"| {sentence} | | | | {describe_verdict(claim)} |"
    interval = f"{format_points(claim['low'])} … {format_points(claim['high'])}"
    gain, verdict = format_points(claim["mean"], sign=True), describe_verdict(claim)
    return f"| {sentence} | {gain} | {interval} | {claim['holm']:.3g} | {verdict} |"


def render_leaderboard_html(results: dict[str, Any], page: str) -> str:
    """Render leaderboard and claims for a notebook; `page` is the file of the whole report."""
    columns = results["columns"]
    head = ["", "mean", *(column["name"] for column in columns), "FLOPs", "tokens", "seconds"]
    rows = [
        [
            localize(row["label"], "en"),
            format_spread(row["mean"], missing_reason(row)),
            *(format_score(row, column["name"]) for column in columns),
            *format_cost(row),
        ]
        for row in rank_rows(results)
    ]
    claims = [
        [
            localize(claim["claim"], "en"),
            format_points(claim["mean"], sign=True) if "mean" in claim else "",
            f"{format_points(claim['low'])} … {format_points(claim['high'])}" if "mean" in claim else "",
            describe_verdict(claim),
        ]
        for claim in results["claims"]
    ]
    return render_card(
        localize(results["title"], "en"),
        render_table(head, rows),
        render_note("Points, mean ± deviation over seeds."),
        render_table(["claim", "difference", _format_level(results), "verdict"], claims) if claims else "",
        render_note(f"The whole report: {page}"),
    )


# --- terminal ---------------------------------------------------------------------------------------


def print_leaderboard(results: dict[str, Any], console: Any) -> None:
    """Print the leaderboard: as wide as the terminal, 200 columns in a log."""
    from rich.console import Console

    printer = console if console.is_terminal else Console(highlight=False, markup=False, emoji=False, width=200)
    printer.print(_build_table(results))


def _build_table(results: dict[str, Any]) -> Any:
    """Build the rich table of the leaderboard."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for name in ["mean", *(column["name"] for column in results["columns"]), "FLOPs", "tokens", "seconds"]:
        table.add_column(name, justify="right")
    for row in rank_rows(results):
        style = "" if row["kind"] == "contender" else "dim"
        scores = [format_score(row, column["name"]) for column in results["columns"]]
        label = Text(localize(row["label"], "en"), style="bold" if not style else "dim")
        table.add_row(label, format_spread(row["mean"], missing_reason(row)), *scores, *format_cost(row), style=style)
    return table


def build_plan_table(cells: list[Cell], states: Mapping[str, State], forecast: Forecast) -> Any:
    """Build the table of a dry run: cost, time and state of each cell."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, side in (("cell", "left"), ("", "left"), ("FLOPs", "right"), ("seconds", "right"), ("state", "left")):
        table.add_column(name, justify=side)  # type: ignore[arg-type]
    names = {"done": "cached", "failed": "failed before", "begun": "begun", "absent": ""}
    for cell in cells:
        cost = f"{cell.flops:.2e}" if cell.flops else ""
        state = "elsewhere, again" if cell.key in forecast.again else names[states[cell.key]]
        table.add_row(cell.key[:8], cell.title, cost, f"{forecast.seconds.get(cell.key, cell.seconds):.1f}", state)
    return table


def summarize_plan(
    plan: Plan, workers: int = 1, states: Mapping[str, State] | None = None, forecast: Forecast | None = None
) -> str:
    """Summarise a plan in a few lines; `states` and `forecast` of its cells, where its folder is gone by now."""
    states = states if states is not None else {key: plan.store.state(key) for key in plan.cells}
    forecast = forecast if forecast is not None else forecast_cells(plan)
    cached = sum(states[key] == "done" for key in plan.cells)
    flops = sum(plan.cells[key].flops for key in forecast.seconds)
    minutes = forecast.sum_seconds(forecast.seconds) / 60 / max(1, workers)
    budget = plan.study.budget
    lines = [
        f"{len(plan.cells)} cells, {cached} of them cached; about {flops:.2e} FLOPs and {minutes:.1f} minutes to go.",
        f"Budget: {', '.join(format_budget(budget.kind, amount) for amount in budget.amounts)} for every contender.",
    ]
    for row in plan.rows:
        if row.length is not None:
            notes = " (passes over the text are capped)" if row.length.capped else ""
            notes += " (by the clock: it needs hardly any FLOPs)" if row.length.by_clock else ""
            lines.append(
                f"  {row.name}: {row.length.steps:,} steps, {format_count(row.length.tokens, 'KMBT')} tokens, "
                f"{row.length.flops:.2e} FLOPs, {row.length.epochs:.1f} passes{notes}"
            )
    for tuning in plan.tunings.values():
        lines += [
            f"  {tuning.entry}: train.lr={runs.rate:g} was given up, since a whole run got worse while it trained."
            for runs in tuning.given_up
        ]
    if forecast.again:
        lines.append(f"Trained again, since others need weights that are elsewhere: {len(forecast.again)}.")
    lines += describe_claims(plan, forecast, max(1, workers))
    if plan.untuned:
        lines.append(
            f"Settings of {', '.join(plan.untuned)} are not chosen yet: "
            f"{len(plan.tuning_cells)} cells of trials run first, and the others with what these choose."
        )
    if not plan.exact:
        lines.append("The text is not prepared yet: costs are those of a made-up text.")
    return "\n".join(lines)

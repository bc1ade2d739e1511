"""The leaderboard as text: for the terminal, as Markdown; and the plan of a dry run."""

from __future__ import annotations

from typing import Any

from etude.recipes.size import format_count
from etude.study.cells import Cell
from etude.study.plan import Plan, format_budget
from etude.study.settings import localize

VERDICTS = {
    "holds": "holds", "fails": "fails", "not settled": "not settled at this budget", "not tested": "not tested",
}  # fmt: skip


def rank_rows(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows, best mean first; those without one last."""
    return sorted(results["rows"], key=lambda row: -(row["mean"] or {"mean": -1.0})["mean"])


def format_points(value: float | None, sign: bool = False) -> str:
    """In points, with a true minus; what rounds to nothing has no sign."""
    if value is None:
        return ""
    points = round(100 * value, 1) + 0.0  # -0.0 + 0.0 is 0.0
    return f"{points:{'+' if sign and points else ''}.1f}".replace("-", "−")


def format_spread(one: dict[str, Any] | None, otherwise: str) -> str:
    """Mean ± deviation over seeds, in points."""
    if one is None:
        return otherwise
    return format_points(one["mean"]) + (
        f" ± {format_points(one['deviation'])}" if one["deviation"] is not None else ""
    )


def missing_reason(row: dict[str, Any]) -> str:
    """Why a row may lack a score: something failed, or the study was cut off before."""
    return "failed" if row["failed"] else "not done"


def format_cost(row: dict[str, Any]) -> tuple[str, str, str]:
    """FLOPs, tokens and seconds of its pre-training."""
    spent = row.get("pretraining")
    if not spent or spent["flops"] is None:
        return "0", "0", "0"
    return f"{spent['flops']:.2e}", format_count(spent["tokens"], "KMBT"), f"{spent['seconds']:.0f}"


def render_markdown(results: dict[str, Any], language: str = "en") -> str:
    """Everything that decides, in one file that reads in a repository."""
    columns = results["columns"]
    head = ["", "mean", *(column["name"] for column in columns), "FLOPs", "tokens", "seconds", "parameters"]
    lines = [f"# {localize(results['title'], language)}", ""]
    if results["question"]:
        lines += [localize(results["question"], language), ""]
    lines += ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rank_rows(results):
        scores = [format_spread(row["scores"].get(column["name"]), missing_reason(row)) for column in columns]
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
        lines += ["| claim | difference | 95 % interval | p (Holm) | verdict |", "|---|---|---|---|---|"]
        lines += [_render_claim(claim, language) for claim in results["claims"]]
        lines.append("")
    lines += [f"- {row['name']}: {message}" for row in results["rows"] for message in row["failed"]]
    lines += ["", f"{results['hardware']}; {results['versions']}; {results['date']}."]
    return "\n".join(lines) + "\n"


def _render_claim(claim: dict[str, Any], language: str) -> str:
    words = localize(claim["claim"], language)
    if "mean" not in claim:
        return f"| {words} | | | | {VERDICTS[claim['verdict']]} |"
    interval = f"{format_points(claim['low'])} … {format_points(claim['high'])}"
    gain, verdict = format_points(claim["mean"], sign=True), VERDICTS[claim["verdict"]]
    return f"| {words} | {gain} | {interval} | {claim['holm']:.3g} | {verdict} |"


# --- terminal ---------------------------------------------------------------------------------------


def print_leaderboard(results: dict[str, Any], console: Any) -> None:
    """On a terminal as wide as that is; a log has no edge."""
    from rich.console import Console

    wide = console if console.is_terminal else Console(highlight=False, width=200)
    wide.print(_build_table(results))


def _build_table(results: dict[str, Any]) -> Any:
    """A table for rich."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for name in ["mean", *(column["name"] for column in results["columns"]), "FLOPs", "tokens", "seconds"]:
        table.add_column(name, justify="right")
    for row in rank_rows(results):
        style = "" if row["kind"] == "contender" else "dim"
        scores = [
            format_spread(row["scores"].get(column["name"]), missing_reason(row)) for column in results["columns"]
        ]
        label = Text(localize(row["label"], "en"), style="bold" if not style else "dim")
        table.add_row(label, format_spread(row["mean"], missing_reason(row)), *scores, *format_cost(row), style=style)
    return table


def build_plan_table(plan: Plan, cells: list[Cell]) -> Any:
    """The grid of a dry run: what each of the cells costs and takes, and what is there already."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, side in (("cell", "left"), ("", "left"), ("FLOPs", "right"), ("seconds", "right"), ("state", "left")):
        table.add_column(name, justify=side)  # type: ignore[arg-type]
    for cell in cells:
        state = {"done": "cached", "failed": "failed before", "begun": "begun", "absent": ""}
        cost = f"{cell.flops:.2e}" if cell.flops else ""
        table.add_row(cell.key[:8], cell.title, cost, f"{cell.seconds:.1f}", state[plan.store.state(cell.key)])
    return table


def summarize_plan(plan: Plan, workers: int = 1) -> str:
    """The whole of it in a few lines."""
    waiting = plan.pending_cells()
    left, flops = sum(cell.seconds for cell in waiting), sum(cell.flops for cell in waiting)
    budget = plan.study.budget
    lines = [
        f"{len(plan.cells)} cells, {len(plan.cells) - len(waiting)} of them cached; "
        f"about {flops:.2e} FLOPs and {left / 60 / max(1, workers):.1f} minutes to go.",
        f"Budget: {', '.join(format_budget(budget.kind, amount) for amount in budget.amounts)} for every contender.",
    ]
    for row in plan.rows:
        if row.length is not None:
            why = " (passes over the text are capped)" if row.length.capped else ""
            why += " (by the clock: it needs hardly any FLOPs)" if row.length.by_clock else ""
            lines.append(
                f"  {row.name}: {row.length.steps:,} steps, {format_count(row.length.tokens, 'KMBT')} tokens, "
                f"{row.length.flops:.2e} FLOPs, {row.length.epochs:.1f} passes{why}"
            )
    if not plan.exact:
        lines.append("The text is not prepared yet: costs are those of a made-up text.")
    return "\n".join(lines)

"""Result sections of the report: leaderboard, claims with verdicts."""

from __future__ import annotations

from html import escape

from etude.study.leaderboard import format_points, rank_rows
from etude.study.plan import format_scientific
from etude.study.report import charts
from etude.study.report.charts import Axis
from etude.study.report.html import (
    JsonDict,
    describe_task,
    format_effect,
    format_labels,
    format_level,
    format_p_statement,
    format_row_budget,
    render_section,
    render_spread,
    render_swatch,
)
from etude.study.report.translations import localize_html, translate
from etude.study.sections import localize


def render_leaderboard(results: JsonDict, colours: dict[str, str]) -> str:
    rows = rank_rows(results)
    means = [row["mean"] for row in rows if row["mean"]]
    if not means:
        return render_section(translate("leaderboard"), "", f"<p>{translate('nothing')}</p>")
    axis = charts.linear_axis([100 * score[key] for score in means for key in ("low", "high", "mean")], pad=0.04)
    scale = charts.draw_scale(axis, "points")
    head = "".join(f'<th class="n">{_render_heading(column)}</th>' for column in results["columns"])
    body = "".join(_render_row(results, row, number, axis, colours[row["name"]]) for number, row in enumerate(rows, 1))
    table = (
        f'<div class="scroll"><table class="board"><thead><tr><th></th><th>{translate("system")}</th>'
        f'<th class="n">{translate("mean")}</th><th class="plot">{scale}</th>{head}'
        f'<th class="n">{translate("cost")}</th></tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
    return render_section(translate("leaderboard"), translate("leaderboard_lead", level=format_level(results)), table)


def _render_heading(column: JsonDict) -> str:
    labels = f"<br><small>{format_labels(column)}</small>" if column["labels"] else ""
    return f'<span class="head">{localize_html(column["label"])}</span>{labels}'


def _render_key(column: JsonDict) -> str:
    """Render a column's name before its score, for narrow screens without a table head."""
    amount = "" if column["labels"] is None else f" · {column['labels']:,}"
    return f'<span class="key">{localize_html(column["label"])}{amount}</span>'


def _render_row(results: JsonDict, row: JsonDict, number: int, axis: Axis, colour: str) -> str:
    is_baseline = row["kind"] not in ("contender", "start")
    mean = row["mean"]
    small = "" if is_baseline else f"<small>{escape(row['system'])}{format_row_budget(results, row)}</small>"
    if row["kind"] == "start":
        earlier = row["start"]["earlier"]
        words = translate("start_unknown") if earlier is None else f"{earlier['flops']:.2e} FLOPs"
        small = f"<small>{escape(row['system'])} · {translate('start')}: {words}</small>"
    parts = "".join(
        f'<td class="part">{_render_key(column)}{_render_score(row, column["name"])}</td>'
        for column in results["columns"]
    )
    if mean is None:
        value, plot = f'<span class="trouble">{translate("failed" if row["failed"] else "not_done")}</span>', ""
    else:
        title = f"{localize(row['label'], 'en')}: {format_points(mean['mean'])}"
        scores = {key: 100 * mean[key] for key in ("mean", "low", "high")}
        plot = charts.draw_strip(
            scores["mean"], scores["low"], scores["high"], [100 * seed for seed in mean["seeds"]], axis, colour,
            escape(title),
        )  # fmt: skip
        deviation = (
            f'<span class="sd">± {format_points(mean["deviation"])}</span>' if mean["deviation"] is not None else ""
        )
        value = f'<span class="big">{format_points(mean["mean"])}</span>{deviation}'
    return (
        f'<tr{" class=base" if is_baseline else ""}><td class="rank n">{number}</td>'
        f'<td class="who">{render_swatch(colour)}{localize_html(row["label"])}{small}</td>'
        f'<td class="n mean">{value}</td><td class="plot">{plot}</td>{parts}'
        f'<td class="part"><span class="key">{translate("cost")}</span>{_render_cost(row)}</td></tr>'
    )


def _render_score(row: JsonDict, column: str) -> str:
    """Render mean and deviation, or the mean of the seeds that are done so far and what is missing."""
    partial = row.get("partial", {}).get(column)
    if partial is None or column in row["scores"]:
        return render_spread(row["scores"].get(column))
    is_missing = len(partial["seeds"]) < partial["planned"]
    missing = f"{len(partial['seeds'])}/{partial['planned']} {translate('seeds')}"
    note = missing if is_missing else translate("tuning_pending")
    return f"<span>{format_points(partial['mean'])}<span class='under'>{note}</span></span>"


def _render_cost(row: JsonDict) -> str:
    spent = row.get("pretraining")
    if not spent or spent["flops"] is None:
        return "–"
    flops = format_scientific(spent["flops"])
    return f"<span class='cost'>{flops} FLOPs<span class='under'>{spent['seconds']:.0f} s</span></span>"


def render_claims(results: JsonDict) -> str:
    if not results["claims"]:
        return ""
    tested = [claim for claim in results["claims"] if "mean" in claim]
    ends = [100 * claim[key] for claim in tested for key in ("low", "high")] + [0.0]
    axis = charts.linear_axis(ends, pad=0.08)
    cards = "".join(_render_claim(results, claim, axis) for claim in results["claims"])
    error = f"{1 - results['rule']['interval']:.2g}"
    lead = f"{translate('claims_lead', error=error)} {_render_registration(results)}"
    if results["rule"]["over"] == "examples":
        lead += f" <b>{translate('over_examples')}</b>"
    elif results["seeds"]["pretrain"] < 2:
        lead += f" <b>{translate('single_seed')}</b>"
    if results["rule"].get("looks"):
        lead += " " + translate("looks", looks=", ".join(map(str, results["rule"]["looks"])), error=error)
    if results["registered"].get("unplanned_seeds"):
        counts = ", ".join(results["registered"]["unplanned_seeds"])
        lead += f' <b class="trouble">{translate("unplanned_seeds", counts=counts)}</b>'
    if results["registered"].get("changed"):
        lead += f' <b class="trouble">{translate("claims_changed")}</b>'
    return render_section(translate("claims"), lead, f'<div class="cards">{cards}</div>')


def _render_registration(results: JsonDict) -> str:
    """Say when the claims were recorded, and whether cells are older than that: some come from other folders."""
    registered = results["registered"]
    date = registered.get("date", "").replace("T", " ").replace("+00:00", " UTC")
    if older := registered.get("older_cells"):  # results of earlier versions do not count them
        return translate("claims_after", date=date, count=older, cells=len(results["cells"]))
    return translate("claims_before", date=date)


def _render_claim(results: JsonDict, claim: JsonDict, axis: Axis) -> str:
    verdict = claim["verdict"]
    labels = {row["name"]: row["label"] for row in results["rows"]}
    colour = {"holds": "var(--good)", "fails": "var(--bad)"}.get(verdict, "var(--unsure)")
    better, than = (localize_html(labels.get(claim[side]) or claim[side]) for side in ("better", "than"))
    sides = f"{better} {translate('against')} {than}"
    numbers, plot = "", ""
    if "mean" in claim:
        effect = f" · {translate('effect')} {format_effect(claim['effect'])}" if claim["effect"] is not None else ""
        margin = f" · {translate('margin')} {format_points(claim['margin'], sign=True)}" if claim["margin"] else ""
        between = f"{format_points(claim['low'])} … {format_points(claim['high'])}"
        numbers = (
            f'<p class="numbers"><b>{format_points(claim["mean"], sign=True)}</b> {translate("points")} · '
            f"{format_level(results)} {translate('interval')} {between} · "
            f"{format_p_statement(claim['holm'])} (Holm){effect}{margin}</p>"
        )
        if verdict == "not settled" and claim["detectable"] is not None:
            numbers += f'<p class="note">{translate("detectable", points=format_points(claim["detectable"]))}</p>'
        plot = charts.draw_strip(
            100 * claim["mean"], 100 * claim["low"], 100 * claim["high"], [100 * seed for seed in claim["seeds"]], axis,
            colour, escape(f"{localize(claim['claim'], 'en')}: {100 * claim['mean']:+.1f}"), 100 * claim["margin"],
        )  # fmt: skip
    if "untested" in claim:
        reason = f"untested_{claim['untested']}"
        numbers += f'<p class="note">{translate(reason)}</p>'
    paper = f'<p class="note">{escape(claim["paper"])}</p>' if claim["paper"] else ""
    mark = {"holds": "✓ ", "fails": "✗ "}.get(verdict, "")
    return (
        f'<article class="card claim"><span class="badge {verdict.replace(" ", "-")}">{mark}{translate(verdict)}</span>'
        f'<p class="said">{localize_html(claim["claim"])}</p>{plot}{numbers}'
        f'<p class="note">{sides} · {describe_task(results, claim["on"])}</p>{paper}</article>'
    )

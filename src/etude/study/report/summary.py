"""The parts of the page that decide: the leaderboard, the claims with their verdicts, the rounds of a pick."""

from __future__ import annotations

from html import escape

from etude.study.leaderboard import percent, ranked
from etude.study.plan import power
from etude.study.report import charts
from etude.study.report.charts import Axis
from etude.study.report.html import (
    Found,
    amount_of,
    labels_of,
    level_of,
    place_of,
    section,
    signed,
    spread,
    stated,
    swatch,
)
from etude.study.report.translations import both, words
from etude.study.settings import in_language


def leaderboard(found: Found, colours: dict[str, str]) -> str:
    rows = ranked(found)
    known = [row["mean"] for row in rows if row["mean"]]
    if not known:
        return section(both("leaderboard"), "", f"<p>{both('nothing')}</p>")
    axis = charts.linear([100 * one[key] for one in known for key in ("low", "high", "mean")], pad=0.04)
    scale = charts.scale(axis, "points")
    head = "".join(f'<th class="n">{_column(column)}</th>' for column in found["columns"])
    body = "".join(_board_row(found, row, number, axis, colours[row["name"]]) for number, row in enumerate(rows, 1))
    table = (
        f'<div class="scroll"><table class="board"><thead><tr><th></th><th>{both("system")}</th>'
        f'<th class="n">{both("mean")}</th><th class="plot">{scale}</th>{head}'
        f'<th class="n">{both("cost")}</th></tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
    return section(both("leaderboard"), both("leaderboard_lead", level=level_of(found)), table)


def _column(column: Found) -> str:
    labels = f"<br><small>{labels_of(column)}</small>" if column["labels"] else ""
    return f'<span class="head">{words(column["label"])}</span>{labels}'


def _plain(column: Found) -> str:
    """Its name before a score where a phone has no room for a head."""
    amount = "" if column["labels"] is None else f" · {column['labels']:,}"
    return f'<span class="key">{words(column["label"])}{amount}</span>'


def _board_row(found: Found, row: Found, number: int, axis: Axis, colour: str) -> str:
    base = row["kind"] != "contender"
    mean = row["mean"]
    small = "" if base else f"<small>{escape(row['system'])}{amount_of(found, row)}</small>"
    parts = "".join(
        f'<td class="part">{_plain(column)}{spread(row["scores"].get(column["name"]))}</td>'
        for column in found["columns"]
    )
    if mean is None:
        value, plot = f'<span class="trouble">{both("failed" if row["failed"] else "not_done")}</span>', ""
    else:
        title = f"{in_language(row['label'], 'en')}: {percent(mean['mean'])}"
        scores = {key: 100 * mean[key] for key in ("mean", "low", "high")}
        plot = charts.strip(
            scores["mean"], scores["low"], scores["high"], [100 * one for one in mean["seeds"]], axis, colour,
            escape(title),
        )  # fmt: skip
        deviation = f'<span class="sd">± {percent(mean["deviation"])}</span>' if mean["deviation"] is not None else ""
        value = f'<span class="big">{percent(mean["mean"])}</span>{deviation}'
    return (
        f'<tr{" class=base" if base else ""}><td class="rank n">{number}</td>'
        f'<td class="who">{swatch(colour)}{words(row["label"])}{small}</td><td class="n mean">{value}</td>'
        f'<td class="plot">{plot}</td>{parts}'
        f'<td class="part"><span class="key">{both("cost")}</span>{_cost(row)}</td></tr>'
    )


def _cost(row: Found) -> str:
    spent = row.get("pretraining")
    if not spent or spent["flops"] is None:
        return "–"
    return f"<span class='cost'>{power(spent['flops'])} FLOPs<span class='under'>{spent['seconds']:.0f} s</span></span>"


def claims(found: Found) -> str:
    if not found["claims"]:
        return ""
    tested = [claim for claim in found["claims"] if "mean" in claim]
    ends = [100 * claim[key] for claim in tested for key in ("low", "high")] + [0.0]
    axis = charts.linear(ends, pad=0.08)
    cards = "".join(_claim(found, claim, axis) for claim in found["claims"])
    date = found["registered"].get("date", "").replace("T", " ").replace("+00:00", " UTC")
    lead = both("claims_lead", level=level_of(found), date=date)
    if found["registered"].get("changed"):
        lead += f' <b class="trouble">{both("claims_changed")}</b>'
    return section(both("claims"), lead, f'<div class="cards">{cards}</div>')


def _claim(found: Found, claim: Found, axis: Axis) -> str:
    verdict = claim["verdict"]
    labels = {row["name"]: row["label"] for row in found["rows"]}
    colour = {"holds": "var(--good)", "fails": "var(--bad)"}.get(verdict, "var(--unsure)")
    better, than = (words(labels.get(claim[side]) or claim[side]) for side in ("better", "than"))
    sides = f"{better} {both('against')} {than}"
    numbers, plot = "", ""
    if "mean" in claim:
        effect = f" · {both('effect')} {signed(claim['effect'])}" if claim["effect"] is not None else ""
        margin = f" · {both('margin')} {percent(claim['margin'], sign=True)}" if claim["margin"] else ""
        between = f"{percent(claim['low'])} … {percent(claim['high'])}"
        numbers = (
            f'<p class="numbers"><b>{percent(claim["mean"], sign=True)}</b> {both("points")} · {level_of(found)} '
            f"{both('interval')} {between} · {stated(claim['holm'])} (Holm){effect}{margin}</p>"
        )
        plot = charts.strip(
            100 * claim["mean"], 100 * claim["low"], 100 * claim["high"], [100 * one for one in claim["seeds"]], axis,
            colour, escape(f"{in_language(claim['claim'], 'en')}: {100 * claim['mean']:+.1f}"), 100 * claim["margin"],
        )  # fmt: skip
    paper = f'<p class="note">{escape(claim["paper"])}</p>' if claim["paper"] else ""
    mark = {"holds": "✓ ", "fails": "✗ "}.get(verdict, "")
    return (
        f'<article class="card claim"><span class="badge {verdict.replace(" ", "-")}">{mark}{both(verdict)}</span>'
        f'<p class="said">{words(claim["claim"])}</p>{plot}{numbers}'
        f'<p class="note">{sides} · {place_of(found, claim["on"])}</p>{paper}</article>'
    )


def picked(found: Found, colours: dict[str, str]) -> str:
    """The rounds of `etude pick`, where there were any."""
    rounds = found.get("rounds")
    if not rounds:
        return ""
    body = ""
    for number, one in enumerate(rounds, 1):
        for row in one["rows"]:
            kept = both("kept") if row["kept"] else ""
            body += (
                f"<tr><td>{number}</td><td>{one['minutes']:.2g} {both('minutes')}</td>"
                f"<td>{words(row['label'])}</td><td class='n'>{percent(row['dev'])}</td><td>{kept}</td></tr>"
            )
    head = f"<tr><th>{both('round')}</th><th>{both('budget')}</th><th>{both('system')}</th>"
    table = f"<table>{head}<th class='n'>{both('dev_points')}</th><th></th></tr>{body}</table>"
    return section(both("picked"), both("picked_lead"), f'<div class="scroll">{table}</div>')

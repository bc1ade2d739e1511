"""The report: one HTML file with everything inside, for a person who was not there.

First the answer, then the leaderboard, the claims with their verdicts, what quality costs, how everybody learnt, a card
each, and at the end how it was measured and what to type to do any part of it again. Nothing is loaded from elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from etude.recipes.size import short
from etude.study import charts
from etude.study.charts import Axis, Point, Series
from etude.study.plan import power, shown_amount
from etude.study.settings import Words, in_language
from etude.study.table import percent, ranked
from etude.study.words import WORDS, both, said, words
from etude.train import checkpoint

Found = dict[str, Any]
GREY = "var(--base)"
COLOURS = 8  # that report.css knows, distinct in both schemes and to most eyes (after Okabe and Ito 2008)
# Opens everything for paper, and the reader's own language first; without it the page works in the one it is set to.
SCRIPT = """
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(d => d.open = true));
try { if (!location.hash && /^ko/.test(navigator.language)) document.getElementById("ko").checked = true } catch (e) {}
"""


def write_report(path: Path, found: Found, language: str = "en") -> None:
    checkpoint.write_text(path, page(found, language))


def page(found: Found, language: str = "en") -> str:
    colours = colours_of(found)
    ticked = {name: " checked" if name == language else "" for name in ("en", "ko")}
    title = escape(in_language(found["title"], language))
    style = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    sections = [
        _leaderboard(found, colours), _claims(found), _picked(found, colours), _quality(found, colours),
        _curves(found, colours), _cards(found, colours), _comparisons(found, colours), _methods(found), _cells(found),
    ]  # fmt: skip
    return (
        f'<!doctype html>\n<html lang="{language}">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{title}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f'<input class="choose" type="radio" name="tongue" id="en"{ticked["en"]}>'
        f'<input class="choose" type="radio" name="tongue" id="ko"{ticked["ko"]}>\n'
        f"{_header(found, colours)}\n<main>\n{''.join(sections)}\n</main>\n{_footer(found)}\n"
        f"<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def colours_of(found: Found) -> dict[str, str]:
    """A colour for each contender, the same everywhere; grey for what they are held against."""
    entries = dict.fromkeys(_entry(row) for row in found["rows"] if row["kind"] == "contender")
    own = {name: f"var(--c{number % COLOURS})" for number, name in enumerate(entries)}
    return {row["name"]: own.get(_entry(row), GREY) if row["kind"] == "contender" else GREY for row in found["rows"]}


def _entry(row: Found) -> str:
    return row["name"].partition(" @ ")[0]


def _level(found: Found) -> str:
    return f"{100 * found['rule']['interval']:g} %"


def _section(title: str, lead: str, inside: str) -> str:
    lead = f'<p class="lead">{lead}</p>' if lead else ""
    return f"<section>\n<h2>{title}</h2>\n{lead}{inside}\n</section>\n" if inside else ""


def signed(value: float) -> str:
    """With a true minus."""
    return f"{value:.2f}".replace("-", "−")


def _swatch(colour: str) -> str:
    return f'<i class="swatch" style="--own:{colour}"></i>'


# --- the answer -------------------------------------------------------------------------------------


def _header(found: Found, colours: dict[str, str]) -> str:
    question = f'<p class="question">{words(found["question"])}</p>' if found["question"] else ""
    contenders = [row for row in found["rows"] if row["kind"] == "contender"]
    budget = " · ".join(shown_amount(found["budget"]["kind"], amount) for amount in found["budget"]["amounts"])
    units = found["seeds"]["pretrain"] * found["seeds"]["transfer"]
    facts = [
        (str(len({_entry(row) for row in contenders})), both("contenders")),
        (escape(budget), both("budget")),
        (str(len(found["columns"])), both("tasks")),
        (str(units), both("seeds")),
        (str(len(found["cells"])), both("cells")),
    ]
    listed = "".join(f"<li><b>{value}</b>{name}</li>" for value, name in facts)
    return (
        f'<header class="page">\n<div class="over"><span><b>Etude</b> &nbsp;{both("study")} · {found["date"]}</span>'
        '<span class="tongues"><label for="en">English</label><label for="ko">한국어</label></span></div>\n'
        f'<h1>{words(found["title"])}</h1>\n{question}\n<p class="answer">{answer(found)}</p>\n'
        f'<ul class="facts">{listed}</ul>\n</header>'
    )


def answer(found: Found) -> str:
    """The outcome in one sentence, both languages."""
    best = next((row for row in ranked(found) if row["kind"] == "contender" and row["mean"]), None)
    if best is None:
        return both("nothing")
    gain = next((one for one in found["comparisons"] if one["row"] == best["name"] and one["on"] == "mean"), None)
    if gain is None:
        return both("nothing")
    key = "best" if gain["verdict"] == "holds" else "best_unsure" if gain["mean"] > 0 else "none_pays"
    label = best["label"]
    names = tuple(f"<b>{escape(in_language(label, language))}</b>" for language in ("en", "ko"))
    return said(
        key, best=names, mean=f"<b>{percent(best['mean']['mean'])}</b>", level=_level(found),
        gain=f"<b>{percent(gain['mean'], sign=key == 'none_pays')}</b>",
        low=percent(gain["low"]), high=percent(gain["high"]),
    )  # fmt: skip


# --- leaderboard ------------------------------------------------------------------------------------


def _leaderboard(found: Found, colours: dict[str, str]) -> str:
    rows = ranked(found)
    known = [row["mean"] for row in rows if row["mean"]]
    if not known:
        return _section(both("leaderboard"), "", f"<p>{both('nothing')}</p>")
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
    return _section(both("leaderboard"), both("leaderboard_lead", level=_level(found)), table)


def _column(column: Found) -> str:
    labels = f"<br><small>{column['labels']:,} {both('labels')}</small>" if column["labels"] else ""
    return f'<span class="head">{words(column["label"])}</span>{labels}'


def _plain(column: Found) -> str:
    name = in_language(column["label"], "en")
    return escape(name if column["labels"] is None else f"{name} · {column['labels']}")


def _board_row(found: Found, row: Found, number: int, axis: Axis, colour: str) -> str:
    base = row["kind"] != "contender"
    mean = row["mean"]
    small = "" if base else f"<small>{escape(row['system'])}{_amount(found, row)}</small>"
    parts = "".join(
        f'<td class="part" data-name="{_plain(column)}">{_spread(row["scores"].get(column["name"]))}</td>'
        for column in found["columns"]
    )
    if mean is None:
        value, plot = f'<span class="trouble">{both("failed")}</span>', ""
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
        f'<td class="who">{_swatch(colour)}{words(row["label"])}{small}</td><td class="n mean">{value}</td>'
        f'<td class="plot">{plot}</td>{parts}'
        f'<td class="part" data-name="{WORDS["cost"][0]}">{_cost(row)}</td></tr>'
    )


def _amount(found: Found, row: Found) -> str:
    if len(found["budget"]["amounts"]) < 2 or row["amount"] is None:
        return ""
    return f" · {shown_amount(found['budget']['kind'], row['amount'])}"


def _spread(one: Found | None) -> str:
    if one is None:
        return "–"
    deviation = f'<span class="sd">± {percent(one["deviation"])}</span>' if one["deviation"] is not None else ""
    return f"<span>{percent(one['mean'])}{deviation}</span>"


def _cost(row: Found) -> str:
    spent = row.get("pretraining")
    if not spent or spent["flops"] is None:
        return "–"
    return f"<span>{power(spent['flops'])} FLOPs<span class='under'>{spent['seconds']:.0f} s</span></span>"


# --- claims -----------------------------------------------------------------------------------------


def _claims(found: Found) -> str:
    if not found["claims"]:
        return ""
    tested = [claim for claim in found["claims"] if "mean" in claim]
    ends = [100 * claim[key] for claim in tested for key in ("low", "high")] + [0.0]
    axis = charts.linear(ends, pad=0.08)
    cards = "".join(_claim(found, claim, axis) for claim in found["claims"])
    date = found["registered"].get("date", "").replace("T", " ").removesuffix("+00:00")
    lead = both("claims_lead", level=_level(found), date=date)
    if found["registered"].get("changed"):
        lead += f' <b class="trouble">{both("claims_changed")}</b>'
    return _section(both("claims"), lead, f'<div class="cards">{cards}</div>')


def _claim(found: Found, claim: Found, axis: Axis) -> str:
    verdict = claim["verdict"]
    labels = {row["name"]: row["label"] for row in found["rows"]}
    colour = {"holds": "var(--good)", "fails": "var(--bad)"}.get(verdict, "var(--unsure)")
    where = both("all_tasks") if claim["on"] == "mean" else escape(claim["on"])
    sides = " − ".join(words(labels.get(claim[side]) or claim[side]) for side in ("better", "than"))
    numbers, plot = "", ""
    if "mean" in claim:
        effect = f" · {both('effect')} {signed(claim['effect'])}" if claim["effect"] is not None else ""
        margin = f" · margin {100 * claim['margin']:+g}" if claim["margin"] else ""
        between = f"{percent(claim['low'])} … {percent(claim['high'])}"
        numbers = (
            f'<p class="numbers"><b>{percent(claim["mean"], sign=True)}</b> {both("points")} · {_level(found)} '
            f"{both('interval')} {between} · p = {claim['holm']:.3g}{effect}{margin}</p>"
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
        f'<p class="note">{sides} · {where}</p>{paper}</article>'
    )


def _picked(found: Found, colours: dict[str, str]) -> str:
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
    return _section(both("picked"), both("picked_lead"), f'<div class="scroll">{table}</div>')


# --- drawings ---------------------------------------------------------------------------------------


def _quality(found: Found, colours: dict[str, str]) -> str:
    contenders = [row for row in found["rows"] if row["kind"] == "contender" and row["mean"]]
    if not contenders:
        return ""
    control = next((row for row in found["rows"] if row["kind"] == "control" and row["mean"]), None)
    level = None
    if control:
        level = Series(control["label"], GREY, [_point(1.0, control["mean"])])
    shown = [row["mean"] for row in (*contenders, *([control] if control else []))]
    y = charts.linear([100 * one[key] for one in shown for key in ("low", "high")])
    drawings = []
    for name in ("flops", "tokens", "seconds"):
        series = _by_entry(contenders, name, colours)
        values = [point.x for one in series for point in one.points]
        if not values:
            continue
        x = charts.logarithmic(values)
        many = len(found["budget"]["amounts"]) > 1
        drawing = charts.chart(
            series, x, y, (WORDS[name][0], WORDS[name][1]), title=f"quality against {name}", lines=many, level=level
        )
        drawings.append(f"<figure><figcaption>{both(name)}</figcaption>{drawing}</figure>")
    drawings += _by_labels(found, colours)
    return _section(both("quality"), both("quality_lead"), f'<div class="charts">{"".join(drawings)}</div>')


def _point(x: float, one: Found) -> Point:
    return Point(x, 100 * one["mean"], 100 * one["low"], 100 * one["high"])


def _by_entry(rows: Iterable[Found], cost: str, colours: dict[str, str]) -> list[Series]:
    found: dict[str, Series] = {}
    for row in rows:
        spent = row["pretraining"][cost]
        if spent:
            one = found.setdefault(_entry(row), Series(row["label"], colours[row["name"]], []))
            one.points.append(_point(spent, row["mean"]))
    return list(found.values())


def _by_labels(found: Found, colours: dict[str, str]) -> list[str]:
    """Score against the number of labels, a drawing a task that was learnt from several numbers of them."""
    last = {_entry(row): row for row in found["rows"] if row["kind"] in ("contender", "control")}
    drawings = []
    for task in dict.fromkeys(column["task"] for column in found["columns"]):
        columns = [column for column in found["columns"] if column["task"] == task]
        if len(columns) < 2:
            continue
        series = []
        for row in last.values():
            points = [
                _point(column["learnt_from"], row["scores"][column["name"]])
                for column in columns
                if column["name"] in row["scores"]
            ]
            if points:
                series.append(Series(row["label"], colours[row["name"]], points, dashed=row["kind"] == "control"))
        if not series:
            continue
        values = [point for one in series for point in one.points]
        y = charts.linear([value for point in values for value in (point.low, point.high)])
        x = charts.logarithmic([point.x for point in values])
        labels = WORDS["labels"]
        label = columns[0]["label"]
        name = tuple(f"{in_language(label, tongue)}: {labels[n]}" for n, tongue in enumerate(("en", "ko")))
        drawing = charts.chart(series, x, y, (labels[0], labels[1]), title=f"{task} by labels", lines=True)
        caption = f'<span lang="en">{escape(name[0])}</span><span lang="ko">{escape(name[1])}</span>'
        drawings.append(f"<figure><figcaption>{caption}</figcaption>{drawing}</figure>")
    return drawings


def _curves(found: Found, colours: dict[str, str]) -> str:
    drawings = []
    for row in found["rows"]:
        curves = row.get("pretraining", {}).get("curves") or []
        lines = [[(line["tokens"], line["loss"]) for line in curve if line.get("loss") is not None] for curve in curves]
        drawn = charts.spark(
            [line for line in lines if line], colours[row["name"]], escape(f"held-out loss of {row['name']}"),
            (WORDS["tokens"][0], WORDS["tokens"][1]), escape(row.get("objective", "")),
        )  # fmt: skip
        if drawn:
            name = f"{words(row['label'])}{_amount(found, row)}"
            drawings.append(f"<figure><figcaption>{_swatch(colours[row['name']])}{name}</figcaption>{drawn}</figure>")
    shared = _bits(found, colours)
    inside = (
        f'<div class="charts">{shared}</div>' if shared else ""
    ) + f'<div class="sparks">{"".join(drawings)}</div>'
    return _section(both("curves"), both("curves_lead"), inside) if drawings else ""


def _bits(found: Found, colours: dict[str, str]) -> str:
    """Language models on one scale: bits per byte of held-out text, against FLOPs."""
    series = []
    for row in found["rows"]:
        curves = row.get("pretraining", {}).get("curves") or []
        points = [
            Point(line["flops"], line["bits_per_byte"], line["bits_per_byte"], line["bits_per_byte"])
            for line in (curves[0] if curves else [])
            if line.get("bits_per_byte") is not None and line["flops"]
        ]
        if points:
            series.append(Series(row["label"], colours[row["name"]], points))
    if len(series) < 2:
        return ""
    values = [point for one in series for point in one.points]
    drawing = charts.chart(
        series, charts.logarithmic([point.x for point in values]), charts.linear([point.y for point in values]),
        (WORDS["flops"][0], WORDS["flops"][1]), title="bits per byte", lines=True,
    )  # fmt: skip
    return f"<figure><figcaption>bits per byte</figcaption>{drawing}</figure>"


# --- cards ------------------------------------------------------------------------------------------


def _cards(found: Found, colours: dict[str, str]) -> str:
    cards = "".join(_card(found, row, colours[row["name"]]) for row in ranked(found) if row["kind"] == "contender")
    return _section(both("cards"), "", f'<div class="cards">{cards}</div>')


def _card(found: Found, row: Found, colour: str) -> str:
    spent = row["pretraining"]
    changes = ", ".join(f"{name}={value}" for name, value in row["changes"].items())
    facts: list[tuple[str, str]] = [
        (both("recipe"), f"<code>{escape(row['recipe'])}</code>"),
        (both("objective"), escape(row["objective"])),
        (both("shape"), escape(_model(row["model"]))),
        (both("parameters"), f"{short(row['parameters'], 'KMBT')} + {short(row['head_parameters'], 'KMBT')}"),
        (both("tokenizer"), escape(row["tokenizer"])),
        (both("trained"), f"{spent['steps']:,} {both('steps')}, {spent['epochs']:.1f} {both('passes')}"),
    ]
    if spent["flops"] is not None:
        facts += [
            (both("flops"), power(spent["flops"])),
            (both("tokens"), short(spent["tokens"], "KMBT")),
            (both("seconds"), f"{spent['seconds']:.1f}"),
        ]
    facts += [
        (f"{both('held_out')} {escape(name.replace('_', ' '))}", f"{value:.4g}")
        for name, value in spent["valid"].items()
    ]
    if changes:
        facts.append((both("changes"), f"<code>{escape(changes)}</code>"))
    for column, tuned in row["tuned"].items():
        chosen = ", ".join(f"{name}={value}" for name, value in tuned.items())
        facts.append((f"{both('tuned')} ({escape(column)})", f"<code>{escape(chosen)}</code>"))
    listed = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts)
    notes = [both("capped")] if spent["capped"] else []
    notes += [both("by_clock")] if spent["by_clock"] else []
    note = f'<p class="note">{"; ".join(notes)}</p>' if notes else ""
    trouble = "".join(f'<p class="trouble"><b>{both("failed")}:</b> {escape(one)}</p>' for one in row["failed"])
    mean = f'<span class="big">{percent(row["mean"]["mean"])}</span>' if row["mean"] else ""
    paper = f'<p class="note">{escape(row["paper"])}</p>' if row["paper"] else ""
    typed = [
        line
        for cell in found["cells"]
        if cell["place"]["row"] == row["name"] and cell["kind"] == "pretrain"
        for line in cell["commands"]
    ]
    commands = f"<details><summary>{both('commands')}</summary><pre>{escape(chr(10).join(typed))}</pre></details>"
    return (
        '<article class="card"><div class="top">'
        f'<span class="who">{_swatch(colour)}{words(row["label"])}</span>{mean}</div>'
        f'<p class="sub">{escape(row["system"])}{_amount(found, row)}</p>{trouble}<dl>{listed}</dl>{note}{paper}'
        f"{commands if typed else ''}</article>"
    )


def _model(model: Found) -> str:
    """transformer 2 × 64, 4 heads, context 64, vocabulary 1,000"""
    size = " × ".join(str(model[name]) for name in ("layers", "width") if model.get(name) is not None)
    parts = [f"{model['kind']} {size}"]
    parts += [f"{model['heads']} heads"] if model.get("heads") else []
    parts += [f"context {model['context']}"] if model.get("context") else []
    parts += [f"vocabulary {model['vocab']:,}"] if model.get("vocab") else []
    parts += [f"shared: {model['share']}"] if model.get("share") not in (None, "none") else []
    return ", ".join(parts)


# --- comparisons, methods, cells --------------------------------------------------------------------


def _comparisons(found: Found, colours: dict[str, str]) -> str:
    if not found["comparisons"]:
        return ""
    labels: dict[str, Words] = {row["name"]: row["label"] for row in found["rows"]}
    body = ""
    for one in found["comparisons"]:
        where = both("all_tasks") if one["on"] == "mean" else escape(one["on"])
        effect = "" if one["effect"] is None else signed(one["effect"])
        body += (
            f"<tr><td>{_swatch(colours[one['row']])}{words(labels[one['row']])}</td><td>{where}</td>"
            f'<td class="n">{percent(one["mean"], sign=True)}</td>'
            f'<td class="n">{percent(one["low"])} … {percent(one["high"])}</td>'
            f'<td class="n">{effect}</td><td class="n">{one["holm"]:.3g}</td></tr>'
        )
    head = (
        f"<tr><th>{both('system')}</th><th>{both('tasks')}</th><th class='n'>{both('difference')}</th>"
        f"<th class='n'>{_level(found)}</th><th class='n'>{both('effect')}</th><th class='n'>p (Holm)</th></tr>"
    )
    return _section(
        both("comparisons"), both("comparisons_lead"), f'<div class="scroll"><table>{head}{body}</table></div>'
    )


def _methods(found: Found) -> str:
    budget = found["budget"]
    amounts = ", ".join(shown_amount(budget["kind"], one) for one in budget["amounts"])
    tasks = "<br>".join(
        f"{words(column['label'])}: {escape(column['kind'])}, {escape(column['score'].replace('_', ' '))}; "
        f"{column['learnt_from']:,} {both('learnt_from')}, {column['examples']:,} {both('test_examples')}"
        for column in found["columns"]
    )
    facts = [
        (both("text"), _text(found)),
        (both("budget"), both("budget_words", amount=amounts, epochs=f"{budget['epochs']:g}")),
        (both("tasks"), tasks),
        (both("seeds"), both("seeds_words", **found["seeds"])),
        (both("interval"), both("interval_words", draws=f"{found['rule']['draws']:,}")),
        (both("baselines"), both("baselines_words", epochs=found.get("control_epochs", 40))),
        (both("hardware"), escape(f"{found['hardware']}; {found['device']}, {found['precision']}; {found['system']}")),
        (both("versions"), escape(found["versions"])),
        (both("date"), escape(found["date"])),
    ]
    if found["paper"]:
        facts.insert(0, (both("paper"), escape(found["paper"])))
    listed = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts)
    return _section(both("methods"), "", f'<dl class="wide">{listed}</dl>')


def _text(found: Found) -> str:
    text = found["text"]
    if "world" in text:
        return both("world_text", size=f"{text['world']:g}", language=text.get("language", "en"))
    names = [Path(name).name for name in text.get("files", [])] or [Path(text["corpus"]).name]
    return escape(", ".join(names))


def _cells(found: Found) -> str:
    body = "".join(
        f"<tr><td><code>{cell['key'][:8]}</code></td><td>{escape(cell['title'])}{_error(cell)}</td>"
        f'<td class="n">{percent(cell.get("value"))}</td><td class="n">{_seconds(cell)}</td>'
        f"<td>{'<br>'.join(f'<code>{escape(line)}</code>' for line in cell['commands'])}</td></tr>"
        for cell in found["cells"]
    )
    head = (
        f"<tr><th>{both('cells')}</th><th></th><th class='n'>{both('points')}</th><th class='n'>{both('seconds')}</th>"
        f"<th>{both('commands')}</th></tr>"
    )
    table = f'<div class="scroll"><table class="cells">{head}{body}</table></div>'
    whole = "etude study study.yaml -o ."
    inside = (
        f"<p class='note'>{both('reproduce')}: <code>{whole}</code></p>"
        f"<details><summary>{len(found['cells'])} {both('cells')}</summary>{table}</details>"
    )
    return _section(both("commands"), both("commands_lead"), inside)


def _error(cell: Found) -> str:
    return f'<p class="trouble">{escape(cell["error"])}</p>' if "error" in cell else ""


def _seconds(cell: Found) -> str:
    return f"{cell['seconds']:.1f}" if "seconds" in cell else both(cell["state"])


def _footer(found: Found) -> str:
    return f"<footer>{escape(found['versions'])} · {escape(found['hardware'])} · {escape(found['date'])}</footer>"

"""The parts of the page to look things up in: a card each, every comparison, the methods, every command."""

from __future__ import annotations

from html import escape
from pathlib import Path

from etude.recipes.size import format_count
from etude.study.leaderboard import percent, ranked
from etude.study.plan import power, shown_amount
from etude.study.report.html import Found, amount_of, level_of, place_of, probability, section, signed, swatch
from etude.study.report.translations import both, words
from etude.study.settings import Words, shown


def cards(found: Found, colours: dict[str, str]) -> str:
    cards = "".join(_card(found, row, colours[row["name"]]) for row in ranked(found) if row["kind"] == "contender")
    return section(both("cards"), "", f'<div class="cards">{cards}</div>')


def _card(found: Found, row: Found, colour: str) -> str:
    spent = row["pretraining"]
    facts: list[tuple[str, str]] = [
        (both("recipe"), f"<code>{escape(row['recipe'])}</code>"),
        (both("objective"), escape(row["objective"])),
        (both("shape"), _model(row["model"])),
        (both("parameters"), both("parameters_words", own=format_count(row["parameters"], "KMBT"),
                                  head=format_count(row["head_parameters"], "KMBT"))),
        (both("tokenizer"), escape(row["tokenizer"])),
        *([(both("text"), text_words(row["text"]))] if "text" in row else []),
        (both("trained"), both("trained_words", steps=f"{spent['steps']:,}", epochs=f"{spent['epochs']:.1f}")),
    ]  # fmt: skip
    if spent["flops"] is not None:
        facts += [
            (both("flops"), power(spent["flops"])),
            (both("tokens"), format_count(spent["tokens"], "KMBT")),
            (both("seconds"), f"{spent['seconds']:,.0f}" if spent["seconds"] >= 10 else f"{spent['seconds']:.2g}"),
        ]
    facts += [
        (f"{both('held_out')} · {both(word)}", f"{spent['valid'][name]:.3g}")
        for name, word in (("loss", "loss"), ("bits_per_byte", "bits"))
        if name in spent["valid"]
    ]
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
    changes = "\n".join(f"{name}={shown(value)}" for name, value in row["changes"].items())
    measured = "\n".join(f"{name} {value:.4g}" for name, value in spent["valid"].items())
    lists = _folded("changes", changes) + _folded("held_out_all", measured)
    commands = f"<details><summary>{both('commands')}</summary><pre>{escape(chr(10).join(typed))}</pre></details>"
    return (
        '<article class="card"><div class="top">'
        f'<span class="who">{swatch(colour)}{words(row["label"])}</span>{mean}</div>'
        f'<p class="sub">{escape(row["system"])}{amount_of(found, row)}</p>{trouble}<dl>{listed}</dl>{note}{paper}'
        f"{lists}{commands if typed else ''}</article>"
    )


def _folded(name: str, lines: str) -> str:
    return f"<details><summary>{both(name)}</summary><pre>{escape(lines)}</pre></details>" if lines else ""


def _model(model: Found) -> str:
    """transformer 2 × 64, 4 heads, context 64, vocabulary 1,000"""
    size = " × ".join(str(model[name]) for name in ("layers", "width") if model.get(name) is not None)
    parts = [escape(f"{model['kind']} {size}")]
    parts += [
        both(f"model_{name}", value=f"{model[name]:,}") for name in ("heads", "context", "vocab") if model.get(name)
    ]
    parts += [both("model_share", value=model["share"])] if model.get("share") not in (None, "none") else []
    return ", ".join(parts)


def comparisons(found: Found, colours: dict[str, str]) -> str:
    if not found["comparisons"]:
        return ""
    labels: dict[str, Words] = {row["name"]: row["label"] for row in found["rows"]}
    body = ""
    for one in found["comparisons"]:
        effect = "" if one["effect"] is None else signed(one["effect"])
        body += (
            f"<tr><td>{swatch(colours[one['row']])}{words(labels[one['row']])}</td>"
            f"<td>{place_of(found, one['on'])}</td>"
            f'<td class="n">{percent(one["mean"], sign=True)}</td>'
            f'<td class="n">{percent(one["low"])} … {percent(one["high"])}</td>'
            f'<td class="n">{effect}</td><td class="n">{probability(one["holm"])}</td></tr>'
        )
    head = (
        f"<tr><th>{both('system')}</th><th>{both('tasks')}</th><th class='n'>{both('difference')}</th>"
        f"<th class='n'>{level_of(found)}</th><th class='n'>{both('effect')}</th><th class='n small'>p (Holm)</th></tr>"
    )
    return section(
        both("comparisons"), both("comparisons_lead"), f'<div class="scroll"><table>{head}{body}</table></div>'
    )


def methods(found: Found) -> str:
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
        (both("baselines"), both("baselines_words")),
        (both("hardware"), escape(f"{found['hardware']}; {found['device']}, {found['precision']}; {found['system']}")),
        (both("versions"), escape(found["versions"])),
        (both("date"), escape(found["date"])),
    ]
    if found["paper"]:
        facts.insert(0, (both("paper"), escape(found["paper"])))
    listed = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts)
    return section(both("methods"), "", f'<dl class="wide">{listed}</dl>')


def _text(found: Found) -> str:
    text = found["text"]
    if "world" in text:
        return both("world_text", size=f"{text['world']:g}", language=text.get("language", "en"))
    names = [Path(name).name for name in text.get("files", [])] or [Path(text["corpus"]).name]
    sizes = {text_words(row["text"]): None for row in found["rows"] if "text" in row}
    return escape(", ".join(names)) + (f": {'; '.join(sizes)}" if sizes else "")


def text_words(text: Found) -> str:
    """How much there is of it, and what was done to it."""
    parts = [both("text_size", tokens=format_count(text["tokens"], "KMBT"), size=f"{text['bytes'] / 1e6:.3g}")]
    parts += [both("text_share", share=f"{100 * text['share']:g}")] if text.get("share", 1) < 1 else []
    parts += [both("text_noise", share=f"{100 * text['noise']:g}")] if text.get("noise") else []
    parts += [both("text_pseudo", count=text["pseudo_words"])] if text.get("pseudo_words") else []
    return ", ".join(parts)


def cells(found: Found) -> str:
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
    return section(both("commands"), both("commands_lead"), inside)


def _error(cell: Found) -> str:
    return f'<p class="trouble">{escape(cell["error"])}</p>' if "error" in cell else ""


def _seconds(cell: Found) -> str:
    return f"{cell['seconds']:.1f}" if "seconds" in cell else both(cell["state"])

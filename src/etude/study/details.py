"""The parts of the page to look things up in: a card each, every comparison, the methods, every command."""

from __future__ import annotations

from html import escape
from pathlib import Path

from etude.recipes.size import short
from etude.study.pieces import Found, amount_of, level_of, section, signed, swatch
from etude.study.plan import power, shown_amount
from etude.study.settings import Words
from etude.study.table import percent, ranked
from etude.study.words import both, words


def cards(found: Found, colours: dict[str, str]) -> str:
    cards = "".join(_card(found, row, colours[row["name"]]) for row in ranked(found) if row["kind"] == "contender")
    return section(both("cards"), "", f'<div class="cards">{cards}</div>')


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
        f'<span class="who">{swatch(colour)}{words(row["label"])}</span>{mean}</div>'
        f'<p class="sub">{escape(row["system"])}{amount_of(found, row)}</p>{trouble}<dl>{listed}</dl>{note}{paper}'
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


def comparisons(found: Found, colours: dict[str, str]) -> str:
    if not found["comparisons"]:
        return ""
    labels: dict[str, Words] = {row["name"]: row["label"] for row in found["rows"]}
    body = ""
    for one in found["comparisons"]:
        where = both("all_tasks") if one["on"] == "mean" else escape(one["on"])
        effect = "" if one["effect"] is None else signed(one["effect"])
        body += (
            f"<tr><td>{swatch(colours[one['row']])}{words(labels[one['row']])}</td><td>{where}</td>"
            f'<td class="n">{percent(one["mean"], sign=True)}</td>'
            f'<td class="n">{percent(one["low"])} … {percent(one["high"])}</td>'
            f'<td class="n">{effect}</td><td class="n">{one["holm"]:.3g}</td></tr>'
        )
    head = (
        f"<tr><th>{both('system')}</th><th>{both('tasks')}</th><th class='n'>{both('difference')}</th>"
        f"<th class='n'>{level_of(found)}</th><th class='n'>{both('effect')}</th><th class='n'>p (Holm)</th></tr>"
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
    return escape(", ".join(names))


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

"""Reference sections of the report: cards, comparisons, methods and commands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from etude.recipes.size import format_count
from etude.study.cells import PRETRAININGS
from etude.study.leaderboard import format_points, rank_rows
from etude.study.plan import format_scientific
from etude.study.report.html import (
    JsonDict,
    describe_budget,
    describe_task,
    format_date,
    format_effect,
    format_error,
    format_level,
    format_p,
    format_row_budget,
    render_count,
    render_section,
    render_swatch,
)
from etude.study.report.translations import localize_html, translate, translate_html
from etude.study.sections import MEAN, Localized, format_value

# how study/plan_cells.py words the titles of cells
TITLES = {
    "cell_pretraining": re.compile(r"pre-training (?P<row>.+), seed (?P<seed>\S+)"),
    "cell_distillation": re.compile(r"distillation (?P<row>.+), seed (?P<seed>\S+)"),
    "cell_first_weights": re.compile(r"first weights of (?P<row>.+), seed (?P<seed>\S+)"),
    "cell_weights": re.compile(r"weights of (?P<row>.+)"),
    "cell_transfer": re.compile(r"(?P<row>.+) on (?P<column>\S+), seed (?P<seed>[\d.]+)(?P<rest>.*)"),
}


def render_cards(results: JsonDict, colours: dict[str, str]) -> str:
    cards = "".join(
        _render_card(results, row, colours[row["name"]]) for row in rank_rows(results) if row["kind"] == "contender"
    )
    return render_section(translate("cards"), "", f'<div class="cards">{cards}</div>')


def _render_card(results: JsonDict, row: JsonDict, colour: str) -> str:
    spent = row["pretraining"]
    facts: list[tuple[str, str]] = [
        (translate("recipe"), f"<code>{escape(row['recipe'])}</code>"),
        (translate("objective"), escape(row["objective"])),
        (translate("shape"), _describe_model(row["model"])),
        (translate("parameters"), _describe_parameters(row)),
        (translate("tokenizer"), escape(row["tokenizer"])),
        *([(translate("text"), describe_text_size(row["text"]))] if "text" in row else []),
        (translate("to_train" if spent["flops"] is None else "trained"),
         translate("trained_words", steps=f"{spent['steps']:,}", epochs=f"{spent['epochs']:.1f}")),
    ]  # fmt: skip
    if spent["flops"] is not None:
        facts += [
            (translate("flops"), format_scientific(spent["flops"])),
            (translate("tokens"), format_count(spent["tokens"], "KMBT")),
            (translate("seconds"), f"{spent['seconds']:,.0f}" if spent["seconds"] >= 10 else f"{spent['seconds']:.2g}"),
        ]
    facts += [
        (f"{translate('held_out')} · {translate(word)}", f"{spent['valid'][name]:.3g}")
        for name, word in (("loss", "loss"), ("bits_per_byte", "bits"))
        if name in spent["valid"]
    ]
    progress = spent.get("progress")
    if progress is not None and progress["unit"] != "accuracy":
        kind = translate(f"progress_{progress['kind']}")
        reference = translate(progress["unit"].replace(" ", "_"), value=f"{progress['reference']:.3g}")
        facts.append((f"{translate('progress')} · {kind}", reference))
    for column, tuned in row["tuned"].items():
        chosen = ", ".join(f"{name}={value}" for name, value in tuned.items())
        facts.append((f"{translate('tuned')} ({escape(column)})", f"<code>{escape(chosen)}</code>"))
    items = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts)
    notes = [translate("capped")] if spent["capped"] else []
    notes += [translate("by_clock")] if spent["by_clock"] else []
    note = f'<p class="note">{"; ".join(notes)}</p>' if notes else ""
    trouble = "".join(
        f'<p class="trouble"><b>{translate("failed")}:</b> {escape(message)}</p>' for message in row["failed"]
    )
    mean = f'<span class="big">{format_points(row["mean"]["mean"])}</span>' if row["mean"] else ""
    paper = f'<p class="note">{escape(row["paper"])}</p>' if row["paper"] else ""
    command_lines = [
        line
        for cell in results["cells"]
        if cell["place"]["row"] == row["name"] and cell["kind"] in PRETRAININGS
        for line in cell["commands"]
    ]
    changes = "\n".join(f"{name}={format_value(value)}" for name, value in row["changes"].items())
    measured = "\n".join(f"{name} {value:.4g}" for name, value in spent["valid"].items())
    lists = _render_folded("changes", changes) + _render_folded("held_out_all", measured)
    commands = (
        f"<details><summary>{translate('commands')}</summary><pre>{escape(chr(10).join(command_lines))}</pre></details>"
    )
    return (
        '<article class="card"><div class="top">'
        f'<span class="who">{render_swatch(colour)}{localize_html(row["label"])}</span>{mean}</div>'
        f'<p class="sub">{escape(row["system"])}{format_row_budget(results, row)}</p>'
        f"{trouble}<dl>{items}</dl>{note}{paper}"
        f"{lists}{commands if command_lines else ''}</article>"
    )


def _render_folded(name: str, lines: str) -> str:
    return f"<details><summary>{translate(name)}</summary><pre>{escape(lines)}</pre></details>" if lines else ""


def _describe_parameters(row: JsonDict) -> str:
    """11.0M, and 330K in the head; a model without a head has one number."""
    own = format_count(row["parameters"], "KMBT")
    if not row["head_parameters"]:
        return own
    return translate("parameters_words", own=own, head=format_count(row["head_parameters"], "KMBT"))


def _describe_model(model: JsonDict) -> str:
    """transformer 2 × 64, 4 heads, context 64, vocabulary 1,000"""
    size = " × ".join(str(model[name]) for name in ("layers", "width") if model.get(name) is not None)
    parts = [escape(f"{model['kind']} {size}")]
    parts += [
        translate(f"model_{name}", value=f"{model[name]:,}")
        for name in ("heads", "context", "vocab")
        if model.get(name)
    ]
    parts += [translate("model_share", value=model["share"])] if model.get("share") not in (None, "none") else []
    return ", ".join(parts)


def render_comparisons(results: JsonDict, colours: dict[str, str]) -> str:
    if not results["comparisons"]:
        return ""
    labels: dict[str, Localized] = {row["name"]: row["label"] for row in results["rows"]}
    body = ""
    for comparison in results["comparisons"]:
        if comparison["on"] == MEAN and len(results["columns"]) == 1:  # the same numbers as of the one task
            continue
        effect = "" if comparison["effect"] is None else format_effect(comparison["effect"])
        body += (
            f"<tr><td>{render_swatch(colours[comparison['row']])}{localize_html(labels[comparison['row']])}</td>"
            f"<td>{describe_task(results, comparison['on'])}</td>"
            f'<td class="n">{format_points(comparison["mean"], sign=True)}</td>'
            f'<td class="n">{format_points(comparison["low"])} … {format_points(comparison["high"])}</td>'
            f'<td class="n">{effect}</td><td class="n">{format_p(comparison["holm"])}</td></tr>'
        )
    head = (
        f"<tr><th>{translate('system')}</th><th>{translate('tasks')}</th><th class='n'>{translate('difference')}</th>"
        f"<th class='n'>{format_level(results)}</th><th class='n'>{translate('effect')}</th>"
        "<th class='n small'>p (Holm)</th></tr>"
    )
    return render_section(
        translate("comparisons"),
        translate("comparisons_lead"),
        f'<div class="scroll"><table>{head}{body}</table></div>',
    )


def render_methods(results: JsonDict) -> str:
    budget = results["budget"]
    amounts = [describe_budget(budget["kind"], amount) for amount in budget["amounts"]]
    tasks = "<br>".join(
        f"{localize_html(column['label'])}: {escape(column['kind'])}, {escape(column['score'].replace('_', ' '))}; "
        f"{column['learnt_from']:,} {translate('learnt_from')}, {column['examples']:,} {translate('test_examples')}"
        for column in results["columns"]
    )
    facts = [
        (translate("text"), _describe_text(results)),
        (
            translate("budget"),
            translate_html("budget_words", amount=", ".join(amounts), epochs=f"{budget['epochs']:g}"),
        ),
        (translate("tasks"), tasks),
        (translate("seeds"), translate("seeds_words", **results["seeds"])),
        (translate("interval"), translate("interval_words", error=format_error(results))),
        (translate("baselines"), translate("baselines_words")),
        (
            translate("hardware"),
            escape(f"{results['hardware']}; {results['device']}, {results['precision']}"),
        ),
        (translate("versions"), _describe_versions(results)),
        (translate("date"), format_date(results)),
    ]
    if results["paper"]:
        facts.insert(0, (translate("paper"), escape(results["paper"])))
    items = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts)
    return render_section(translate("methods"), "", f'<dl class="wide">{items}</dl>')


def _describe_versions(results: Mapping[str, Any]) -> str:
    """Describe what ran the cells; several versions of the code are told."""
    count = results.get("code_versions", 1)
    several = f"; {translate('code_versions', count=str(count))}" if count > 1 else ""
    return f"{escape(results['versions'])}{several}"


def _describe_text(results: JsonDict) -> str:
    text = results["text"]
    if "world" in text:
        return translate("world_text", size=f"{text['world']:g}", language=text.get("language", "en"))
    names = [Path(name).name for name in text.get("files", [])] or [Path(text["corpus"]).name]
    sizes = {describe_text_size(row["text"]): None for row in results["rows"] if "text" in row}
    return escape(", ".join(names)) + (f": {'; '.join(sizes)}" if sizes else "")


def describe_text_size(text: JsonDict) -> str:
    """Describe the size of a text and its alterations."""
    parts = [translate("text_size", tokens=format_count(text["tokens"], "KMBT"), size=f"{text['bytes'] / 1e6:.3g}")]
    parts += [translate("text_share", share=f"{100 * text['share']:g}")] if text.get("share", 1) < 1 else []
    parts += [translate("text_noise", share=f"{100 * text['noise']:g}")] if text.get("noise") else []
    parts += [translate("text_pseudo", count=text["pseudo_words"])] if text.get("pseudo_words") else []
    return ", ".join(parts)


def render_cells(results: JsonDict) -> str:
    body = "".join(
        f"<tr><td><code>{cell['key'][:8]}</code></td><td>{translate_title(cell['title'])}{_render_error(cell)}</td>"
        f'<td class="n">{format_points(cell.get("value"))}</td><td class="n">{_format_seconds(cell)}</td>'
        f"<td>{'<br>'.join(f'<code>{escape(line)}</code>' for line in cell['commands'])}</td></tr>"
        for cell in results["cells"]
    )
    head = (
        f"<tr><th>{translate('cells')}</th><th></th><th class='n'>{translate('points')}</th>"
        f"<th class='n'>{translate('seconds')}</th><th>{translate('commands')}</th></tr>"
    )
    table = f'<div class="scroll"><table class="cells">{head}{body}</table></div>'
    whole = "etude study study.yaml -o ."
    inside = (
        f"<p class='note'>{translate('reproduce')}: <code>{whole}</code></p>"
        f"<details><summary>{' '.join(render_count(len(results['cells']), 'cell'))}</summary>{table}</details>"
    )
    return render_section(translate("commands"), translate("commands_lead"), inside)


def translate_title(title: str) -> str:
    """Return a cell's title, which is stored in English, in both languages."""
    for key, pattern in TITLES.items():
        if parts := pattern.fullmatch(title):
            return translate(key, **parts.groupdict())
    return escape(title)


def _render_error(cell: JsonDict) -> str:
    return f'<p class="trouble">{escape(cell["error"])}</p>' if "error" in cell else ""


def _format_seconds(cell: JsonDict) -> str:
    return f"{cell['seconds']:.1f}" if "seconds" in cell else translate(cell["state"])

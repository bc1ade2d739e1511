"""The report: one HTML file with everything inside, for a person who was not there.

First the answer, then the leaderboard, the claims with their verdicts, what quality costs, how everybody learnt, a card
each, and at the end how it was measured and what to type to do any part of it again. Nothing is loaded from elsewhere.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from etude.study.leaderboard import format_points, rank_rows
from etude.study.plan import format_budget
from etude.study.report.details import render_cards, render_cells, render_comparisons, render_methods
from etude.study.report.html import JsonDict, assign_colours, entry_name, format_level
from etude.study.report.plots import render_curves, render_quality
from etude.study.report.summary import render_claims, render_leaderboard, render_rounds
from etude.study.report.translations import localize_html, translate, translate_html
from etude.study.settings import localize
from etude.train import checkpoint

# Opens everything for paper, and the reader's own language first; without it the page works in the one it is set to.
SCRIPT = """
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(d => d.open = true));
try { if (!location.hash && /^ko/.test(navigator.language)) document.getElementById("ko").checked = true } catch (e) {}
"""


def write_report(path: Path, found: JsonDict, language: str = "en") -> None:
    checkpoint.write_text(path, render_page(found, language))


def render_page(found: JsonDict, language: str = "en") -> str:
    colours = assign_colours(found)
    ticked = {name: " checked" if name == language else "" for name in ("en", "ko")}
    title = escape(localize(found["title"], language))
    style = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    sections = [
        render_leaderboard(found, colours), render_claims(found), render_rounds(found, colours), render_quality(found, colours),
        render_curves(found, colours), render_cards(found, colours), render_comparisons(found, colours), render_methods(found), render_cells(found),
    ]  # fmt: skip
    return (
        f'<!doctype html>\n<html lang="{language}">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{title}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f'<input class="choose" type="radio" name="tongue" id="en"{ticked["en"]}>'
        f'<input class="choose" type="radio" name="tongue" id="ko"{ticked["ko"]}>\n'
        f"{_render_header(found, colours)}\n<main>\n{''.join(sections)}\n</main>\n{_render_footer(found)}\n"
        f"<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def _render_header(found: JsonDict, colours: dict[str, str]) -> str:
    question = f'<p class="question">{localize_html(found["question"])}</p>' if found["question"] else ""
    contenders = [row for row in found["rows"] if row["kind"] == "contender"]
    budget = " · ".join(format_budget(found["budget"]["kind"], amount) for amount in found["budget"]["amounts"])
    units = found["seeds"]["pretrain"] * found["seeds"]["transfer"]
    facts = [
        (str(len({entry_name(row) for row in contenders})), translate("contenders")),
        (escape(budget), translate("budget")),
        (str(len(found["columns"])), translate("tasks")),
        (str(units), translate("seeds")),
        (str(len(found["cells"])), translate("cells")),
    ]
    listed = "".join(f"<li><b>{value}</b>{name}</li>" for value, name in facts)
    return (
        f'<header class="page">\n<div class="over"><span><b>Etude</b> &nbsp;{translate("study")} · {found["date"]}</span>'
        '<span class="tongues"><label for="en">English</label><label for="ko">한국어</label></span></div>\n'
        f'<h1>{localize_html(found["title"])}</h1>\n{question}\n<p class="answer">{render_answer(found)}</p>\n'
        f'<ul class="facts">{listed}</ul>\n</header>'
    )


def render_answer(found: JsonDict) -> str:
    """The outcome in one sentence, both languages."""
    best = next((row for row in rank_rows(found) if row["kind"] == "contender" and row["mean"]), None)
    if best is None:
        return translate("nothing")
    gain = next((one for one in found["comparisons"] if one["row"] == best["name"] and one["on"] == "mean"), None)
    if gain is None:
        return translate("nothing")
    key = "best" if gain["verdict"] == "holds" else "best_unsure" if gain["mean"] > 0 else "none_pays"
    label = best["label"]
    names = tuple(f"<b>{escape(localize(label, language))}</b>" for language in ("en", "ko"))
    return translate_html(
        key, best=names, mean=f"<b>{format_points(best['mean']['mean'])}</b>", level=format_level(found),
        gain=f"<b>{format_points(gain['mean'], sign=key == 'none_pays')}</b>",
        low=format_points(gain["low"]), high=format_points(gain["high"]),
    )  # fmt: skip


def _render_footer(found: JsonDict) -> str:
    return f"<footer>{escape(found['versions'])} · {escape(found['hardware'])} · {escape(found['date'])}</footer>"

"""The report: one HTML file with everything inside, for a person who was not there.

First the answer, then the leaderboard, the claims with their verdicts, what quality costs, how everybody learnt, a card
each, and at the end how it was measured and what to type to do any part of it again. Nothing is loaded from elsewhere.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from etude.study.leaderboard import percent, ranked
from etude.study.plan import shown_amount
from etude.study.report.details import cards, cells, comparisons, methods
from etude.study.report.html import Found, colours_of, entry_of, level_of
from etude.study.report.plots import curves, quality
from etude.study.report.summary import claims, leaderboard, picked
from etude.study.report.translations import both, said, words
from etude.study.settings import in_language
from etude.train import checkpoint

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
        leaderboard(found, colours), claims(found), picked(found, colours), quality(found, colours),
        curves(found, colours), cards(found, colours), comparisons(found, colours), methods(found), cells(found),
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


def _header(found: Found, colours: dict[str, str]) -> str:
    question = f'<p class="question">{words(found["question"])}</p>' if found["question"] else ""
    contenders = [row for row in found["rows"] if row["kind"] == "contender"]
    budget = " · ".join(shown_amount(found["budget"]["kind"], amount) for amount in found["budget"]["amounts"])
    units = found["seeds"]["pretrain"] * found["seeds"]["transfer"]
    facts = [
        (str(len({entry_of(row) for row in contenders})), both("contenders")),
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
        key, best=names, mean=f"<b>{percent(best['mean']['mean'])}</b>", level=level_of(found),
        gain=f"<b>{percent(gain['mean'], sign=key == 'none_pays')}</b>",
        low=percent(gain["low"]), high=percent(gain["high"]),
    )  # fmt: skip


def _footer(found: Found) -> str:
    return f"<footer>{escape(found['versions'])} · {escape(found['hardware'])} · {escape(found['date'])}</footer>"

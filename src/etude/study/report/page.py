"""HTML report of a study: one self-contained file.

First the answer, then the leaderboard, the claims with their verdicts, quality against cost, learning curves, a card
per contender, and at the end methods and the commands that reproduce each part. Nothing is loaded from elsewhere.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from etude.study.leaderboard import format_points, rank_rows
from etude.study.report.details import render_cards, render_cells, render_comparisons, render_methods
from etude.study.report.html import (
    JsonDict,
    assign_colours,
    describe_budget,
    entry_name,
    format_date,
    format_level,
    render_count,
)
from etude.study.report.plots import render_curves, render_lengths, render_quality
from etude.study.report.summary import render_claims, render_leaderboard
from etude.study.report.translations import localize_html, translate, translate_html
from etude.study.report.tuning import render_tuning
from etude.study.sections import localize
from etude.train import checkpoint

# Opens everything for paper, and the language of the address (report.html#ko) or else the reader's own; without it the
# page works in the one it is set to.
SCRIPT = """
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(d => d.open = true));
try {
  const asked = /^#(en|ko)$/.exec(location.hash);
  const language = asked ? asked[1] : /^ko/.test(navigator.language) ? "ko" : null;
  if (language) document.getElementById(language).checked = true;
} catch (e) {}
"""


def write_report(path: Path, results: JsonDict, language: str = "en") -> None:
    checkpoint.write_text(path, render_page(results, language))


def render_page(results: JsonDict, language: str = "en") -> str:
    colours = assign_colours(results)
    sections = [
        render_leaderboard(results, colours), render_claims(results),
        render_quality(results, colours), render_lengths(results, colours), render_curves(results, colours),
        render_cards(results, colours),
        render_tuning(results, colours), render_comparisons(results, colours),
        render_methods(results), render_cells(results),
    ]  # fmt: skip
    title = localize(results["title"], language)
    return render_document(
        title, _render_header(results, colours), "".join(sections), _render_footer(results), language
    )


def render_document(title: str, header: str, sections: str, footer: str, language: str = "en") -> str:
    """Return a whole page in two languages with its style and script inside; `title` is plain text."""
    ticked = {name: " checked" if name == language else "" for name in ("en", "ko")}
    style = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    return (
        f'<!doctype html>\n<html lang="{language}">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f'<input class="choose" type="radio" name="tongue" id="en"{ticked["en"]}>'
        f'<input class="choose" type="radio" name="tongue" id="ko"{ticked["ko"]}>\n'
        f"{header}\n<main>\n{sections}\n</main>\n{footer}\n"
        f"<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def _render_header(results: JsonDict, colours: dict[str, str]) -> str:
    question = f'<p class="question">{localize_html(results["question"])}</p>' if results["question"] else ""
    contenders = [row for row in results["rows"] if row["kind"] == "contender"]
    budget = " · ".join(describe_budget(results["budget"]["kind"], amount) for amount in results["budget"]["amounts"])
    pretrain, transfer = results["seeds"]["pretrain"], results["seeds"]["transfer"]
    seeds = render_count(pretrain, "seed") if transfer == 1 else (f"{pretrain} × {transfer}", translate("seeds"))
    facts = [
        render_count(len({entry_name(row) for row in contenders}), "contender"),
        (budget, translate("budget")),
        render_count(len(results["columns"]), "task"),
        seeds,
        render_count(len(results["cells"]), "cell"),
    ]
    items = "".join(f"<li><b>{value}</b>{name}</li>" for value, name in facts)
    return (
        f'<header class="page">\n<div class="over"><span><b>Etude</b> &nbsp;'
        f"{translate('study')} · {format_date(results)}</span>"
        '<span class="tongues"><label for="en">English</label><label for="ko">한국어</label></span></div>\n'
        f'<h1>{localize_html(results["title"])}</h1>\n{question}\n<p class="answer">{render_answer(results)}</p>\n'
        f'<ul class="facts">{items}</ul>\n</header>'
    )


def render_answer(results: JsonDict) -> str:
    """Render the outcome in one sentence, in both languages."""
    contenders = [row for row in rank_rows(results) if row["kind"] == "contender"]
    finished = [row for row in contenders if row["mean"]]
    if not finished:
        return translate("nothing")
    best = finished[0]
    gain = next(
        (
            comparison
            for comparison in results["comparisons"]
            if comparison["row"] == best["name"] and comparison["on"] == "mean"
        ),
        None,
    )
    answered = None if gain is None else gain["against"]  # whether that stands higher is a part of the answer
    if gain is None:  # the control is not done
        answer = translate_html(
            "unfinished", done=str(len(finished)), count=str(len(contenders)), best=_render_names(best),
            mean=f"<b>{format_points(best['mean']['mean'])}</b>",
        )  # fmt: skip
    else:
        key = "best" if gain["verdict"] == "holds" else "best_unsure" if gain["mean"] > 0 else "none_pays"
        answer = translate_html(
            key, best=_render_names(best), mean=f"<b>{format_points(best['mean']['mean'])}</b>",
            level=format_level(results), gain=f"<b>{format_points(gain['mean'], sign=key == 'none_pays')}</b>",
            low=format_points(gain["low"]), high=format_points(gain["high"]),
        )  # fmt: skip
    top = next(row for row in rank_rows(results) if row["name"] != answered)
    if top["kind"] == "contender":
        return answer
    mean = f"<b>{format_points(top['mean']['mean'])}</b>"
    return f"{answer} {translate_html('outdone', name=_render_names(top), mean=mean)}"


def _render_names(row: JsonDict) -> tuple[str, ...]:
    return tuple(f"<b>{escape(localize(row['label'], language))}</b>" for language in ("en", "ko"))


def _render_footer(results: JsonDict) -> str:
    return f"<footer>{escape(results['versions'])} · {escape(results['hardware'])} · {format_date(results)}</footer>"

"""One page over all claims: what the paper found, what was found here, at which scale, how sure, and where it stands.

    python -m etude.study.report.claims_page docs/studies [NAME=FOLDER/results.json ...]

takes in the results, report and table of each study that is named, reads claims.yaml (the list) and results/*.json
(results of every study; `NAME.gpu.json` is the same study on a GPU) and writes index.html. A link leads to the study's
own page where it lies there.
"""

from __future__ import annotations

import json
import sys
from html import escape
from pathlib import Path
from typing import Any

from etude.errors import UserError
from etude.recipes.document import parse_list
from etude.study.leaderboard import format_points
from etude.study.plan import format_scientific
from etude.study.report.html import JsonDict, entry_name, format_level, format_p_statement, format_percent
from etude.study.report.page import render_document
from etude.study.report.translations import localize_html, translate, translate_html
from etude.study.sections import Rule, localize
from etude.train import checkpoint

CLAIMS, RESULTS, INDEX = "claims.yaml", "results", "index.html"
COLUMNS = (
    "all_claims_claim",
    "all_claims_here",
    "all_claims_difference",
    "all_claims_scale",
    "all_claims_verdict",
    "all_claims_power",
)
ALIKE = 0.05  # FLOPs of two pre-trainings that differ by no more than this share of them
TITLE = "Etude: the claims of the papers, tested again"


def load_claims(folder: Path) -> list[JsonDict]:
    """Load the list of claims; each number stands once."""
    if not (folder / CLAIMS).is_file():
        raise UserError(f"There is no {folder / CLAIMS}: name the folder of the list of claims first.")
    claims: list[JsonDict] = parse_list((folder / CLAIMS).read_text(encoding="utf-8"), CLAIMS)
    numbers = [claim["number"] for claim in claims]
    if sorted(set(numbers)) != sorted(numbers):
        raise UserError(f"{folder / CLAIMS}: a number stands twice.")
    return claims


def load_results(folder: Path) -> dict[str, JsonDict]:
    """Load the results of all studies, by the name of their file."""
    loaded: dict[str, JsonDict] = {}
    for path in sorted((folder / RESULTS).glob("*.json")):
        try:
            loaded[path.stem] = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}: no JSON ({error}).") from None
    return loaded


def list_flops(results: JsonDict, judged: JsonDict) -> list[float]:
    """Return the FLOPs of a pre-training of each side of a claim, as spent: one number where they are alike.

    Of several budgets the largest is judged. Sides without a pre-training have none.
    """
    if "flops" in results:  # a page is all that is left of the study
        return [results["flops"]]
    listed: list[float] = []
    for side in (judged["better"], judged["than"]):
        rows = [row for row in results["rows"] if side in (row["name"], entry_name(row)) and row.get("pretraining")]
        flops = max((row["pretraining"]["flops"] or 0.0 for row in rows), default=0.0)
        if flops and all(abs(flops / known - 1) > ALIKE for known in listed):
            listed.append(flops)
    return listed


def render_index(claims: list[JsonDict], results: dict[str, JsonDict], folder: Path) -> str:
    levels = {format_level(outcome) for claim in claims for _, outcome in _list_outcomes(claim, results)}
    rows = "".join(_render_claim(claim, results, folder, len(levels) > 1) for claim in claims)
    texts = {name: translate(name) for name in COLUMNS if name != "all_claims_difference"}
    level = next(iter(levels), "")
    one = translate("all_claims_difference", level=level) if len(levels) == 1 else translate("all_claims_differences")
    head = "".join(f"<th>{texts.get(name, one)}</th>" for name in COLUMNS)
    table = (
        f'<div class="scroll"><table class="claims"><thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )
    header = (
        '<header class="page">\n<div class="over"><span><b>Etude</b></span>'
        '<span class="tongues"><label for="en">English</label><label for="ko">한국어</label></span></div>\n'
        f'<h1>{translate("all_claims_title")}</h1>\n<p class="question">{translate("all_claims_lead")}</p>\n</header>'
    )
    counted = count_verdicts(claims, results)
    summary = " · ".join(f"{translate(name)} {count}" for name, count in counted.items() if count)
    sections = f"<section>\n<p>{summary}</p>\n{table}\n</section>\n"
    footer = f"<footer><p>{translate('all_claims_foot')}</p></footer>"
    return render_document(TITLE, header, sections, footer)


def count_verdicts(claims: list[JsonDict], results: dict[str, JsonDict]) -> dict[str, int]:
    """Count verdicts over all outcomes that are listed."""
    counts = {"holds": 0, "fails": 0, "not settled": 0, "not tested": 0}
    for claim in claims:
        for _, outcome in _list_outcomes(claim, results):
            for judged in outcome["claims"]:
                counts[judged["verdict"]] += 1
    return counts


def _list_outcomes(claim: JsonDict, results: dict[str, JsonDict]) -> list[tuple[str, JsonDict]]:
    """List the results of a claim's studies, those of a GPU first."""
    names = [name for study in claim["studies"] for name in (f"{study}.gpu", study) if name in results]
    return [(name, results[name]) for name in names]


def _render_claim(claim: JsonDict, results: dict[str, JsonDict], folder: Path, has_levels: bool) -> str:
    """Render the rows of a claim; `has_levels`: its intervals name their levels, which are not all the same."""
    outcomes = _list_outcomes(claim, results)
    title = (
        f'<th class="n" rowspan="{{rows}}">{claim["number"]}</th><td class="paper" rowspan="{{rows}}">'
        f"<b>{localize_html(claim['claim'])}</b><br><small>{localize_html(claim['paper'])}</small>"
        f"{_render_earlier(claim, folder)}{_render_note(claim)}</td>"
    )
    lines = [_render_outcome(claim, name, outcome, judged, folder, has_levels) for name, outcome in outcomes
             for judged in outcome["claims"]]  # fmt: skip
    if not lines and "pages" in claim:  # measured, but no comparison of contenders: there is nothing to judge
        links = " · ".join(f'<a href="{escape(page)}">{escape(page)}</a>' for page in claim["pages"])
        lines = [f'<td colspan="5">{localize_html(claim["measured"])} <small>{links}</small></td>']
    if not lines:
        lines = [f'<td colspan="5" class="faint">{translate("all_claims_missing")}</td>']
    first = title.format(rows=len(lines))
    return "".join(f"<tr>{first if not number else ''}{line}</tr>" for number, line in enumerate(lines))


def _render_earlier(claim: JsonDict, folder: Path) -> str:
    """Link pages of a claim's studies as they were before they ran again: their verdicts are not counted."""
    pages = [name for name in claim.get("earlier", ()) if (folder / f"{name}.html").is_file()]
    links = " · ".join(f'<a href="{escape(name)}.html">{escape(name)}</a>' for name in pages)
    return f"<br><small>{translate('all_claims_earlier')}: {links}</small>" if links else ""


def _render_note(claim: JsonDict) -> str:
    """Render what a reader has to know of a claim's studies beside their numbers."""
    return f"<br><small>{localize_html(claim['note'])}</small>" if "note" in claim else ""


def _render_outcome(
    claim: JsonDict, name: str, outcome: JsonDict, judged: JsonDict, folder: Path, has_levels: bool
) -> str:
    where = translate("all_claims_gpu" if str(outcome.get("device", "")).startswith("cuda") else "all_claims_cpu")
    link = f'<a href="{escape(name)}.html">{escape(name)}</a>' if (folder / f"{name}.html").is_file() else escape(name)
    difference = p = ""
    if judged.get("mean") is not None:
        level = f"{format_level(outcome)}: " if has_levels else ""
        low, high = format_points(judged["low"]), format_points(judged["high"])
        key = "all_claims_differences" if has_levels else "all_claims_difference"
        difference = _render_key(key, level=format_level(outcome))
        difference += f"<b>{format_points(judged['mean'], sign=True)}</b> <span>({level}{low} … {high})</span>"
        p = f"<br><small>{format_p_statement(judged['holm'])}</small>"
    flops = list_flops(outcome, judged)
    numbers = [format_scientific(float(f"{each:.1e}")).replace(" ", "\N{NO-BREAK SPACE}") for each in flops]
    scale = ", ".join(numbers) or "–"
    if flops and claim.get("scale"):
        share = _format_share(max(flops) / claim["scale"])
        scale += f"<br><small>{translate('all_claims_share', share=share)}</small>"
    detectable = judged.get("detectable")
    power = "–" if detectable is None else format_points(detectable)
    # of the look that settled it, where several were planned
    seeds = translate("all_claims_seeds", count=judged.get("pretrainings", outcome["seeds"]["pretrain"]))
    return (
        f"<td class='asked'>{localize_html(judged['claim'])}<br><small>{link} · {where} · {seeds}</small></td>"
        f'<td class="difference">{difference}{p}</td>'
        f"<td>{_render_key('all_claims_scale')}{scale}</td>"
        f'<td><span class="badge {judged["verdict"].replace(" ", "-")}">'
        f"{translate(judged['verdict'])}</span>{_render_reason(outcome, judged)}{_render_rates(outcome, judged)}</td>"
        f'<td class="n">{_render_key("all_claims_power")}{power}</td>'
    )


def _render_key(column: str, **values: str) -> str:
    """Name the column of a cell, which only phones show: they have no head of the table."""
    return f'<span class="key">{translate(column, **values)}: </span>'


def _render_reason(outcome: JsonDict, judged: JsonDict) -> str:
    """Render why a claim has its verdict, where its numbers do not say so."""
    reason = ""
    if judged.get("untested"):
        reason = translate(f"untested_{judged['untested']}")
    elif judged["verdict"] == "not settled":
        rule = Rule.model_validate(outcome.get("rule", {}))
        limit = rule.error_at(judged["pretrainings"])
        p = judged["holm" if rule.correction == "holm" else "p"]
        if limit <= p < 1 - rule.interval:  # and the interval may lie beyond the margin all the same
            error, part = format_percent(1 - rule.interval), format_percent(limit)
            reason = translate("all_claims_look", error=error, part=part)
    return f"<br><small>{reason}</small>" if reason else ""


def _render_rates(outcome: JsonDict, judged: JsonDict) -> str:
    """Render which sides of a claim have a rate that dev examples chose where another had the lower loss."""
    sides = [row for row in outcome.get("rows", ()) if entry_name(row) in (judged["better"], judged["than"])]
    flagged = {entry_name(row): row for row in sides if (row.get("tuning") or {}).get("lowest_loss") is not None}
    if not flagged:
        return ""
    names = tuple(", ".join(localize(row["label"], language) for row in flagged.values()) for language in ("en", "ko"))
    return f"<br><small>{translate_html('all_claims_rates', names=tuple(map(escape, names)))}</small>"


def _format_share(share: float) -> str:
    """Format a share of the paper's FLOPs: 1/470, or 6 %."""
    return f"{100 * share:.2g} %" if share >= 0.01 else f"1/{float(f'{1 / share:.2g}'):,.0f}"


def shorten_results(results: JsonDict) -> JsonDict:
    """Return results for the repository: without the commands that repeat each cell, which are most of the file.

    Folders of the machine that a study ran on tell a reader nothing: their last name stays.
    """
    cells = [{name: value for name, value in cell.items() if name != "commands"} for cell in results["cells"]]
    shortened: JsonDict = _shorten_paths({**results, "cells": cells})
    return shortened


def _shorten_paths(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _shorten_paths(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_shorten_paths(part) for part in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def write_index(folder: Path) -> Path:
    checkpoint.write_text(folder / INDEX, render_index(load_claims(folder), load_results(folder), folder))
    return folder / INDEX


def add_results(folder: Path, path: Path, name: str) -> None:
    """Put the results of a study (results.json beside its report.html) into the repository's folder under a name."""
    results = shorten_results(json.loads(path.read_text(encoding="utf-8")))
    (folder / RESULTS).mkdir(exist_ok=True)
    checkpoint.write_text(folder / RESULTS / f"{name}.json", json.dumps(results, ensure_ascii=False) + "\n")
    for source, suffix in (("report.html", ".html"), ("table.md", ".md")):
        if (path.parent / source).is_file():
            checkpoint.write_text(folder / f"{name}{suffix}", (path.parent / source).read_text(encoding="utf-8"))


def main(words: list[str]) -> None:
    """`FOLDER [NAME=results.json ...]`: add results, then write the page."""
    folder = Path(words[0]) if words else Path("docs/studies")
    load_claims(folder)  # before anything is added
    for word in words[1:]:
        name, _, path = word.partition("=")
        if not name or not Path(path).is_file():
            raise UserError(f"'{word}' names no results of a study: write NAME=FOLDER/results.json.")
        add_results(folder, Path(path), name)
    print(write_index(folder))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)

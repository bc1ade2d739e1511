"""Judges the claims of earlier reports by the rule of today, beside the verdicts that they were given.

    python benchmarks/judge_again.py > docs/studies/judged-again.md      # and docs/studies/results/NAME.json

The reports were written when results.json was not kept; what is left are their pages: every cell's score to a tenth of
a point, and each claim's 95 % bootstrap interval. Scores per seed give the spread between seeds exactly. What each
example contributed is gone; the variance by examples is what the width of the old interval leaves after the part that
a bootstrap over n seeds has of them, (n - 1) / n of their variance.
"""

from __future__ import annotations

import html
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from etude.study.claims import explain_untested
from etude.study.leaderboard import VERDICTS, format_points
from etude.study.references import Progress, ReferenceLoss, measure_progress
from etude.study.sections import MEAN, Claim, Rule, localize
from etude.study.settings import Study
from etude.study.statistics import compare, decide_verdict, holm_adjust
from etude.study.uncertainty import Estimate, detectable_difference, seed_variance

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "studies"
CELL = re.compile(r'<td>([^<]*?) on (\S+), seed (\d+)\.(\d+)</td><td class="n">([\d.−]+)</td>')
CARD = re.compile(r'<article class="card claim"><span class="badge ([\w-]+)">(.*?)</article>', re.S)
CONTENDER = re.compile(r'<article class="card"><div class="top"><span class="who">.*?</article>', re.S)
LABEL = re.compile(r'<i class="swatch"[^>]*></i>(?:<span lang="en">)?(.*?)</span>')
TOKENIZER = re.compile(r">tokenizer</span>.*?<dd>(.*?)</dd>")
HELD_OUT = re.compile(r'<span lang="en">held-out</span><span lang="ko">[^<]*</span> ([a-z ]+)</dt><dd>([\d.]+)</dd>')
MEASURED = re.compile(r"Everything measured on held-out text.*?<pre>(.*?)</pre>", re.S)
INTERVAL = re.compile(r"([−\d.]+) … ([−\d.]+)")
SIZES = re.compile(r"(\S+@\d+): (\w+) of ([\d,]+)")
NORMAL = 1.959964
COLUMNS = (
    "study", "claim", "difference", "old interval", "old verdict", "new interval", "p (Holm)", "new verdict",
    "80 % power at",
)  # fmt: skip
# Bigrams of the text of the toy studies (`world: 3`, the same bytes at the commit of the reports as today) for each
# tokenizer, as etude.study.references counts them; a slow test of this script does it again. The 43 MB of Wikipedia of
# the first studies on a GPU are gone: their masked models, at 4.3 to 5.7 nats, have no reference here.
REFERENCES = {
    "bpe:1000,lower": ReferenceLoss(unigram=5.746, bigram=2.987, tokens_per_byte=0.29935),
    "unigram:1000,lower": ReferenceLoss(unigram=5.403, bigram=3.118, tokens_per_byte=0.27996),
    "wordpiece:1000,lower": ReferenceLoss(unigram=5.714, bigram=2.954, tokens_per_byte=0.29699),
}
# "majority" in the pages of the GPU is that of evenly drawn labels, which in these tasks is the smaller class. Share of
# the larger one in the same test parts: majority of mrpc@3600 and sst2@4000 in results/mlm-vs-electra.gpu.json.
LARGER_CLASSES = {
    ("mask-rate.first.gpu", "sst2@2000"): 363 / 666,
    ("mlm-vs-electra.first.gpu", "mrpc@1500"): 137 / 198,
    ("mlm-vs-electra.first.gpu", "sst2@2000"): 363 / 666,
    ("sentence-objectives.first.gpu", "paraphrase@1500"): 137 / 198,
}
UNTESTED = {"majority": "nobody leaves the majority", "young": "a model has hardly learnt"}
PREFACE = """# Earlier reports, judged again

The eight reports of 2026-11-15 were judged by a bootstrap over three seeds that decided too easily. Here are their
claims by the rule of today, beside the verdicts that they were given; those that changed are bold. Points, three
pre-training seeds each, p after Holm's correction over the claims of a study. The last column is the difference that
such a study settles with 80 % chance, given the spread it had. Written by `python benchmarks/judge_again.py`.

What the pages do not hold, since results.json was not kept: what each example contributed, so the variance by examples
is taken from the width of the old interval; and held-out losses of more than one seed, so the models are compared with
a bigram of their text by the seed on the page. On the CPU the bigram has 2.95 nats a token (word pieces: mask-rate,
sentence-objectives) or 3.12 (albert-sharing). All contenders of albert-sharing stand above it (3.56 to 3.77), so do the
model that masks 5 % (3.33) and those trained on sentence order (3.29) and next sentences (3.01); ELECTRA's
discriminator is 0.03 points above "nothing is replaced", where 0.1 are asked. Claims that these do not win are not
tested. On the GPU no bigram of that text was kept, and ELECTRA's discriminator is 1.2 points above.

"Majority" in the pages of the GPU is that of evenly drawn labels, 31 % on MRPC and 45 % on SST-2. Here it is the share
of the larger class in the same test parts, 69.2 and 54.5 %, as later results have it
([mlm-vs-electra.gpu](results/mlm-vs-electra.gpu.json)): on MRPC nobody leaves it.

Word vectors are compared with the stronger of the two models that never pre-trained (60.5), where the report had taken
the weaker (54.4): its old interval and verdict are those of that comparison.
"""


@dataclass(frozen=True)
class Page:
    name: str
    scores: dict[tuple[str, str], dict[tuple[int, int], float]]  # (row, column) -> unit -> score
    cards: dict[str, tuple[str, float, float]]  # claim -> verdict, low, high
    sizes: dict[str, int]  # test examples by column
    study: Study
    progress: dict[str, Progress]  # of the contenders that have a reference


def number(text: str) -> float:
    return float(text.replace("−", "-")) / 100


def read_page(path: Path) -> Page:
    text = path.read_text(encoding="utf-8")
    scores: dict[tuple[str, str], dict[tuple[int, int], float]] = {}
    for row, column, first, second, value in CELL.findall(text):
        units = scores.setdefault((html.unescape(row), column), {})
        assert (int(first), int(second)) not in units, f"{path}: {row} on {column} stands twice"
        units[int(first), int(second)] = number(value)
    cards = {}
    for verdict, card in CARD.findall(text):
        inside = re.search(r'<p class="said">(?:<span lang="en">)?(.*?)<', card)
        interval = INTERVAL.search(card)
        assert inside and interval, path
        cards[html.unescape(inside[1])] = (verdict.replace("-", " "), number(interval[1]), number(interval[2]))
    table = path.with_suffix(".md").read_text(encoding="utf-8")
    sizes = {column: int(size.replace(",", "")) for column, _, size in SIZES.findall(table)}
    name = path.name.removesuffix(".html")
    # NAME.first is the page of a study that ran again
    study = Study.load(ROOT / "studies" / name.split(".")[0], gpu=name.endswith(".gpu"))
    return Page(name, scores, cards, sizes, study, read_progress(text, study))


def read_progress(text: str, study: Study) -> dict[str, Progress]:
    """Compare what a page says of its contenders on held-out text, of one seed each, with their references."""
    entries = {html.escape(localize(entry.label, "en"), quote=False): entry for entry in study.entries()}
    progress = {}
    for card in CONTENDER.findall(text):
        label, tokenizer = LABEL.search(card), TOKENIZER.search(card)
        assert label and tokenizer and label[1] in entries, label
        held_out = {name.replace(" ", "_"): float(value) for name, value in HELD_OUT.findall(card)}
        if listed := MEASURED.search(card):
            held_out = {name: float(value) for name, value in map(str.split, listed[1].splitlines())}
        entry = entries[label[1]]
        measured = measure_progress(entry.recipe(study), held_out, REFERENCES.get(tokenizer[1]))
        if measured is not None:
            progress[entry.name] = measured
    return progress


def seed_means(page: Page, row: str, on: str) -> np.ndarray:
    """Return (pre-training seeds,) scores, averaged over transfer seeds and over the columns of a task or of all."""
    columns = [column for name, column in page.scores if name == row and on in (MEAN, column, column.partition("@")[0])]
    assert columns, f"{page.name}: {row} on {on} is not on the page"
    by_column = []
    for column in columns:
        units = page.scores[row, column]
        seeds = sorted({first for first, _ in units})
        by_column.append([np.mean([value for unit, value in units.items() if unit[0] == seed]) for seed in seeds])
    if row == "majority":  # one cell serves every seed
        return np.mean(by_column, axis=0).repeat(3)
    return np.mean(by_column, axis=0)


def estimate_difference(left: np.ndarray, right: np.ndarray, low: float, high: float, floor: float) -> Estimate:
    difference = left - right
    by_seed = float(seed_variance(difference))
    width = ((high - low) / 2 / NORMAL) ** 2
    by_example = max(width - (len(difference) - 1) / len(difference) * by_seed, floor)
    return Estimate(float(difference.mean()), by_seed, by_example, len(difference))


def leaves_majority(page: Page, on: str) -> bool:
    """Is any row of a task that claims are about above the majority, with binomial errors of both?"""
    for row, column in page.scores:
        if row in ("majority", "random frozen") or on not in (MEAN, column, column.partition("@")[0]):
            continue
        scores, majority = seed_means(page, row, column), float(seed_means(page, "majority", column)[0])
        majority = LARGER_CLASSES.get((page.name, column), majority)
        accuracies = np.array([scores.mean(), majority])
        examples = float((accuracies * (1 - accuracies)).sum() / page.sizes[column])
        gain = Estimate(float(scores.mean()) - majority, float(seed_variance(scores)), examples, len(scores))
        if gain.interval(0.95)[0] > 0:
            return True
    return False


def judge_page(page: Page) -> tuple[list[str], list[dict[str, Any]]]:
    """Judge every claim; returns lines of the table, and the claims as results.json has them."""
    claims: list[Claim] = []
    for claim in page.study.claims:
        if localize(claim.claim, "en") in page.cards:
            claims.append(claim)
    assert len(claims) == len(page.cards), f"{page.name}: claims of the file are not those of the page"
    judged = []
    for claim in claims:
        _, low, high = page.cards[localize(claim.claim, "en")]
        left, right = seed_means(page, claim.better, claim.on), seed_means(page, claim.than, claim.on)
        floor = 1 / max(page.sizes.values()) ** 2
        estimate = estimate_difference(left, right, low, high, floor)
        judged.append((claim, estimate, compare(list(left), list(right), estimate, 0.95, claim.margin)))
    adjusted = holm_adjust([difference.p for _, _, difference in judged])
    level = 1 - 0.05 / len(judged)
    lines = []
    claims_json: list[dict[str, Any]] = []
    for (claim, estimate, difference), p in zip(judged, adjusted, strict=True):
        sentence = localize(claim.claim, "en")
        old, low, high = page.cards[sentence]
        verdict = decide_verdict(difference, p, Rule(), claim.margin)
        sides = [page.progress.get(name) for name in (claim.better, claim.than)]
        untested = explain_untested(verdict, [leaves_majority(page, claim.on)], *sides, trainability=claim.trainability)
        now = VERDICTS[verdict] if untested is None else f"not tested: {UNTESTED[untested]}"
        smallest = detectable_difference(estimate.seed_variance, estimate.example_variance, estimate.seeds, level)
        final = verdict if untested is None else "not tested"
        is_changed = old != final
        lines.append(
            f"| {page.name} | {sentence} | {format_points(difference.mean, sign=True)} | "
            f"{format_points(low)} … {format_points(high)} | {old} | "
            f"{format_points(difference.low)} … {format_points(difference.high)} | {p:.2g} | "
            f"{'**' if is_changed else ''}{now}{'**' if is_changed else ''} | {format_points(smallest)} |"
        )
        judged_again = {**claim.model_dump(mode="json"), **difference.json(), "holm": p, "detectable": smallest}
        reason = {} if untested is None else {"untested": untested}
        claims_json.append({**judged_again, "verdict": final, **reason})
    return lines, claims_json


def write_results(page: Page, claims: list[dict[str, Any]]) -> None:
    """Write what is left of a study's results: its claims, and the FLOPs that its table gives."""
    table = (PAGES / f"{page.name}.md").read_text(encoding="utf-8")
    flops = max(float(value) for value in re.findall(r"\| (\d\.\d\de\+\d\d) \|", table))
    results = {
        "format": "etude study, judged again", "name": page.name, "flops": flops,
        "seeds": {"pretrain": 3, "transfer": 1},
        "device": "cuda" if page.name.endswith(".gpu") else "cpu", "claims": claims,
    }  # fmt: skip
    target = PAGES / "results" / f"{page.name}.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(results, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def is_judged_by_page(path: Path) -> bool:
    """Is a page all that is left of a study? Of later runs the results are kept, judged by the rule of today."""
    results = PAGES / "results" / f"{path.stem}.json"
    if results.is_file() and json.loads(results.read_text(encoding="utf-8"))["format"] == "etude study":
        return False
    return CARD.search(path.read_text(encoding="utf-8")) is not None


def main() -> None:
    pages = [read_page(path) for path in sorted(PAGES.glob("*.html")) if is_judged_by_page(path)]
    lines: list[str] = []
    for page in pages:
        judged, claims = judge_page(page)
        lines += judged
        write_results(page, claims)
    print(PREFACE)
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|")
    print("\n".join(lines))


if __name__ == "__main__":
    main()

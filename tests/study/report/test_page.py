"""The page: whole, alone, in two languages, with every picture, on a desk and on a phone, by day and by night."""

from __future__ import annotations

import copy
import json
import re
import subprocess
from html import escape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from etude.study.leaderboard import format_points, format_score
from etude.study.report import charts, plots
from etude.study.report.charts import Point, Series
from etude.study.report.details import translate_title
from etude.study.report.html import describe_budget, describe_task, format_date, format_p
from etude.study.report.page import render_page
from etude.study.report.translations import TRANSLATIONS, localize_html, localize_svg, translate
from etude.study.report.tuning import render_tuning
from etude.study.runner import Report
from tests.browsers import NO_BROWSER, find_browser

VOID = {"meta", "input", "br", "img", "link", "hr", "line", "circle", "rect", "path", "polyline"}


class Tree(HTMLParser):
    """Checks that tags close in order, and keeps what there is."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def count(self, tag: str, kind: str | None = None) -> int:
        return sum(
            one == tag and (kind is None or kind in (facts.get("class") or "").split()) for one, facts in self.tags
        )


@pytest.fixture(scope="module")
def found(report: Report) -> dict[str, Any]:
    """Results with a second number of labels and a second budget, so that every drawing has something to draw."""
    results = copy.deepcopy(report.results)
    more = {**results["columns"][0], "name": "topic@24", "labels": 24, "learnt_from": 24}
    results["columns"].append(more)
    for row in results["rows"]:
        row["scores"]["topic@24"] = row["scores"]["topic@16"]
    return results


def test_the_page_is_whole_and_alone(report: Report) -> None:
    text = report.page.read_text(encoding="utf-8")
    tree = Tree(text)
    assert not re.search(r"""(?:src|href|action|data)\s*=|url\(|@import|https?://|//\w+\.\w+/""", text), (
        "loads something"
    )
    assert tree.count("link") == tree.count("img") == tree.count("iframe") == 0 and tree.count("script") == 1
    assert "&lt;here&gt;" in text and "<here>" not in text, "what people write is escaped"
    assert len(text) < 300_000
    assert str(report.folder) not in text and str(Path.home()) not in text, "no place of this machine"


def test_every_part_is_there(found: dict[str, Any]) -> None:
    text = render_page(found)
    tree = Tree(text)
    rows, contenders = found["rows"], [row for row in found["rows"] if row["kind"] == "contender"]
    assert tree.count("svg", "strip") == 1 + len(rows) + len(found["claims"]), "the scale, everybody, every claim"
    assert tree.count("svg", "chart") == 3 + 1, "FLOPs, tokens, seconds; labels"
    assert tree.count("svg", "spark") == len(contenders)
    assert tree.count("article", "card") == len(found["claims"]) + len(contenders)
    for cell in found["cells"]:
        assert cell["key"][:8] in text and all(line.split(" ")[1] in text for line in cell["commands"])
    for word in (found["hardware"], found["versions"], format_date(found), "GPT", "지피티", "아주 작은 연구"):
        assert word in text
    assert all(facts.get("aria-label") for tag, facts in tree.tags if tag == "svg"), "pictures have words"


def test_two_languages_say_the_same_things() -> None:
    for key, (english, korean) in TRANSLATIONS.items():
        assert english and korean, key
        assert set(re.findall(r"{(\w+)}", english)) == set(re.findall(r"{(\w+)}", korean)), key
        assert key in ("flops", "flops_budget") or re.search("[가-힣]", korean), key
    assert translate("mean") == '<span lang="en">Mean</span><span lang="ko">평균</span>'
    assert localize_html("a < b") == "a &lt; b" and localize_html({"en": "one", "ko": "하나"}).count("<span") == 2
    assert localize_svg(("x", "y")).count("<tspan") == 2
    files = Path(render_page.__code__.co_filename).parent.glob("*.py")
    used = {
        key
        for file in files
        for key in re.findall(r'(?:translate|translate_html)\(["\'](\w+)["\']', file.read_text(encoding="utf-8"))
    }
    assert len(used) > 40
    assert used <= set(TRANSLATIONS)


def test_the_answer_tells_what_pays_and_what_does_not(found: dict[str, Any]) -> None:
    from etude.study.report.page import render_answer

    one = copy.deepcopy(found)
    best = next(row for row in sorted(one["rows"], key=lambda row: -row["mean"]["mean"]) if row["kind"] == "contender")
    gain = next(c for c in one["comparisons"] if c["row"] == best["name"] and c["on"] == "mean")
    gain |= {"mean": 0.1, "verdict": "holds"}
    assert "is best with" in render_answer(one) and "<b>10.0</b>" in render_answer(one)
    assert "stands higher" not in render_answer(one)
    words = {**best, "name": "tfidf", "kind": "baseline", "label": "tf-idf", "mean": {**best["mean"], "mean": 0.999}}
    beaten = {**one, "rows": [*one["rows"], words]}
    assert "<b>tf-idf</b> stands higher, with <b>99.9</b> points" in render_answer(beaten), "the best of all is told"
    gain |= {"mean": 0.1, "verdict": "not settled"}
    assert "not settled" in render_answer(one) and "stands higher" not in render_answer(one)
    majority = next(row for row in one["rows"] if row["kind"] == "majority")
    below, majority["mean"] = majority["mean"], {**majority["mean"], "mean": 0.998}
    assert "<b>majority</b> stands higher, with <b>99.8</b> points" in render_answer(one), "the most frequent answer"
    assert "99.8</b>점으로 더 높습니다" in render_answer(one)
    majority["mean"] = below
    control = next(row for row in one["rows"] if row["name"] == gain["against"])
    control["mean"] = {**control["mean"], "mean": 0.997}
    gain |= {"mean": -0.1, "verdict": "fails"}
    assert "No contender beats the model without pre-training" in render_answer(one) and "−10.0" in render_answer(one)
    assert "stands higher" not in render_answer(one), "the control is told of already"
    one["comparisons"] = []  # the control is not done
    other = next(row for row in one["rows"] if row["kind"] == "contender" and row["name"] != best["name"])
    other["mean"] = None
    assert "1 of 2 contenders have finished" in render_answer(one), "it said that none had"
    assert "참가자 2개 중 1개가 끝났습니다" in render_answer(one)
    for row in one["rows"]:
        row["mean"] = None
    assert "No contender" in render_answer(one)
    Tree(render_page(one))


def test_scores_of_all_seeds_are_not_final_before_all_rates_are_tried(found: dict[str, Any]) -> None:
    """They stood there as 3 of 3 seeds, and the row as not done."""
    one = copy.deepcopy(found)
    row, column = one["rows"][0], one["columns"][0]["name"]
    row["mean"] = None
    row["partial"] = {column: {"mean": 0.5, "seeds": [0.4, 0.6], "planned": 2}}
    del row["scores"][column]
    page = render_page(one)
    assert "2/2" not in page and "tuning not done" in page and "조정 미완료" in page
    assert format_score(row, column) == "50.0 (tuning not done)"
    row["partial"][column] |= {"seeds": [0.5]}
    assert "1/2" in render_page(one) and format_score(row, column) == "50.0 (1 of 2 seeds)"


def test_places_and_chances_as_people_say_them(found: dict[str, Any]) -> None:
    named = {**found, "columns": [{**found["columns"][0], "label": {"en": "topics", "ko": "주제"}}]}
    task = '<span lang="en">topics</span><span lang="ko">주제</span>'
    assert describe_task(named, "topic") == task and describe_task(named, "topic@16").startswith(f"{task} · ")
    assert "레이블 16개" in describe_task(named, "topic@16") and "모든 과제" in describe_task(named, "mean")
    assert render_page(named).count(f'<span class="key">{task} · 16</span>') == len(found["rows"]), "on a phone too"
    assert [format_p(value) for value in (0.0004, 0.0094, 0.2891, 1.0)] == ["&lt; 0.001", "0.0094", "0.29", "1"]
    assert [format_points(value, sign=True) for value in (-0.0001, 0.0374, -0.029)] == ["0.0", "+3.7", "−2.9"]


def test_axes_and_numbers() -> None:
    assert charts.round_ticks(0, 10) == [0, 2, 4, 6, 8, 10] and charts.round_ticks(0.31, 0.36, 3) == [0.32, 0.34, 0.36]
    assert (
        charts.format_count(1234567) == "1.23M" and charts.format_count(999.6) == "1k" and charts.format_count(3) == "3"
    )
    axis = charts.log_axis([1e9, 1e12])
    assert axis.position(1e12, 0, 100) > 95 and axis.position(1e9, 0, 100) < 5 and 1e10 in axis.ticks
    alike = charts.log_axis([5e9, 5.1e9])
    assert 35 < alike.position(5e9, 0, 100) < 65, "points that are alike stand in the middle"
    assert charts.linear_axis([3.0, 3.0]).position(3.0, 0, 100) == pytest.approx(50)
    curve = charts.draw_curve([[(50.0, 3.0), (100.0, 2.0)]], "red", "t", ("tokens", "토큰"), ("loss", "손실"))
    first, last = (float(x) for x in re.findall(r"([\d.]+),[\d.]+", re.findall(r'points="(.*?)"', curve)[0]))
    assert first == pytest.approx((34 + last) / 2, abs=0.2), "half of the tokens is half of the way from 0"


def test_names_do_not_touch() -> None:
    crowd = [Series(f"name {n}", "red", [Point(10.0, 50 + 0.1 * n, 49, 51)]) for n in range(9)]
    drawing = charts.draw_chart(
        crowd, charts.log_axis([10.0]), charts.linear_axis([40, 60]), "x", title="t", lines=True
    )
    heights = sorted(float(y) for y in re.findall(r'y="([\d.]+)" class="label"', drawing))
    assert len(heights) == 9 and min(b - a for a, b in pairwise(heights)) > 13.9
    assert heights[0] > 0 and heights[-1] < charts.HEIGHT - charts.BOTTOM + 6


def test_names_of_hangul_stay_inside_the_drawing() -> None:
    """A syllable is half as wide again as a letter: seventeen of them would leave the drawing."""
    for text in ("가" * 17, "a" * 30, "사전 학습 없는 Transformer"):
        shown = charts._shorten(text)
        assert shown.endswith("…") and charts._count_letters(shown) * charts.LETTER_WIDTH <= charts.RIGHT
    assert charts._shorten("가" * 10) == "가" * 10 and charts._shorten("a" * 17) == "a" * 17


def test_a_long_name_stays_whole_where_there_is_room() -> None:
    axis, name = charts.log_axis([1e9, 1e12]), "chosen tokens only, no warm-up"
    series = [Series(name, "red", [Point(1e9, 50, 49, 51)]), Series("b", "blue", [Point(1e12, 41, 40, 42)])]
    assert f">{name}</text>" in charts.draw_chart(series, axis, charts.linear_axis([40, 60]), "x", title="t")
    series[1] = Series(name, "blue", [Point(1e12, 50, 49, 51)])
    crowded = charts.draw_chart(series * 4, axis, charts.linear_axis([40, 60]), "x", title="t")
    assert "…</text>" in crowded, "cut where there is none"


def test_claims_that_cells_came_before_are_not_said_to_be_first(found: dict[str, Any]) -> None:
    assert "before the first cell ran" in render_page(found) and found["registered"]["older_cells"] == 0
    late = {**found, "registered": {**found["registered"], "older_cells": 2}}
    text = render_page(late)
    assert "before the first cell ran" not in text and f"(2 of {len(found['cells'])})" in text


def test_what_did_not_run_is_not_said_to_be_trained(found: dict[str, Any]) -> None:
    results = copy.deepcopy(found)
    assert ">To train<" not in render_page(results) and ">to train<" not in render_page(results)
    row = next(row for row in results["rows"] if row["kind"] == "contender")
    row["pretraining"] |= {"flops": None, "tokens": None, "seconds": None, "valid": {}}
    row["head_parameters"] = 0
    text = render_page(results)
    assert text.count(translate("to_train")) == 1 and "0.00 in the head" not in text


def test_one_task_is_no_tasks_and_stands_once(report: Report) -> None:
    results = {
        **report.results,
        "columns": report.results["columns"][:1],
        "budget": {**report.results["budget"], "kind": "tokens"},
    }
    text = render_page(results)
    assert f"<b>1</b>{translate('task')}</li>" in text
    for seeds, shown in (((1, 1), f"<b>1</b>{translate('seed')}"), ((1, 3), f"<b>1 × 3</b>{translate('seeds')}")):
        named = {**results, "seeds": dict(zip(("pretrain", "transfer"), seeds, strict=True))}
        assert f"{shown}</li>" in render_page(named), "three transfers of one pre-training are not three seeds of it"
    assert "토큰" in describe_budget("tokens", 1e8) and "tokens" in describe_budget("tokens", 1e8)
    compared = text[text.index(translate("comparisons")) : text.index(translate("methods"))]
    assert translate("all_tasks") not in compared and compared.count("<tr>") == 1 + sum(
        comparison["on"] != "mean" for comparison in results["comparisons"]
    )


def test_settings_of_everybody_stand_beside_contenders_by_their_labels() -> None:
    rows = [{"name": name, "label": label} for name, label in (("bert", "BERT"), ("w2v", "word2vec"))]
    common = [{"name": "tokenizer", "value": "word:9", "own": {"bert": "wordpiece:8", "w2v": "word:7"}}]
    common.append({"name": "model.layers", "value": 4, "own": {"bert": 4, "w2v": 4}})
    common.append({"name": "train.workers", "value": 1, "own": {"bert": None, "w2v": 1}})
    html = render_tuning({"rows": rows, "common": common}, {"bert": "c0", "w2v": "c1"})
    assert "model.layers" not in html and "null" not in html and "short pre-trainings" not in html
    assert not render_tuning({"rows": rows, "common": common[1:2]}, {})
    heads = [re.sub("<[^>]*>", "", head).partition(" (")[0] for head in re.findall(r"<th>(.*?)</th>", html)]
    assert heads[2:] == ["BERT", "word2vec"]
    assert html.count('class="swatch"') == 2, "before a name: a first letter is not made a capital behind it"


def test_names_of_tasks_are_no_markup() -> None:
    buckets = [{"low": low, "high": low + 1, "mean": low + 0.5, "examples": 12} for low in (1, 3)]
    part = {"column": '"><b>x', "buckets": buckets, "rows": {"bert": [{"mean": 0.5, "low": 0.4, "high": 0.6}] * 2}}
    results = {"rows": [{"name": "bert", "label": "bert", "kind": "contender"}], "lengths": [part], "columns": []}
    assert "<b>x" not in plots.render_lengths(results, {"bert": "red"})


# --- in a browser -----------------------------------------------------------------------------------

LOOK = """<script>addEventListener("load", () => {
  const visible = e => { const b = e.getBoundingClientRect(); return b.width > 20 && b.height > 10 };
  const pictures = [...document.querySelectorAll("svg")].filter(e => !e.closest("details"));
  const shown = lang => [...document.querySelectorAll(`h2 [lang=${lang}]`)].filter(visible).length;
  const found = {
    pictures: pictures.length, visible: pictures.filter(visible).length,
    fetched: performance.getEntriesByType("resource").map(e => e.name),
    overflow: document.documentElement.scrollWidth - innerWidth,
    paper: getComputedStyle(document.body).backgroundColor, en: shown("en"), ko: shown("ko"),
    small: [...document.querySelectorAll("svg.chart text")].filter(visible)
      .map(e => e.getBoundingClientRect().height).reduce((a, b) => Math.min(a, b), 99),
  };
  document.getElementById("ko").click();
  found.korean = [shown("en"), shown("ko")];
  document.title = "LOOK" + JSON.stringify(found);
})</script>"""


def look(file: Path, folder: Path, width: int, dark: bool) -> dict[str, Any]:
    """What a browser sees, told through the title of the page."""
    browser = find_browser()
    if browser is None:
        pytest.skip(NO_BROWSER)
    scheme = 0 if dark else 1
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder}",
         f"--window-size={width},1400", f"--blink-settings=preferredColorScheme={scheme}", "--virtual-time-budget=4000",
         "--dump-dom", f"file://{file}"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    title = re.search(r"<title>LOOK(.*?)</title>", done.stdout)
    assert title, done.stderr[-2000:]
    return json.loads(title[1].replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">"))


@pytest.mark.slow
@pytest.mark.parametrize(("width", "dark"), [(1200, False), (1200, True), (500, False), (500, True)])
def test_in_a_browser(found: dict[str, Any], tmp_path: Path, width: int, dark: bool) -> None:
    file = tmp_path / "report.html"
    text = render_page(found)
    file.write_text(text.replace("</body>", LOOK + "</body>"), encoding="utf-8")
    seen = look(file, tmp_path / "profile", width, dark)
    assert seen["visible"] == seen["pictures"] - (width < 700), "on a phone the scale over the strips is left out"
    assert seen["pictures"] == text.count("<svg") and seen["pictures"] > 8
    assert seen["fetched"] == []
    assert seen["overflow"] <= 0, "nothing sticks out at the side"
    light = sum(int(part) for part in re.findall(r"\d+", seen["paper"])[:3]) / 3
    assert light < 60 if dark else light > 200
    assert seen["en"] > 5 and seen["ko"] == 0 and seen["korean"][0] == 0 and seen["korean"][1] > 5
    assert seen["small"] > 8, "letters of a drawing can be read"


@pytest.mark.parametrize(
    ("title", "korean"),
    [
        ("pre-training mlm, trial of train.lr=0.001, seed 1000", "mlm, trial of train.lr=0.001 사전 학습, 시드 1000"),
        ("first weights of gpt, seed 0", "gpt의 첫 가중치, 시드 0"),
        ("gpt on words@40, seed 0.1, train.lr=0.001", "gpt, 과제 words@40, 시드 0.1, train.lr=0.001"),
        ("distillation small <b>, seed 2", "small &lt;b&gt; 증류, 시드 2"),
        ("weights of start", "start의 가중치"),
    ],
)
def test_titles_of_cells_are_in_both_languages(title: str, korean: str) -> None:
    shown = translate_title(title)
    assert f'<span lang="ko">{korean}</span>' in shown and f'<span lang="en">{escape(title)}</span>' in shown


def test_every_title_of_a_plan_has_a_pattern(report: Report) -> None:
    assert all('lang="ko"' in translate_title(cell["title"]) for cell in report.results["cells"])

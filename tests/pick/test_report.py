"""The page of a pick: ordered by what chose, and in Korean without a word of English but names."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from etude.pick import page, report
from etude.pick.checks import check_inputs
from etude.pick.final import calibrate, choose_winner, score_held_out
from etude.pick.problems import Problem
from etude.pick.race import KOREAN_ERROR, Race
from tests.pick.test_race import FakeTime, Scripted, build_race, data, fake_time

__all__ = ["data", "fake_time"]  # fixtures

NAMES = {  # of models, files, metrics, units, programs and options
    "accuracy", "macro", "f1", "BERT", "ELECTRA", "GPT", "IDF", "FLOPs", "Etude", "etude", "pick", "best", "export",
    "torch", "Python", "CPU", "English", "jsonl", "train", "dev", "test", "txt", "csv", "pile", "text", "field",
    "unique", "TF", "ECE",
}  # fmt: skip


class VisibleText(HTMLParser):
    """The text of a page in Korean: without what is marked as English, styles, scripts and commands."""

    HIDDEN, EMPTY = ("style", "script", "pre"), ("input", "meta", "link", "br", "img", "line", "circle", "path", "rect")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[tuple[str, bool]] = []
        self.parts: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        is_hidden = tag in self.HIDDEN or (tag in ("span", "tspan") and ("lang", "en") in attributes)
        if tag not in self.EMPTY:
            self.open.append((tag, is_hidden or (bool(self.open) and self.open[-1][1])))

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        return

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, text: str) -> None:
        if not (self.open and self.open[-1][1]):
            self.parts.append(text)


def read_korean(html: str) -> str:
    parser = VisibleText()
    parser.feed(html)
    return " ".join(parser.parts)


def find_english(text: str, *names: str) -> set[str]:
    return set(re.findall(r"[A-Za-z][A-Za-z0-9]+", text)) - NAMES - {*names}


def collect_results(data: Any, folder: Path) -> tuple[Race, dict[str, Any]]:
    """A pick of two contenders that no score tells apart: the one with the lower score has better probabilities."""

    class Sure(Scripted):
        def answer(self, *arguments: Any) -> Any:
            answers = super().answer(*arguments)
            for answer in answers:
                rest = "b" if answer["label"] == "a" else "a"
                answer["scores"] = {answer["label"]: 0.51, rest: 0.49}
            return answers

    race = build_race(data, folder, 600)
    race.run_folds(race.enter(Scripted("last", 0.6)))
    race.run_folds(race.enter(Sure("unsure", 0.86)))
    race.run_folds(race.enter(Scripted("likely", 0.85)))
    winner = choose_winner(race)
    score = score_held_out(race, winner)
    return race, report.collect(race, winner, score, calibrate(race, winner, 0.95), None, [])


def test_the_table_is_ordered_by_what_chose(data: Any, tmp_path: Path, fake_time: FakeTime) -> None:
    """Dev chose and test was tabled: the best stood below "no pre-training"."""
    race, results = collect_results(data, tmp_path / "out")
    rows = {row["name"]: row for row in results["rows"]}
    assert rows["unsure"]["score"] > rows["likely"]["score"], "by the score alone the other would be first"
    assert results["winner"] == "likely" and [*rows] == ["likely", "unsure", "last"]
    assert results["held_out"]["value"] != rows["likely"]["score"], "the table holds what chose, not what was scored"
    assert rows["likely"]["score"] == race.standing("likely").score
    places = [page.render(results).index(f">{name}<") for name in rows]
    assert places == sorted(places)
    named = page.render(results).count('<td class="n part"><span class="key">')
    assert named == 2 * len(rows), "on a narrow screen, which shows no heads of columns, too"
    first = report.build_table(results).columns[0]
    assert list(first.cells) == ["likely", "unsure", "last"]


def test_the_hardware_is_what_the_pick_ran_on(
    data: Any, tmp_path: Path, fake_time: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --device cpu, a report named the GPUs of the machine."""
    monkeypatch.setattr(report, "describe_hardware", lambda device=None: f"hardware of {device}")
    assert collect_results(data, tmp_path / "out")[1]["hardware"] == "hardware of cpu"


class Folder:
    """What a summary needs of a finished pick."""

    def __init__(self, results: dict[str, Any], folder: Path) -> None:
        self.results, self.model, self.page = results, folder / "best", folder / "report.html"


def test_a_better_one_that_was_too_slow_is_no_claim(data: Any, tmp_path: Path, fake_time: FakeTime) -> None:
    """A pick that had no time to refit the best said that nothing beats a bag of words."""
    _, results = collect_results(data, tmp_path / "out")
    rows = [{**row, "name": name} for row, name in zip(results["rows"], ("vectors", "tfidf", "last"), strict=True)]
    slow = {**results, "rows": rows, "winner": "tfidf", "label": rows[1]["label"]}
    lines = report.summarize(Folder(slow, tmp_path))
    assert any(line.startswith("Best in time: unsure.") for line in lines)
    assert not any("Nothing beats a bag of words" in line for line in lines)
    assert "was better, but no time was left to refit it" in page.render(slow)
    first = {**slow, "rows": [rows[1], rows[0], rows[2]]}
    lines = report.summarize(Folder(first, tmp_path))
    assert any(line.startswith("Best: unsure.") for line in lines)
    assert any("Nothing beats a bag of words" in line for line in lines)
    assert "was better" not in page.render(first)
    alone = page.render({**first, "rows": [{**rows[1], "is_selectable": True}], "minutes": 1.0})
    assert ">contender<" in alone and ">of 1 minute<" in alone


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def warnings(tmp_path: Path) -> list[Problem]:
    """Every warning that there is."""
    rows = [{"text": f"글 {number}", "label": ("가", "나")[number % 2]} for number in range(40)]
    odd = [{"text": "글 0", "label": "나"}, {"text": "글 다", "label": "가 "}, {"text": "하나", "label": "드묾"}]
    more = [{"text": "또 하나", "label": "더 드묾"}]
    train = write_lines(tmp_path / "train.jsonl", [*rows, *odd, {"text": "빈칸"}])
    test = write_lines(
        tmp_path / "test.jsonl", [*rows[:5], {"text": "새 글", "label": "처음"}, {"text": "새 글 둘", "label": "가"}]
    )
    pile = write_lines(tmp_path / "pile.jsonl", [{"text": 3}, *[{"text": "같은 문서"}] * 20])
    body = write_lines(tmp_path / "body.jsonl", [{"document": "본문이 있는 글"}] * 2)
    inputs = check_inputs([str(pile), str(body)], "classify", train, test=test, skip_bad=True)
    several = check_inputs([], "classify", write_lines(tmp_path / "train.jsonl", [*rows, odd[2], *more]))
    tags = [{"tokens": [f"낱말{n}", "서울"], "tags": ["O", "B-LC"]} for n in range(40)]
    new = [{"tokens": ["백두산"], "tags": ["B-MT"]}]
    train = write_lines(tmp_path / "train.jsonl", tags)
    tagged = check_inputs([], "tag", train, test=write_lines(tmp_path / "test.jsonl", [*tags[:2], *new]))
    return [*inputs.warnings, *several.warnings, *tagged.warnings]


def test_warnings_have_korean_texts(warnings: list[Problem]) -> None:
    sorts = {re.sub(r"\d+|\S*[/:.]\S*|'[^']*'", "", problem.message) for problem in warnings}
    assert len(sorts) >= 10, sorts
    for problem in warnings:
        text = re.sub(r"\S*/\S*", "", problem.korean)  # without paths
        assert re.search("[가-힣]{2}", text) and not find_english(text, "document", "MT", "LC"), problem
    with pytest.raises(ValueError, match="needs a Korean text"):
        Problem("a warning", is_fatal=False)


def test_the_korean_page_has_no_english(
    data: Any, warnings: list[Problem], tmp_path: Path, fake_time: FakeTime
) -> None:
    """Confusion, errors and warnings were in English."""
    _, results = collect_results(data, tmp_path / "out")
    results |= {
        "warnings": [problem.texts for problem in warnings],
        "notes": [{"en": "BERT: 12 steps are too few.", "ko": f"BERT: {KOREAN_ERROR}"}],
        "rounds": [{"stage": {"en": "pre-training", "ko": "사전 학습"}, "seconds": 30.0, "survivors": ["BERT"],
                    "scores": {"BERT": 0.5, "GPT": 0.4}}],
        "untried": [{"label": {"en": "ELECTRA", "ko": "ELECTRA"},
                     "reason": {"en": "not tried: needs about 40 s", "ko": "시도하지 않음: 약 40초 필요"}}],
        "not_exported": "It has no class for the task.", "versions": "etude from source, torch 2, Python 3",
        "hardware": "aarch64 CPU, 2 threads",
    }  # fmt: skip
    results["rows"][0] |= {"folds": 3, "pretraining": {"flops": None, "seconds": None, "tokens": None}}
    results["rows"][1]["pretraining"] = {"flops": 1e12, "seconds": 30.0, "tokens": 1e6}
    results["errors"]["worst"] = [
        {"where": "labels.jsonl:3", "text": "글", "gold": gold, "predicted": answer, "loss": 1.0}
        for gold, answer in (("가", "(no answer)"), ("(none)", "나"), ("가", "(nothing)"))
    ]
    labels = {"likely", "unsure", "last", "labels", "aarch64", "UTC", "document", "MT", "LC", "body"}
    for counts in (results["errors"]["confusion"]["counts"], [[f"가{n}", "나", 1] for n in range(60)]):
        for unit in page.KOREAN_UNITS:
            results["errors"]["confusion"] = {"unit": unit, "counts": counts}
            text = re.sub(r"\S*/\S*", "", read_korean(page.render(results)))
            assert not find_english(text, *labels), find_english(text, *labels)
    results["hardware"] = "aarch64 CPU, 1 thread"
    results["errors"] |= {"worst": [], "wrong": 0, "confusion": {"unit": "examples", "counts": [["가", "가", 9]]}}
    text = read_korean(page.render(results))
    assert "1스레드" in text and "오답이 없습니다." in text and "확신이 컸던" not in text
    english = page.render(results)
    assert "It has no class for the task." in english and "12 steps are too few" in english
    assert "out-of-fold answers the log loss goes" in english
    for name in ("answers", "loss_before", "loss_after"):
        del results["calibration"][name]
    earlier = page.render({**results, "warnings": ["one line"]})  # warnings had one language, and no loss was stored
    assert "one line" in earlier and "points on out-of-fold answers" in earlier


@pytest.mark.parametrize(("seconds", "text"), [(12, "12초"), (65, "1분 5초"), (120, "2분 0초")])
def test_korean_durations(seconds: float, text: str) -> None:
    from etude.pick.clock import format_korean_seconds

    assert format_korean_seconds(seconds) == text

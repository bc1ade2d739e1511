"""Scores of answers equal those of public scorers, exactly, on right, damaged and missing answers.

Version 1.1 against torchmetrics, both versions against the scripts in tf-models-official: Google's copies of the
official ones. That package is installed without its dependencies (`make setup`), and only two files of it are read.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import lzma
import random
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from etude.models import transformer
from etude.tasks.data.examples import Examples
from etude.tasks.span import answers
from etude.tasks.span import task as span
from etude.tasks.span.questions import Question
from etude.text.tokenizer.tokenizer import Tokenizer
from tests.shared_data import DATA

TASKS = DATA / "tasks"


def script(version: str) -> ModuleType:
    try:
        package = importlib.metadata.distribution("tf-models-official")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the scripts are in tf-models-official: pip install --no-deps tf-models-official")
    file = Path(str(package.locate_file(f"official/nlp/tools/squad_evaluate_{version}.py")))
    found = importlib.util.spec_from_file_location(f"squad_{version}", file)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


# --- questions and answers --------------------------------------------------------------------------

MADE = [
    ("Who wrote it?", "It was written by The Rev. A. O'Neil, of the Town.", ["The Rev. A. O'Neil", "Rev. O'Neil"]),
    ("When?", "In the spring of 1840–41 a bridge was built.", ["spring of 1840–41", "1840–41", "the spring"]),
    ("어디?", "서울의 한 극장에서 “여름”이라는 영화가 상영되었다.", ["서울", "서울의 한 극장"]),
    ("What is the?", "An article: the. It is said twice, the the.", ["the"]),  # nothing is left of this answer
    ("How much?", "It costs $3.50 (three-fifty), not £3.50.", ["$3.50", "three-fifty", "3.50"]),
    ("Why?", "Nobody knows why.", []),
    ("And then?", "Naïve café-goers left—at once—for the Ångström Arms.", ["the Ångström Arms", "Ångström Arms"]),
]  # fmt: skip


def made() -> list[Question]:
    items = []
    for number, (question, context, texts) in enumerate(MADE * 6):
        places = tuple((text, context.index(text)) if text in context else (text, 0) for text in texts)
        items.append(Question(str(number), question, context, places))
    return items


def real(name: str) -> list[Question]:
    file = TASKS / name / "valid.jsonl.xz"
    if not file.is_file():
        pytest.skip(f"real questions are read from {name}, which is not here")
    with lzma.open(file, "rt", encoding="utf-8", newline="\n") as lines:
        found = [json.loads(line) for line in lines]
    return [
        Question(
            id=one["id"],
            question=one["question"],
            context=one["context"],
            answers=tuple((answer["text"], answer["answer_start"]) for answer in one["answers"]),
        )
        for one in found
    ]


def damaged(item: Question, draw: random.Random) -> str:
    """Mostly near a reference: other articles, marks, case, words lost or doubled; sometimes nothing, or anything."""
    words = (draw.choice(item.answers)[0] if item.answers else draw.choice([item.question, ""])).split(" ")
    kind = draw.randrange(9)
    if kind == 0:
        return ""
    if kind == 1:
        start = draw.randrange(len(item.context))
        return item.context[start : start + draw.randrange(1, 60)]
    if kind == 2:
        words = [draw.choice(["a", "an", "The", "THE"]), *words]
    if kind == 3:
        words = words[: draw.randrange(len(words) + 1)]
    if kind == 4:
        words = [*words, draw.choice(words)]
    if kind == 5:
        words = [word.upper() for word in words]
    if kind == 6:
        words = [
            draw.choice(["", "“", "(", "-", "'s", "..."]) + word + draw.choice(["", ",", ".", "—", "'"])
            for word in words
        ]
    if kind == 7:
        return draw.choice(["the", "a an", " ", ".", "\t", "a-the"])
    return draw.choice([" ", "  ", "\u00a0", "\n"]).join(words)  # fmt: skip


def as_published(items: list[Question]) -> list[dict[str, Any]]:
    asked = [{"id": one.id, "answers": [{"text": text} for text, _ in one.answers or ()]} for one in items]
    return [{"paragraphs": [{"qas": [one]}]} for one in asked]


SETS: dict[str, Any] = {
    "made": made,
    "squad11_from_dev": lambda: real("squad11_from_dev"),
    "squad20_from_dev": lambda: real("squad20_from_dev"),
}


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("seed", [0, 1])
def test_version_1(name: str, seed: int) -> None:
    items = [item for item in SETS[name]() if item.answers]
    draw = random.Random(seed)
    found = {item.id: damaged(item, draw) for item in items}
    ours = {
        key: [measure(found[item.id], [text for text, _ in item.answers], "squad1") for item in items]
        for key, measure in (("exact", answers.exact), ("f1", answers.f1))
    }
    peer = script("v1_1")
    for item, exact, f1 in zip(items, ours["exact"], ours["f1"], strict=True):
        texts = [text for text, _ in item.answers]
        assert exact == max(peer._exact_match_score(found[item.id], text) for text in texts), found[item.id]
        assert f1 == max(peer._f1_score(found[item.id], text) for text in texts), found[item.id]


@pytest.mark.slow  # importing it takes seconds
@pytest.mark.parametrize("name", SETS)
def test_torchmetrics(name: str) -> None:
    """Where something is left on both sides: of empty answers it has version 2's opinion, in version 1.1 too."""
    metric = pytest.importorskip("torchmetrics.text").SQuAD()
    draw = random.Random(2)
    items = [item for item in SETS[name]() if item.answers and all(answers.normalise(text) for text, _ in item.answers)]
    pairs = [(item, text) for item in items if answers.normalise(text := damaged(item, draw))]
    for item, text in pairs:
        wanted = {"text": [reference for reference, _ in item.answers or ()], "answer_start": [0]}
        metric.update([{"prediction_text": text, "id": item.id}], [{"answers": wanted, "id": item.id}])
    theirs = metric.compute()
    for key, measure in (("exact_match", answers.exact), ("f1", answers.f1)):
        ours = [measure(text, [reference for reference, _ in item.answers or ()], "squad1") for item, text in pairs]
        assert 5 < 100 * sum(ours) / len(ours) < 95
        assert 100 * sum(ours) / len(ours) == pytest.approx(float(theirs[key]), rel=1e-5), "its sums are float32"


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("seed", [0, 1])
def test_version_2(name: str, seed: int, monkeypatch: Any) -> None:
    """Through the task itself: all scores, answerable and not, and the threshold with what it would score."""
    items, draw = SETS[name](), random.Random(seed)
    found = {item.id: damaged(item, draw) for item in items}
    sure = {item.id: draw.gauss(0.5 if item.answers else -0.5, 1.0) for item in items}
    peer = script("v2_0")
    theirs = peer.evaluate(as_published(items), found, dict.fromkeys(found, 0.0))
    tokenizer = Tokenizer.train("word:20", ["a b c"])
    model = transformer.build(transformer.Settings(layers=1, width=8, heads=2, context=32, vocab=tokenizer.vocab))
    task = span.build(span.Settings(length=32), model, tokenizer, {"null": True, "threshold": 0.0})
    data = Examples(items, "made", [item.id for item in items])
    replies = [
        {"id": item.id, "answer": found[item.id], "null": -sure[item.id], "nbest": [{"text": found[item.id]}]}
        for item in items
    ]
    monkeypatch.setattr(task, "predict", lambda model, examples: replies)
    ours = task.evaluate(model, data, intervals=False)
    names = {"": "", "_answerable": "HasAns_", "_unanswerable": "NoAns_"}
    if any(not item.answers for item in items):
        for ending, prefix in names.items():
            for score in ("exact", "f1"):
                value, count = ours[f"{score}{ending}"].value, ours[f"{score}{ending}"].count
                assert 100 * value == pytest.approx(theirs[f"{prefix}{score}"], rel=1e-12), (score, ending)
                assert count == theirs[f"{prefix}total"]
    else:
        assert 100 * ours["f1"].value == pytest.approx(theirs["f1"], rel=1e-12) and "f1_answerable" not in ours
    exact, f1 = peer._get_raw_scores(as_published(items), found)
    for item in items:
        assert task.scoring.value("exact", found[item.id], item) == exact[item.id], found[item.id]
        assert task.scoring.value("f1", found[item.id], item) == f1[item.id], found[item.id]
    nulls = {item.id: -sure[item.id] for item in items}
    for score, raw in (("exact", exact), ("f1", f1)):
        best, threshold = peer._find_best_thresh(found, raw, nulls, {item.id: bool(item.answers) for item in items})
        task.scoring = span.scoring(span.Settings(length=32, score=score), task.facts())
        task.tune_on_dev(model, data)
        if 100 * sum(not item.answers for item in items) / len(items) < best - 1e-9:
            assert threshold < task.threshold  # clear of it, and the same questions lie above
            assert not [one for one in nulls.values() if threshold + answers.ROUNDING < one <= task.threshold]
        else:  # to answer nothing is best: the official walk leaves 0, whatever the scores are
            assert threshold == 0.0 >= task.threshold and task.threshold < min(nulls.values())
        walked = answers.best_threshold(
            [nulls[item.id] for item in items],
            [raw[item.id] for item in items],
            [bool(item.answers) for item in items],
            [not found[item.id] for item in items],
        )
        assert walked == (pytest.approx(best / 100, rel=1e-12), threshold)

"""More labels than there is time for: a stratified part is learnt from, and the answer says so."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import etude
from etude.pick import label_limit
from etude.pick.data import HELD_OUT, PickData
from etude.pick.label_limit import count_labels, take_labels
from etude.pick.labels import Labelled, read_labels
from etude.tasks import classify
from tests.pick.test_pick import write_labels


@pytest.fixture
def train(tmp_path: Path) -> Labelled:
    labelled, problems = read_labels("classify", write_labels(tmp_path / "labels.jsonl", 200))
    assert not problems
    return labelled


def build(train: Labelled) -> PickData:
    return PickData.build(train, None, None, classify.Settings(), HELD_OUT, seed=0)


def test_the_fits_of_the_simplest_contender_fit_into_their_share(
    train: Labelled, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = build(train)
    monkeypatch.setattr(label_limit, "ALWAYS", 50)
    monkeypatch.setattr(label_limit, "PILOT", 20)
    monkeypatch.setattr(label_limit, "measure_fit", lambda *_: 2.0)  # 0.1 s a label
    fits = len(data.folds[0].train) + len(data.chosen_on) + len(data.refit_on)
    needed = label_limit.MARGIN * 0.1 * fits
    assert count_labels(data, train, 2.01 * needed, 0) == 200
    assert count_labels(data, train, needed, 0) == pytest.approx(100, abs=1)
    assert count_labels(data, train, 1.0, 0) == 50, "so many take seconds"
    monkeypatch.setattr(label_limit, "measure_fit", lambda *_: pytest.fail("nothing to measure"))
    monkeypatch.setattr(label_limit, "ALWAYS", 200)
    assert count_labels(data, train, 1.0, 0) == 200


def test_a_fit_is_measured(train: Labelled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_limit, "PILOT", 60)
    assert 0 < label_limit.measure_fit(build(train), train, 0) < 60


def test_a_part_has_the_classes_of_the_whole(train: Labelled) -> None:
    def count(labelled: Labelled) -> Counter[str]:
        return Counter(name for classes in labelled.strata for name in classes)

    part, whole = take_labels(train, 100, seed=0), count(train)
    assert len(part) == pytest.approx(100, abs=len(whole))
    assert all(number == pytest.approx(whole[name] / 2, abs=1) for name, number in count(part).items())
    assert count(part).keys() == whole.keys() and part.records == take_labels(train, 100, seed=0).records
    assert part.records != take_labels(train, 100, seed=1).records
    once = train.take([index for index in range(len(train)) if index == 7 or train.strata[index] != train.strata[7]])
    assert train.records[7] in take_labels(once, 20, seed=0).records, "a class that stands once"
    assert take_labels(train, 200, seed=0) is train


def test_a_pick_says_what_it_learnt_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels, lines = write_labels(tmp_path / "labels.jsonl", 80), list[str]()
    monkeypatch.setattr(label_limit, "ALWAYS", 40)
    monkeypatch.setattr(label_limit, "PILOT", 20)
    monkeypatch.setattr(label_limit, "measure_fit", lambda *_: 1e6)

    def pick() -> etude.PickResult:
        return etude.pick(task="classify", train=labels, out=tmp_path / "out", minutes=1, on_progress=lines.append)

    results = pick().results
    assert results["labels"]["refit_on"] == pytest.approx(40, abs=8)
    note = next(note for note in results["notes"] if "of 80 labels" in note["en"])
    assert note["en"] in lines and "80개" in note["ko"]
    assert note["en"] in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    pick()
    assert "This pick is done already; nothing changed." in lines

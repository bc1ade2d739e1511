"""The final model learns from all labels, for as many updates as few labels need, whichever kind of contender wins."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence, Sized
from pathlib import Path
from typing import Any

import pytest

from etude.pick import contenders, tuning
from etude.pick.contenders import BaselineContender, ProbeContender, TunedContender
from etude.pick.data import PickData
from etude.pick.encoders import Encoder
from etude.pick.final import write_best
from etude.pick.labels import read_labels
from etude.runs.task_plan import task_module
from etude.transfer import few_labels
from tests.pick.test_race import Scripted, build_race

LABEL = {"en": "mini", "ko": "mini"}
ENCODER = Encoder("mini", LABEL, Path("none"), "key", 0.0, {})
COUNT = 100


@pytest.fixture
def data(tmp_path: Path) -> PickData:
    path = tmp_path / "labels.jsonl"
    records = [{"text": f"text number {n}", "label": "ab"[n % 2]} for n in range(COUNT)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    labelled, _ = read_labels("classify", path)
    data = PickData.build(labelled, None, None, task_module("classify").Settings(), 0.2, seed=0)
    assert len(data.chosen_on) == 80 and len(data.scored_on) == 20, "a fifth was set aside until here"
    return data


class FakeProbe:
    """Remembers what it learns from, and what it says it learnt from."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.written = 0

    def features(
        self, examples: Sized, deadline: float | None, on_batch: Callable[[int, int], None] | None = None
    ) -> object:
        """Read as many at once as a batch holds, as a probe does."""
        for done in range(10, len(examples) + 10, 10):
            if on_batch is not None:
                on_batch(done, len(examples))
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError
        return object()

    def fit(self, features: object, numbers: Sequence[int], groups: object) -> str:
        self.numbers = [int(number) for number in numbers]
        return "head"

    def write(self, head: str, out: Path, examples: Path, columns: object) -> None:
        self.written = len(examples.read_text(encoding="utf-8").splitlines())


def test_a_baseline(data: PickData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    class Fitted:
        def save(self, out: Path) -> None:
            out.mkdir()

    def fit(name: str, kind: str, settings: object, examples: Sized, seed: int, **_: object) -> Fitted:
        sizes.append(len(examples))
        return Fitted()

    monkeypatch.setattr(contenders.baselines, "fit", fit)
    BaselineContender("tfidf", LABEL).refit(data, tmp_path / "best", tmp_path / "labels", None)
    assert sizes == [COUNT]


def test_a_baseline_that_was_scored_on_all_labels_is_not_fitted_again(
    data: PickData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a test file both fits are the same, and take minutes each where labels are many."""
    sizes: list[int] = []

    class Fitted:
        def save(self, out: Path) -> None:
            out.mkdir()

        def predict(self, examples: Sized) -> list[Any]:
            return []

    def fit(name: str, kind: str, settings: object, examples: Sized, seed: int, **_: object) -> Fitted:
        sizes.append(len(examples))
        return Fitted()

    monkeypatch.setattr(contenders.baselines, "fit", fit)
    contender = BaselineContender("tfidf", LABEL)
    for numbers in (data.folds[0].train, data.chosen_on, data.refit_on):
        contender.answer(data, numbers, data.scored_on, tmp_path, None)
    contender.refit(data, tmp_path / "best", tmp_path / "labels", None)
    assert sizes == [64, 80, 100] and (tmp_path / "best").is_dir()


def test_a_linear_head(data: PickData, tmp_path: Path) -> None:
    contender, fake = ProbeContender(ENCODER, "cpu"), FakeProbe()
    contender._probe, contender._features = fake, object()  # type: ignore[assignment]
    contender.refit(data, tmp_path / "best", tmp_path / "labels", None)
    assert fake.numbers == list(range(COUNT)) and fake.written == COUNT


def test_a_fine_tuning(data: PickData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the labels trained the final model, for 20 updates."""
    calls: list[tuple[int, dict[str, Any]]] = []

    def tune(
        base: Path, task: str, examples: Path, folder: Path, columns: object, overrides: dict[str, Any],
        deadline: float | None, *, shorten: bool,
    ) -> None:  # fmt: skip
        assert shorten, "a refit that would be late becomes shorter"
        calls.append((len(examples.read_text(encoding="utf-8").splitlines()), overrides))

    monkeypatch.setattr(tuning, "tune", tune)
    monkeypatch.setattr(contenders, "open_pretrained", lambda folder: None)
    monkeypatch.setattr(few_labels, "finetuning_overrides", lambda start, settings, examples: {})
    TunedContender(ENCODER, "cpu").refit(data, tmp_path / "best", tmp_path / "labels", None)
    ((examples, overrides),) = calls
    assert examples == COUNT and overrides["train.steps"] >= few_labels.UPDATES


def test_a_linear_head_that_is_late(data: PickData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed near its end, a pick has to read the features again: it ended in OutOfTime, whenever it was called."""
    contender, fake = ProbeContender(ENCODER, "cpu"), FakeProbe()
    monkeypatch.setattr(contenders, "open_pretrained", lambda folder: None)
    monkeypatch.setattr(contenders.probe, "Probe", lambda *_: fake)
    contender.refit(data, tmp_path / "best", tmp_path / "labels", time.monotonic() - 1)
    assert fake.numbers == list(range(COUNT)) and fake.written == COUNT


def test_the_card_is_headed_by_the_name_of_the_model(data: PickData, tmp_path: Path) -> None:
    """It is written beside its place, and was headed by the name of that folder."""

    class Carded(Scripted):
        def refit(self, data: PickData, out: Path, labels: Path, deadline: float | None) -> None:
            out.mkdir()
            (out / "README.md").write_text(f"# {out.name}\n")
            data.write(data.refit_on, labels)

    race = build_race(data, tmp_path / "out", 600)
    entry = race.enter(Carded("carded", 0.8))
    write_best(race, entry, tmp_path / "out" / "best", None, None, lambda _: None)
    assert (tmp_path / "out" / "best" / "README.md").read_text() == "# best\n"
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_dir()) == ["best", "labels"]

"""Fine-tunings are as long as there is time for, begin with one repeat, end where they are behind, and use the rest.

Time is simulated: a fold takes what the script says, whatever was foreseen.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from etude.pick import fine_tuning, pace, rounds, selection
from etude.pick.contenders import LENGTHS, TUNED_MARGIN, ProbeContender, TunedContender, _task_overrides
from etude.pick.data import PickData
from etude.pick.encoders import Encoder
from etude.pick.fine_tuning import choose_length, measure_ratio, run_longer, run_tuned
from etude.pick.labels import read_labels
from etude.pick.pace import FRESH
from etude.pick.race import Entry, Race
from etude.pick.stages import is_ahead, run_vectors, use_time_left
from etude.pick.text import PickText
from etude.runs.task_plan import task_module
from etude.tasks.base import Answer
from etude.tasks.data.examples import Examples
from etude.transfer import few_labels
from tests.pick.test_race import FakeTime, Scripted, build_race
from tests.pick.test_race import data as data  # a fixture
from tests.pick.test_race import fake_time as fake_time  # a fixture

ENCODER = Encoder("mini", {"en": "mini", "ko": "mini"}, Path("none"), "key", 0.0, {})
FOLD = 1.0 + 2.0  # seconds of a fold at full length, where the features of all labels take FEATURES
FEATURES = 200 / (3 * 200 * 16)


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of scores need not be exact here."""
    monkeypatch.setattr(selection, "DRAWS", 100)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, fake_time: FakeTime) -> Callable[[float, float], None]:
    """Let fine-tunings be right for a share of the examples, after so many times the seconds that were foreseen."""

    def script(share: float, slower: float = 1.0) -> None:
        def answer(
            self: TunedContender, data: PickData, train: np.ndarray, valid: np.ndarray, work: Path,
            deadline: float | None,
        ) -> list[Answer]:  # fmt: skip
            pause = slower * self.estimate_fold(data, FEATURES)
            return Scripted("answers", share, lambda: pause, salt=3).answer(data, train, valid, work, deadline)

        monkeypatch.setattr(TunedContender, "answer", answer)

    return script


def probe(race: Race, share: float) -> Entry:
    """An entry of frozen features with its folds."""
    contender = ProbeContender(ENCODER, "cpu")
    contender.feature_seconds = FEATURES
    entry = race.enter(contender, ENCODER)
    script = Scripted("mini frozen", share)
    contender.answer = script.answer  # type: ignore[method-assign]
    contender.prepare = lambda data, deadline: None  # type: ignore[method-assign]
    race.run_folds(entry)
    return entry


def count(race: Race, name: str) -> int:
    return len(race.entries[name].trials.answers)


def test_one_repeat_first(data: PickData, tmp_path: Path, scripted: Callable[..., None]) -> None:
    scripted(0.8)
    race = build_race(data, tmp_path / "out", 600)
    run_tuned(race, probe(race, 0.8))
    assert data.repeat == 5 and data.planned == 15
    assert count(race, "mini frozen") == 15 and count(race, "mini fine-tuned") == 5
    assert race.entries["mini fine-tuned"].estimated == pytest.approx(FOLD)


def test_a_repeat_can_win_against_all_folds(data: PickData, tmp_path: Path, scripted: Callable[..., None]) -> None:
    """Every example was validated: it must lead by its error, and not by two."""
    scripted(0.99)
    race = build_race(data, tmp_path / "out", 600)
    run_tuned(race, probe(race, 0.9))
    assert race.ranking()[0] == "mini fine-tuned"


@pytest.mark.parametrize(
    ("seconds", "name"),
    [
        (60, "mini fine-tuned"),
        (26, "mini fine-tuned short"),  # all five folds are worth more than a longer one with three
        (22, "mini fine-tuned short"),  # of none of them five end in time
        (16, None),
    ],
)
def test_it_is_as_long_as_there_is_time_for(
    seconds: float, name: str | None, data: PickData, tmp_path: Path, scripted: Callable[..., None]
) -> None:
    scripted(0.8)
    race = build_race(data, tmp_path / "out", seconds)
    run_tuned(race, probe(race, 0.8))
    tuned = [each for each in race.entries if "fine-tuned" in each]
    assert tuned == ([] if name is None else [name])
    if name is None:
        assert race.untried[0]["reason"]["en"].startswith("not tried: needs about")
        needed = race.journal.values["decisions"]["length mini"]["needed"]
        assert needed > race.clock.left, "it says more than there was: the end of the pick counts"
    else:
        assert count(race, name) >= 3 and race.clock.left >= race.reserve()


def test_what_folds_took_corrects_the_next_estimate(
    data: PickData, tmp_path: Path, scripted: Callable[..., None]
) -> None:
    scripted(0.8, slower=2.0)
    race = build_race(data, tmp_path / "out", 600)
    probed = probe(race, 0.8)
    assert measure_ratio(race) == 1.0
    run_tuned(race, probed)
    assert measure_ratio(race) == pytest.approx(2.0)
    longer = fine_tuning._build_entry(race, ENCODER, FEATURES, 2.0)
    assert longer.estimated == pytest.approx(2 * (2.0 + 2 * 1.0))


def test_one_that_is_clearly_behind_ends(data: PickData, tmp_path: Path, scripted: Callable[..., None]) -> None:
    scripted(0.5)
    race = build_race(data, tmp_path / "out", 600)
    run_tuned(race, probe(race, 0.9))
    entry = race.entries["mini fine-tuned"]
    assert len(entry.trials.answers) == 3 and entry.note == "3 of 15 folds: clearly behind"


def test_time_that_is_left_goes_into_ties_and_a_longer_one(
    data: PickData, tmp_path: Path, scripted: Callable[..., None]
) -> None:
    scripted(0.8)
    race = build_race(data, tmp_path / "out", 600)
    run_tuned(race, probe(race, 0.8))
    use_time_left(race)
    assert count(race, "mini fine-tuned") == 15 and count(race, "mini fine-tuned long") == 15
    assert "within their error after all folds" in race.notes[-1]["en"]
    assert not run_longer(race), "there is no longer one"
    resumed = build_race(data, tmp_path / "out", 600)
    run_tuned(resumed, probe(resumed, 0.8))
    use_time_left(resumed)
    assert resumed.ranking() == race.ranking() and resumed.notes[-1] == race.notes[-1]


def test_one_that_was_too_short_for_want_of_time_gets_it(
    data: PickData, tmp_path: Path, scripted: Callable[..., None]
) -> None:
    """It is behind, and its length may be why: foreseen were more seconds than it took."""
    scripted(0.5, slower=0.3)
    race = build_race(data, tmp_path / "out", 26)
    run_tuned(race, probe(race, 0.9))
    assert [name for name in race.entries if "fine-tuned" in name] == ["mini fine-tuned short"]
    use_time_left(race)
    assert list(race.entries)[-1] == "mini fine-tuned" and "time is left" not in str(race.notes)
    assert race.clock.left >= race.reserve()


def test_a_clear_leader_ends_early_and_says_so(data: PickData, tmp_path: Path, scripted: Callable[..., None]) -> None:
    scripted(0.5)
    race = build_race(data, tmp_path / "out", 600)
    run_tuned(race, probe(race, 0.9))
    use_time_left(race)
    assert race.notes[-1]["en"].startswith("Settled after") and "mini, frozen leads clearly" in race.notes[-1]["en"]


def test_a_fold_that_would_not_end_is_not_begun(data: PickData, tmp_path: Path, scripted: Callable[..., None]) -> None:
    scripted(0.8, slower=4.0)
    race = build_race(data, tmp_path / "out", 60)
    run_tuned(race, probe(race, 0.8))
    left = race.clock.left
    assert 0 < count(race, "mini fine-tuned") < 5 and "no time for more" in race.entries["mini fine-tuned"].note
    assert left >= race.reserve(), "no time was spent on a fold that came to nothing"


def test_the_refit_is_foreseen_by_updates(data: PickData) -> None:
    """Not by the number of labels: 200 updates are 200 updates."""
    assert few_labels.plan_updates(64) == (200, 8) and few_labels.plan_updates(100) == (200, 16)
    on_gpu, on_cpu = TunedContender(ENCODER, "cuda"), TunedContender(ENCODER, "cpu")
    assert len(data.folds[0].train) == 128
    assert on_gpu.estimate(data, 10.0, 200) == 10.0 and on_cpu.estimate(data, 10.0, 200) == 10.0
    assert on_cpu.estimate(data, 10.0, 64) == pytest.approx(2 + 8 / 2) and on_gpu.estimate(data, 10.0, 64) == 10.0
    assert on_gpu.fit_margin == TUNED_MARGIN < 1.5


def test_lengths_have_names_of_their_own() -> None:
    contenders = [TunedContender(ENCODER, "cpu", length) for length in LENGTHS]
    assert len({each.name for each in contenders}) == len({each.key for each in contenders}) == len(LENGTHS)
    assert [each._count_updates(64)[0] for each in contenders] == [50, 100, 200, 400]


def test_no_length_fits(data: PickData, tmp_path: Path) -> None:
    race = build_race(data, tmp_path / "out", 30)
    decision = choose_length(race, ENCODER, 100.0, list(LENGTHS))
    assert decision["length"] is None and decision["needed"] > 100


def test_a_given_setting_reaches_fine_tuning_although_it_is_the_default(tmp_path: Path) -> None:
    """GPT-1's recipe has an auxiliary loss: task.language_model=0 turns it off."""
    path = tmp_path / "labels.jsonl"
    path.write_text("".join(f'{{"text": "text {n}", "label": "{"ab"[n % 2]}"}}\n' for n in range(40)))
    labelled, _ = read_labels("classify", path)
    settings = task_module("classify").Settings
    given, silent = (
        PickData.build(labelled, None, None, values, 0.2, seed=0) for values in (settings(language_model=0), settings())
    )
    assert _task_overrides(given) == {"task.language_model": 0.0} and _task_overrides(silent) == {}
    assert given.fingerprint != silent.fingerprint


def test_a_start_that_is_clearly_ahead_is_fine_tuned_before_word_vectors(data: PickData, tmp_path: Path) -> None:
    race = build_race(data, tmp_path / "out", 600)
    race.run_folds(race.enter(Scripted("tfidf", 0.6)))
    assert not is_ahead(race, [])
    clear = probe(race, 0.9)
    assert is_ahead(race, [clear])
    race.run_folds(race.enter(Scripted("ngrams", 0.9)))
    assert not is_ahead(race, [clear])


def test_one_that_was_refused_under_load_is_tried_when_the_load_is_gone(
    data: PickData, tmp_path: Path, scripted: Callable[..., None], monkeypatch: pytest.MonkeyPatch, fake_time: FakeTime
) -> None:
    """What it needs was foreseen on a busy machine, and the rest of the minutes was left unused."""
    scripted(0.95)

    def refuse(folder: Path) -> Race:
        monkeypatch.setattr(pace, "measure", lambda: 0.03)
        race = build_race(data, folder, 150)
        probed = probe(race, 0.7)
        race.journal.decide("features key", lambda: 120 * FEATURES)
        run_tuned(race, probed)
        assert race.refused == [probed] and len(race.untried) == 1
        fake_time.seconds += FRESH + 1
        return race

    race = refuse(tmp_path / "busy")
    use_time_left(race)
    assert race.refused and race.untried and race.ranking() == ["mini frozen"], "it is as slow as before"
    race = refuse(tmp_path / "quiet")
    monkeypatch.setattr(pace, "measure", lambda: 0.01)
    use_time_left(race)
    assert not race.refused and not race.untried and race.ranking()[0].startswith("mini fine-tuned")
    assert race.clock.left >= race.reserve()
    resumed = refuse(tmp_path / "quiet")
    use_time_left(resumed)
    assert resumed.ranking() == race.ranking(), "on a busy machine again: what was decided stays"


def test_one_that_was_refused_for_slow_features_is_measured_again(
    data: PickData, tmp_path: Path, scripted: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """24 picks that began at once on one GPU read their features slowly, and 45 % of the minutes were left unused."""
    scripted(0.95)
    race = build_race(data, tmp_path / "out", 150)
    probed = probe(race, 0.7)
    race.journal.decide("features key", lambda: 120 * FEATURES)
    run_tuned(race, probed)
    assert race.refused == [probed]
    monkeypatch.setattr(ProbeContender, "measure_again", lambda *_: 200 * FEATURES)
    use_time_left(race)
    assert race.refused == [probed] and race.ranking() == ["mini frozen"], "it is as slow as before"
    monkeypatch.setattr(ProbeContender, "measure_again", lambda *_: FEATURES)
    use_time_left(race)
    assert not race.refused and race.ranking()[0].startswith("mini fine-tuned")


def test_features_of_some_examples_say_what_all_would_take(data: PickData, fake_time: FakeTime) -> None:
    class Reader:
        def features(self, examples: Examples[object], *_: object) -> None:
            fake_time.seconds += 0.5 * len(examples)

    contender = ProbeContender(ENCODER, "cpu")
    assert contender.measure_again(data, None) is None, "no model is open"
    contender._probe = Reader()  # type: ignore[assignment]
    assert contender.measure_again(data, None) == pytest.approx(0.5 * len(data.refit_on))


def test_word_vectors_that_there_was_no_time_for_are_learnt_when_there_is(
    data: PickData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    race, learnt = build_race(data, tmp_path / "out", 150), []
    race.run_folds(race.enter(Scripted("tfidf", 0.6)))
    text = PickText(None, None, tmp_path)
    for name, value in (("text_share", 1.0), ("plan_candidate", object()), ("read_encoder", ENCODER)):
        monkeypatch.setattr(rounds, name, lambda *_, value=value, **__: value)
    monkeypatch.setattr(rounds, "run_pretraining", lambda *_: learnt.append("vectors"))
    monkeypatch.setattr(race, "run_baselines", lambda encoder: None)
    monkeypatch.setattr(race, "scoring_seconds", lambda: 1_000.0)  # a dear contender on a busy machine
    run_vectors(race, text, 0.1)
    use_time_left(race, text)
    assert not learnt and [note["en"] for note in race.notes].count("word vectors: no time to pre-train it") == 1
    monkeypatch.setattr(race, "scoring_seconds", lambda: 5.0)
    race.journal.values["decisions"].pop("begin vectors 18 again")
    use_time_left(race, text)
    assert learnt == ["vectors"] and "word vectors: no time to pre-train it" not in [note["en"] for note in race.notes]


def test_features_that_are_still_to_be_read_are_part_of_the_end(data: PickData, tmp_path: Path) -> None:
    """After a kill the folds are there and the features are not: a refit reads them again."""
    race = build_race(data, tmp_path / "out", 600)
    entry = probe(race, 0.8)
    assert isinstance(entry.contender, ProbeContender)
    entry.contender._features = object()  # type: ignore[assignment]
    known = race.reserve(entry)
    entry.contender._features, entry.contender.feature_seconds = None, 30.0
    assert race.reserve(entry) == pytest.approx(known + entry.contender.fit_margin * 30.0)

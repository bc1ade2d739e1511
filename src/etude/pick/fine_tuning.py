"""Fine-tuning in a pick: how long it is, how many folds it gets, and what the time that is left is good for.

A fine-tuning costs a hundred times what a linear head does. So it is as long as there is time for: of the lengths in
contenders.py the longest of which one repeat of the folds, in which every example is validated once, the scored fit and
the refit end in time; where there is none, the longest of which some folds do. More folds settle ties (pick/ties.py).
What a fold takes is foreseen from the seconds of reading the features, and corrected by what the fine-tunings before it
took.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TypedDict

from etude.pick.contenders import LENGTHS, ProbeContender, TunedContender
from etude.pick.encoders import Encoder
from etude.pick.race import Entry, Race

LEAST_FOLDS = 3  # that must end in time: fewer say too little to be worth the time
LEAST_RATIO, MOST_RATIO = 0.2, 5.0  # of what folds took to what was foreseen
USUAL = 1.0  # the length that few labels need


class Length(TypedDict):
    """The decision how long a fine-tuning is."""

    length: float | None  # None: it is not tried
    needed: float  # seconds that the shortest would need, with the end of the pick: more than are left


def run_tuned(race: Race, probed: Entry) -> None:
    """Fine-tune an encoder whose features were read, where a fold, the scored fit and the refit end in time."""
    encoder = probed.encoder
    assert encoder is not None and isinstance(probed.contender, ProbeContender)
    measured = probed.contender.feature_seconds
    seconds = race.journal.decide(f"features {encoder.key}", lambda: measured)
    lengths = [length for length in LENGTHS if length <= USUAL]
    decision = race.journal.decide(f"length {encoder.name}", lambda: choose_length(race, encoder, seconds, lengths))
    if decision["length"] is None:
        needed = f"{decision['needed']:.0f}"
        race.skip([TunedContender(encoder, race.device).label],
                  {"en": f"not tried: needs about {needed} s", "ko": f"시도하지 않음: 약 {needed}초 필요"})  # fmt: skip
        race.refused.append(probed)
        return
    _run(race, encoder, seconds, decision["length"], count_first_folds(race))


def retry_refused(race: Race) -> bool:
    """Fine-tune an encoder that there was no time for, where the machine became faster. Returns whether one was.

    What it needs was foreseen while other work slowed the machine; the best of those that were refused comes first.
    """
    order = race.ranking()
    race.retries += 1
    for probed in sorted(race.refused, key=lambda entry: order.index(entry.contender.name)):
        encoder = probed.encoder
        assert encoder is not None
        seconds = race.journal.decide(
            f"features {encoder.key} again {race.retries}", partial(_measure_again, race, probed, encoder)
        )
        lengths = [length for length in LENGTHS if length <= USUAL]
        decision = race.journal.decide(
            f"length {encoder.name} again {race.retries}", partial(choose_length, race, encoder, seconds, lengths)
        )
        if decision["length"] is not None:
            race.refused.remove(probed)
            label = TunedContender(encoder, race.device).label
            race.untried[:] = [skipped for skipped in race.untried if skipped["label"] != label]
            race.on_progress(f"{label['en']}: there is time for it after all")
            _run(race, encoder, seconds, decision["length"], count_first_folds(race))
            return True
    return False


def _measure_again(race: Race, probed: Entry, encoder: Encoder) -> float:
    """The seconds of reading all features now: as some of them take, or by the pace; never more than at first."""
    assert isinstance(probed.contender, ProbeContender)
    before = float(race.journal.values["decisions"][f"features {encoder.key}"])
    measured = probed.contender.measure_again(race.data, race.clock.deadline(race.reserve()))
    if measured is None:
        measured = race.pace.change(probed.trials.pace) * before
    return min(before, measured)


def run_longer(race: Race) -> bool:
    """Try a fine-tuning at twice its length: one that (nearly) leads, or was short of time. Returns whether it did."""
    entries = {name: entry for name, entry in race.entries.items() if entry.is_selectable and entry.trials.answers}
    tied = race.comparison.find_ties({name: entry.trials for name, entry in entries.items()})
    for name in race.ranking():
        contender, encoder = entries[name].contender, entries[name].encoder
        if not isinstance(contender, TunedContender) or encoder is None:
            continue
        longer = 2 * contender.length
        is_due = longer in LENGTHS and (name in tied or longer <= USUAL)
        is_new = is_due and TunedContender(encoder, race.device, longer).name not in race.entries
        if is_new and _run_length(race, encoder, longer):
            return True
    return False


def _run_length(race: Race, encoder: Encoder, length: float) -> bool:
    """Try a fine-tuning of this length if there is time; returns whether there was."""
    seconds = float(race.journal.values["decisions"].get(f"features {encoder.key}", 0.0))
    decision = race.journal.decide(
        f"length {encoder.name} {length:g}", lambda: choose_length(race, encoder, seconds, [length])
    )
    if decision["length"] is None:
        return False
    race.on_progress(f"{TunedContender(encoder, race.device, length).label['en']}: time is left for it")
    _run(race, encoder, seconds, length, count_first_folds(race))
    return True


def count_first_folds(race: Race) -> int:
    """The folds of one repeat, and as many more as run at once with the last of them."""
    slots = race.pool.slots if race.pool is not None else 1
    return min(race.data.planned, slots * math.ceil(race.data.repeat / slots))


def choose_length(race: Race, encoder: Encoder, feature_seconds: float, lengths: list[float]) -> Length:
    """The longest of which a repeat, or enough folds, the scored fit and the refit end in time."""
    entries = {length: _build_entry(race, encoder, feature_seconds, length) for length in sorted(lengths, reverse=True)}
    repeat = count_first_folds(race)
    for folds in (repeat, min(LEAST_FOLDS, repeat)):
        for length, entry in entries.items():
            if _estimate_folds(race, entry, folds) <= race.room(entry):
                return {"length": length, "needed": 0.0}
    shortest = entries[min(lengths)]
    needed = _estimate_folds(race, shortest, min(LEAST_FOLDS, repeat)) + race.reserve(shortest)
    return {"length": None, "needed": needed}


def _estimate_folds(race: Race, entry: Entry, folds: int) -> float:
    """Seconds of so many folds, as many at once as there are processes."""
    slots = race.pool.slots if race.pool is not None else 1
    return math.ceil(folds / slots) * entry.estimated


def _build_entry(race: Race, encoder: Encoder, feature_seconds: float, length: float) -> Entry:
    """A contender that is not entered, with what it is foreseen to cost."""
    contender = TunedContender(encoder, race.device, length, race.seed)
    entry = race.build_entry(contender, encoder)
    entry.estimated = measure_ratio(race) * contender.estimate_fold(race.data, feature_seconds)
    race.set_cost(entry, entry.estimated)
    return entry


def measure_ratio(race: Race) -> float:
    """How many times longer than foreseen the folds of the last fine-tuning took, 1 where there was none."""
    ratio = 1.0
    for entry in race.entries.values():
        if entry.estimated and entry.trials.seconds:
            ratio *= entry.trials.fold_seconds / entry.estimated
    return min(MOST_RATIO, max(LEAST_RATIO, ratio))


def _run(race: Race, encoder: Encoder, feature_seconds: float, length: float, folds: int) -> None:
    entry = _build_entry(race, encoder, feature_seconds, length)
    race.entries[entry.contender.name] = entry
    race.run_folds(entry, until=folds)

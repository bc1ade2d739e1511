"""Splits of labelled examples: stratified, by group, the same whatever the order of the file.

The unit of a split is a group of equal inputs (labels.py). Units are ordered by a hash of (seed, content), so a split
is a function of the examples and the seed alone. A class that stands in one unit stays on the training side always: a
model that never saw it could not be scored on it, and one rare label must not end a pick.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from etude.chance import fold, random_bits
from etude.pick.labels import Labelled

SPLIT_SHARE = 0.2  # of one split into training and validation
SPLIT_EXAMPLES = 500  # of its validation part at least: a standard error of 2 points at 75 % accuracy
FOLDS, REPEATS = 5, 3
FEW, MANY = 300, 1000  # examples: below, folds are repeated; from there on, one split is enough
EXAMPLES_A_CLASS = 20  # below, one split would leave too little of a class to learn from


class Fold(NamedTuple):
    """Indices of the examples to learn from, and of those to validate on."""

    train: np.ndarray
    valid: np.ndarray


@dataclass(frozen=True)
class _Unit:
    """Examples with one input."""

    group: int
    members: tuple[int, ...]
    classes: frozenset[str]


def plan_folds(count: int, classes: int = 0) -> tuple[int, int]:
    """Return (folds, repeats) for so many examples; folds = 1 is one split of a fifth, at least 500 examples.

    What is chosen by is a mean over validated examples, whose standard error falls with their number and with the
    number of models that were trained (Kohavi 1995; Kim 2009 on repeats). Below 300 examples five folds are repeated
    three times: each example is validated by three models, and the luck of one partition is averaged out. Below
    1000 five folds use every example once. From 1000 on one part of 500 has a standard error of at most 2.2 points,
    and five times the fine-tuning buys little; but where a class has fewer than 20 examples on average, folds stay,
    since half of a class would be missing from training.
    """
    if count < FEW:
        return max(2, min(FOLDS, count)), REPEATS
    return (FOLDS, 1) if count < MANY or count < EXAMPLES_A_CLASS * classes else (1, 1)


def hold_out(labelled: Labelled, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of (the rest, a stratified `share`), each in the order of the file.

    Where every example has one class, each class gives its exact share, rounded up or down; of sequences of tags,
    every tag that stands in two units or more is on both sides where the share has room for it.
    """
    if not 0 < share < 1:
        raise ValueError(f"a share lies between 0 and 1, not {share:g}")
    units = _sort_units(labelled, fold("hold out", seed))
    counts = Counter(name for unit in units for name in unit.classes)
    free = [unit for unit in units if not _is_rare(unit, counts)]
    size = max(0, min(round(share * len(free)), len(units) - 1))
    if _is_single(labelled):
        held = _draw_classes(free, counts, share, size, seed)
    else:
        held = _draw_tags(free, counts, share, size, fold("ties", seed))
    return _indices(labelled, _keep_classes([held], counts)[0])


def make_folds(labelled: Labelled, folds: int, repeats: int, seed: int) -> list[Fold]:
    """Return folds x repeats pairs of training and validation indices, repeat after repeat.

    In one repeat every example is validated once, except those that always train (a class of one unit). folds = 1
    is one split instead: a fifth of the examples, at least 500 where there are twice as many.
    """
    if folds < 1 or repeats < 1:
        raise ValueError(f"folds and repeats are 1 or more, not {folds} and {repeats}")
    if folds == 1:
        share = min(0.5, max(SPLIT_SHARE, SPLIT_EXAMPLES / max(1, len(labelled))))
        return [Fold(*hold_out(labelled, share, fold("split", seed, number))) for number in range(repeats)]
    return [
        Fold(*_indices(labelled, part))
        for number in range(repeats)
        for part in _partition(labelled, folds, seed, number)
    ]


# --- units ------------------------------------------------------------------------------------------


def _sort_units(labelled: Labelled, key: int) -> list[_Unit]:
    """Groups of equal inputs in an order that depends on their content and the key only."""
    members: dict[int, list[int]] = {}
    for index, group in enumerate(labelled.groups):
        members.setdefault(group, []).append(index)
    groups = np.array(sorted(members), np.uint64)
    order = np.argsort(random_bits(key, groups), kind="stable")
    return [
        _Unit(group, tuple(members[group]), frozenset().union(*(labelled.strata[index] for index in members[group])))
        for group in groups[order].tolist()
    ]


def _is_single(labelled: Labelled) -> bool:
    """Whether every example has at most one class: a label, not a set of tags."""
    return all(len(classes) <= 1 for classes in labelled.strata)


def _is_rare(unit: _Unit, counts: Counter[str]) -> bool:
    """Whether a class of it stands nowhere else."""
    return any(counts[name] == 1 for name in unit.classes)


def _indices(labelled: Labelled, held: Sequence[_Unit]) -> tuple[np.ndarray, np.ndarray]:
    is_held = np.zeros(len(labelled), bool)
    for unit in held:
        is_held[list(unit.members)] = True
    return np.flatnonzero(~is_held), np.flatnonzero(is_held)


def _by_class(units: Sequence[_Unit], counts: Counter[str]) -> dict[str, list[_Unit]]:
    """Units under their class; of one with several (a contradiction) under the rarest, "" where there is none."""
    classes: dict[str, list[_Unit]] = {}
    for unit in units:
        name = min(unit.classes, key=lambda name: (counts[name], name), default="")
        classes.setdefault(name, []).append(unit)
    return {name: classes[name] for name in sorted(classes)}


# --- one split --------------------------------------------------------------------------------------


def _draw_classes(free: list[_Unit], counts: Counter[str], share: float, size: int, seed: int) -> list[_Unit]:
    """Draw `size` units: of each class its share rounded down, then one more by the largest remainders."""
    classes = _by_class(free, counts)
    quotas = {name: share * len(units) for name, units in classes.items()}
    takes = {name: int(quota) for name, quota in quotas.items()}
    order = sorted(quotas, key=lambda name: (takes[name] - quotas[name], fold("remainder", seed, name)))
    for name in order:
        room = len(classes[name]) - (1 if name else 0)  # one of each class is learnt from
        if sum(takes.values()) < size and takes[name] < room:
            takes[name] += 1
    return [unit for name, units in classes.items() for unit in units[: takes[name]]]


def _draw_tags(free: list[_Unit], counts: Counter[str], share: float, size: int, key: int) -> list[_Unit]:
    """Draw a share of the units: one for each tag first, the rarest first, then the others in proportion."""
    left = Counter(counts)
    covered: set[str] = set()
    covering: list[_Unit] = []
    for name in sorted(counts, key=lambda name: (counts[name], name)):
        if name in covered or counts[name] < 2 or len(covering) >= size:
            continue
        unit = next((unit for unit in free if name in unit.classes and _leaves_all(unit, left)), None)
        if unit is not None:
            covering.append(unit)
            covered |= unit.classes
            left.subtract(unit.classes)
    return _stratify_tags(free, counts, [1 - share, share], key, [[], covering])[1]


def _leaves_all(unit: _Unit, left: Counter[str]) -> bool:
    """Whether every class of a unit stays on the training side without it."""
    return all(left[name] > 1 for name in unit.classes)


# --- folds ------------------------------------------------------------------------------------------


def _partition(labelled: Labelled, folds: int, seed: int, repeat: int) -> list[list[_Unit]]:
    """The units to validate on of each fold of one repeat."""
    units = _sort_units(labelled, fold("folds", seed, repeat))
    counts = Counter(name for unit in units for name in unit.classes)
    free = [unit for unit in units if not _is_rare(unit, counts)]
    if _is_single(labelled):
        ordered = [unit for members in _by_class(free, counts).values() for unit in members]
        parts = [ordered[number::folds] for number in range(folds)]  # a class: its share in each, rounded up or down
    else:
        parts = _stratify_tags(free, counts, [1 / folds] * folds, fold("ties", seed, repeat), [])
    return _keep_classes(parts, counts)


def _stratify_tags(
    free: list[_Unit], counts: Counter[str], shares: Sequence[float], key: int, first: Sequence[Sequence[_Unit]]
) -> list[list[_Unit]]:
    """Iterative stratification (Sechidis, Tsoumakas & Vlahavas 2011) into parts of these shares.

    The rarest tag comes first, each of its units goes to the part that lacks it most, then to the part with most room.
    `first` are units that have their part already.
    """
    parts: list[list[_Unit]] = [[] for _ in shares]
    wanted = {name: [count * share for share in shares] for name, count in counts.items()}
    room = [len(free) * share for share in shares]
    placed: set[int] = set()

    def place(unit: _Unit, number: int) -> None:
        parts[number].append(unit)
        placed.add(unit.group)
        room[number] -= 1
        for name in unit.classes:
            wanted[name][number] -= 1

    for number, units in enumerate(first):
        for unit in units:
            place(unit, number)
    queues: dict[str, list[_Unit]] = {}
    for unit in free:
        for name in unit.classes or ("",):
            queues.setdefault(name, []).append(unit)
    for name in sorted(queues, key=lambda name: (not name, counts[name], name)):
        lacks = wanted.get(name, room)
        for unit in queues[name]:
            if unit.group not in placed:
                options = range(len(shares))
                place(unit, max(options, key=lambda n: (lacks[n], room[n], fold(key, unit.group, n))))
    return parts


def _keep_classes(parts: list[list[_Unit]], counts: Counter[str]) -> list[list[_Unit]]:
    """Take units out of validation where a fold would hold all units of a class, so that training has every class."""
    checked = []
    for part in parts:
        left = Counter(counts)
        valid = []
        for unit in part:
            if _leaves_all(unit, left):
                left.subtract(unit.classes)
                valid.append(unit)
        checked.append(valid)
    return checked

"""Splits: no example on two sides, classes in proportion, the same whatever the order of the file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.chance import fold
from etude.pick.labels import Labelled
from etude.pick.splits import hold_out, make_folds, plan_folds
from etude.tasks.data.examples import Examples


def make_labelled(strata: Sequence[Sequence[str]], inputs: Sequence[int] | None = None) -> Labelled:
    """Examples with these classes; equal `inputs` are equal texts."""
    numbers = list(range(len(strata))) if inputs is None else list(inputs)
    examples = Examples([f"text {n}" for n in numbers], "t.csv", [f"t.csv:{n + 2}" for n in range(len(strata))])
    records = [{"text": f"text {n}", "label": ",".join(classes)} for n, classes in zip(numbers, strata, strict=True)]
    return Labelled("classify", {}, examples, records, [frozenset(c) for c in strata], [fold("in", n) for n in numbers])


single = st.lists(st.sampled_from("aaaaabbbcd").map(lambda name: [name]), min_size=2, max_size=60)
tags = st.lists(st.lists(st.sampled_from("OOOOPLMX"), min_size=1, max_size=4), min_size=2, max_size=40)
seeds = st.integers(0, 5)


@settings(max_examples=60, deadline=None)
@given(strata=single, seed=seeds, share=st.sampled_from([0.1, 0.2, 0.25, 0.5]))
def test_held_out_classes_are_in_proportion(strata: list[list[str]], seed: int, share: float) -> None:
    labelled = make_labelled(strata)
    rest, held = hold_out(labelled, share, seed)
    assert sorted([*rest, *held]) == list(range(len(strata)))
    counts = Counter(name for (name,) in strata)
    held_counts = Counter(strata[index][0] for index in held)
    for name, count in counts.items():
        assert abs(held_counts[name] - share * count) <= 1
        assert held_counts[name] < count, "a class without a training example"
        assert count > 1 or not held_counts[name]


@settings(max_examples=60, deadline=None)
@given(strata=single, seed=seeds, folds=st.integers(2, 6), repeats=st.integers(1, 3))
def test_folds_validate_every_example_once_a_repeat(
    strata: list[list[str]], seed: int, folds: int, repeats: int
) -> None:
    labelled = make_labelled(strata)
    counts = Counter(name for (name,) in strata)
    covered = np.zeros(len(strata), int)
    parts = make_folds(labelled, folds, repeats, seed)
    assert len(parts) == folds * repeats
    for part in parts:
        assert sorted([*part.train, *part.valid]) == list(range(len(strata)))
        covered[part.valid] += 1
        assert {strata[index][0] for index in part.train} == set(counts)
        valid = Counter(strata[index][0] for index in part.valid)
        assert all(abs(valid[name] - count / folds) < 1 for name, count in counts.items() if count > 1)
    for index, (name,) in enumerate(strata):
        assert covered[index] == (0 if counts[name] == 1 else repeats)
    sizes = [len(part.valid) for part in parts]
    assert max(sizes) - min(sizes) <= 1


@settings(max_examples=60, deadline=None)
@given(strata=tags, seed=seeds, folds=st.integers(2, 5))
def test_folds_of_tags_train_every_tag(strata: list[list[str]], seed: int, folds: int) -> None:
    labelled = make_labelled(strata)
    names = set(labelled.classes)
    covered = np.zeros(len(strata), int)
    for part in make_folds(labelled, folds, 1, seed):
        assert not set(part.train.tolist()) & set(part.valid.tolist())
        assert {name for index in part.train for name in strata[index]} == names
        covered[part.valid] += 1
    assert covered.max() <= 1


@settings(max_examples=60, deadline=None)
@given(strata=tags, seed=seeds)
def test_a_tag_of_two_sentences_is_held_out_too(strata: list[list[str]], seed: int) -> None:
    labelled = make_labelled(strata)
    rest, held = hold_out(labelled, 0.4, seed)
    assert {name for index in rest for name in strata[index]} == set(labelled.classes)
    counts = Counter(name for classes in strata for name in set(classes))
    free = [index for index, classes in enumerate(strata) if all(counts[name] > 1 for name in classes)]
    if len(held) == round(0.4 * len(free)) and len(held) >= len(counts):  # room for one of each
        held_tags = {name for index in held for name in strata[index]}
        for name in counts:
            if name not in held_tags:  # only where every choice would have emptied a tag of the training side
                left = Counter(tag for index in rest for tag in set(strata[index]))
                assert all(any(left[tag] == 1 for tag in strata[index]) for index in free if name in strata[index])


@settings(max_examples=40, deadline=None)
@given(inputs=st.lists(st.integers(0, 12), min_size=4, max_size=40), seed=seeds, data=st.data())
def test_equal_inputs_stay_together_in_any_order(inputs: list[int], seed: int, data: st.DataObject) -> None:
    strata = [data.draw(st.sampled_from(["a", "b"])) for _ in inputs]
    order = data.draw(st.permutations(range(len(inputs))))
    labelled = make_labelled([[name] for name in strata], inputs)
    shuffled = labelled.take(order)
    pairs = [hold_out(labelled, 0.3, seed), *make_folds(labelled, 3, 2, seed)]
    again = [hold_out(shuffled, 0.3, seed), *make_folds(shuffled, 3, 2, seed)]
    for (train, valid), (train_again, valid_again) in zip(pairs, again, strict=True):
        assert not {inputs[i] for i in train} & {inputs[i] for i in valid}
        assert {strata[i] for i in train} == set(strata)
        assert sorted(train) == sorted(order[i] for i in train_again)
        assert sorted(valid) == sorted(order[i] for i in valid_again)


def test_kinds_without_classes_are_split_plainly() -> None:
    labelled = make_labelled([[]] * 50)
    rest, held = hold_out(labelled, 0.2, 0)
    assert (len(rest), len(held)) == (40, 10)
    folds = make_folds(labelled, 5, 2, 0)
    assert all(len(part.valid) == 10 for part in folds)
    assert sorted(np.concatenate([part.valid for part in folds])) == sorted([*range(50)] * 2)


def test_another_seed_is_another_split() -> None:
    labelled = make_labelled([["a"], ["b"]] * 50)
    assert hold_out(labelled, 0.2, 0)[1].tolist() != hold_out(labelled, 0.2, 1)[1].tolist()
    first, second = make_folds(labelled, 5, 2, 0)[::5]
    assert first.valid.tolist() != second.valid.tolist()


def test_folds_are_repeated_where_labels_are_few() -> None:
    assert plan_folds(3) == (3, 3)
    assert plan_folds(100, 6) == (5, 3)
    assert plan_folds(400, 6) == (5, 1)
    assert plan_folds(1000, 6) == (1, 1)
    assert plan_folds(1000, 150) == (5, 1)
    (part,) = make_folds(make_labelled([["a"], ["b"]] * 600), 1, 1, 0)
    assert len(part.valid) == 500
    (part,) = make_folds(make_labelled([["a"], ["b"]] * 2000), 1, 1, 0)
    assert len(part.valid) == 800


def test_nonsense_is_refused() -> None:
    labelled = make_labelled([["a"], ["b"]] * 5)
    with pytest.raises(ValueError, match="share"):
        hold_out(labelled, 1.0, 0)
    with pytest.raises(ValueError, match="folds"):
        make_folds(labelled, 0, 1, 0)


def test_tags_are_held_out_in_proportion() -> None:
    draw = np.random.default_rng(0)
    strata = [[name for name, chance in zip("OPLMX", (1, 0.4, 0.3, 0.1, 0.02), strict=True) if draw.random() < chance]
              for _ in range(400)]  # fmt: skip
    labelled = make_labelled(strata)
    parts = [(0.2, hold_out(labelled, 0.2, 0)[1]), *((0.25, part.valid) for part in make_folds(labelled, 4, 1, 0))]
    for share, indices in parts:
        for name, count in Counter(tag for tags in strata for tag in tags).items():
            assert abs(sum(name in strata[index] for index in indices) - share * count) <= 3

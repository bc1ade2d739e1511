"""A column in which each example has a label of its own is told; few labels, or tags, are not."""

from __future__ import annotations

import pytest

from etude.tasks.data.single_labels import find_single_labels, warn_of_single_labels


def test_labels_of_one_example_are_found() -> None:
    strata = [frozenset({name}) for name in ("a", "b", "b", "c", "c")]
    assert find_single_labels(strata) == ["a"]
    assert find_single_labels(strata, [1, 2, 2, 3, 4]) == ["a", "b"], "the same input twice is one example"


def test_a_label_each_is_told_and_few_are_not(caplog: pytest.LogCaptureFixture) -> None:
    for count in range(300):
        names = [frozenset({str(number)}) for number in range(count)]
        if count < 20:
            warn_of_single_labels("a.csv", names)
    warn_of_single_labels("a.csv", [frozenset({str(number % 100)}) for number in range(300)])
    warn_of_single_labels("a.csv", [frozenset({str(number), "O"}) for number in range(300)])
    warn_of_single_labels("a.csv", [frozenset()] * 300)
    assert not caplog.messages
    warn_of_single_labels("a.csv", names)
    assert caplog.messages == [
        "a.csv: 299 of 299 examples have a label that no other has, so there is nothing to learn from them. "
        "Is the column of the labels the right one? -c label=NAME names another."
    ]

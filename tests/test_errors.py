"""Hints for mistyped names: the nearest, all that are equally near, or everything there is, where that is not much."""

from __future__ import annotations

import pickle

import pytest

from etude.errors import UserError, suggest_name


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("widht", ["width", "heads"], " Did you mean 'width'?"),
        ("rate", ["short_rate", "pair_rate", "mask_rate"], " Did you mean 'pair_rate' or 'mask_rate'?"),
        ("q", ["width", "heads"], " Known: heads, width."),
        ("q", [], ""),
        ("q", [f"name-{number}" for number in range(1000)], ""),
    ],
)
def test_hints(name: str, known: list[str], hint: str) -> None:
    assert suggest_name(name, known) == hint


def test_advice_for_the_command_line_is_a_part_of_the_message() -> None:
    error = UserError("The text is empty.", "Leave it out with --skip-bad.")
    assert str(error) == "The text is empty. Leave it out with --skip-bad." and error.message == "The text is empty."
    assert str(UserError("No file.")) == UserError("No file.").message == "No file."
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.message, copy.advice) == (str(error), error.message, error.advice)

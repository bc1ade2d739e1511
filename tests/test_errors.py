"""Hints for mistyped names: the nearest, all that are equally near, or everything there is."""

from __future__ import annotations

import pytest

from etude.errors import suggest_name


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("widht", ["width", "heads"], " Did you mean 'width'?"),
        ("rate", ["short_rate", "pair_rate", "mask_rate"], " Did you mean 'pair_rate' or 'mask_rate'?"),
        ("q", ["width", "heads"], " Known: heads, width."),
        ("q", [], ""),
    ],
)
def test_hints(name: str, known: list[str], hint: str) -> None:
    assert suggest_name(name, known) == hint

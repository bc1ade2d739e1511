"""YAML as the files of Etude have it: what plain words mean, and that what is written reads back."""

from __future__ import annotations

import math
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from etude.errors import UserError
from etude.plain_yaml import Writer, read_yaml


def _value(text: str) -> Any:
    values, _ = read_yaml(text, "here")
    return values["value"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("6", 6),
        ("-6", -6),
        ("1_000_000", 1_000_000),
        ("3e-4", 3e-4),  # a word in YAML 1.1
        ("1e9", 1e9),
        ("1.5E+3", 1500.0),
        (".5", 0.5),
        ("0.0", 0.0),
        ("true", True),
        ("false", False),
        ("null", None),
        ("", None),
        ("~", None),
        ("[0.9, 0.95]", [0.9, 0.95]),
        ("[]", []),
        ("gelu", "gelu"),
        ("no", "no"),  # false in YAML 1.1
        ("on", "on"),
        ("'6'", "6"),
        ("007", 7.0),
        ("2020-01-01", "2020-01-01"),
        ("12:30", "12:30"),  # 750 in YAML 1.1
        ("wordpiece:8000", "wordpiece:8000"),
        ("e5", "e5"),
        ("1e", "1e"),
        ("-", "-"),
        ("한국어", "한국어"),
    ],
)
def test_plain_words_mean_what_they_look_like(text: str, value: Any) -> None:
    if text == "-":
        with pytest.raises(UserError):
            _value(f"value: {text}")
        return
    read_value = _value(f"value: {text}")
    assert read_value == value
    assert type(read_value) is type(value)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(PLAIN)
@example("\x85")
@example("a\u2028b\u2029\n\x85 c")
def test_what_is_written_reads_back(value: Any) -> None:
    text = yaml.dump({"value": value}, Dumper=Writer, allow_unicode=True)
    back = _value(text)
    assert back == value
    assert yaml.safe_load(text)["value"] == value  # and any other YAML reader agrees


def test_infinite_numbers_read_back() -> None:
    assert _value(yaml.dump({"value": math.inf}, Dumper=Writer)) == math.inf

"""What goes to a terminal or to another program."""

from __future__ import annotations

import json

import pytest

from etude.cli.printing import escape_controls, make_console, to_json


def test_json_has_no_infinity() -> None:
    values = {"perplexity": float("inf"), "spread": [1.5, float("nan"), (float("-inf"), "가")], "count": 3}
    text = to_json(values)
    assert json.loads(text, parse_constant=lambda name: 1 / 0) == {
        "perplexity": None, "spread": [1.5, None, [None, "가"]], "count": 3
    }  # fmt: skip
    assert "가" in text and to_json({"a": 1.5}) == '{"a": 1.5}'


def test_control_characters_are_shown() -> None:
    assert escape_controls("a\tb\n가") == "a\tb\n가" and "\x1b" not in escape_controls("\x1b[31mred")


def test_a_console_prints_what_it_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.table import Table

    table = Table(show_header=False)
    table.add_row("tokenizer", "word:100: 18 ids", "[bold]")
    console = make_console()
    console.print(table)
    console.print("bpe:100:x")
    printed = capsys.readouterr().out
    assert "word:100: 18 ids" in printed and "bpe:100:x" in printed and "[bold]" in printed, "no emoji, no markup"

"""Line ends of streams: returns end lines only where no line feed does."""

from __future__ import annotations

import io

import pytest

from etude.text.line_ends import split_returns


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", []),
        ("a", ["a"]),
        ("a\rb\r\rc", ["a\r", "b\r", "\r", "c"]),
        ("a\rb\r", ["a\r", "b\r"]),
        ("a\rb\nc\rd", ["a\rb\n", "c\rd"]),
        ("a\r\nb\r\n", ["a\r\n", "b\r\n"]),
    ],
)
def test_a_stream_is_cut_at_its_line_ends(text: str, lines: list[str]) -> None:
    assert list(split_returns(io.StringIO(text, newline="\n"))) == lines


def test_no_line_waits_for_the_next() -> None:
    def read() -> object:
        yield "first\n"
        raise AssertionError("asked for too early")

    assert next(split_returns(read())) == "first\n"  # type: ignore[arg-type]

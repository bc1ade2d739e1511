"""Lines that a verb reads: of a file or of standard input, in their encoding; and what is wrong with them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TextIO

from etude.errors import UserError, explain_no_file
from etude.verbs.paths import require_path
from etude.verbs.text_sources import explain_encoding


def input_path(file: str | Path | None) -> Path | None:
    """The path of an input; None for standard input, which `-` stands for too."""
    return None if file is None or str(file) == "-" else Path(require_path("file", file))


def open_lines(path: Path | None, encoding: str | None) -> TextIO:
    """Open a file, or standard input, for its lines; UTF-8 where no encoding is named."""
    source: str | int = sys.stdin.fileno() if path is None else str(path)
    # not universal line ends: texts may hold returns, U+2028 and its kind
    return open(source, encoding=encoding or "utf-8-sig", newline="\n", closefd=path is not None)


def explain_decoding(path: Path | None, encoding: str | None) -> UserError:
    """The error of input that is not in its encoding."""
    if encoding is None:
        return explain_encoding(path, has_option=True)
    return UserError(
        f"{path or 'Standard input'} is not text in {encoding}: name another --encoding, or none for UTF-8."
    )


def require_lines(path: Path | None, verb: str) -> None:
    """Refuse a path that is no file; a text in its place, as `fill` and `generate` take, is told the way it goes."""
    if path is not None and not path.is_file():
        advice = "" if path.is_dir() else f"A text itself goes in by standard input: echo 'TEXT' | etude {verb} RUN."
        raise UserError(explain_no_file(path), advice)

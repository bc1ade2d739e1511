"""Text that a verb reads: a file or a corpus; and what is wrong with a file that is not UTF-8."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from etude.errors import UserError

if TYPE_CHECKING:
    from etude.text.corpus.corpus import Corpus


def read_source(name: str | Path, part: str) -> str | Corpus:
    """The text of a file, or a part of a corpus, here or in a store."""
    from etude.text.corpus.corpus import Corpus
    from etude.text.remote.urls import is_url, make_local

    name = make_local(name)
    if is_url(name):
        return Corpus.open(name, part)
    path = Path(name)
    if path.is_dir():
        return Corpus.open(path, part)
    try:
        return path.read_text(encoding="utf-8-sig")  # without the byte order mark of an editor
    except FileNotFoundError:
        raise UserError(f"There is no file {path}. Give a text file, or the folder of a prepared corpus.") from None
    except UnicodeDecodeError:
        raise explain_encoding(path) from None


def explain_encoding(path: Path | None, has_option: bool = False) -> UserError:
    """The error of a file, or of standard input, whose bytes are not UTF-8; `has_option`: the verb has --encoding."""
    if path is None and has_option:
        return UserError("Standard input is not UTF-8. Name its encoding: --encoding cp949, if it is Korean Windows'.")
    if path is None:
        return UserError("Standard input is not UTF-8. Convert it: iconv -f CP949 -t UTF-8, if it is Korean Windows'.")
    from etude.text.encodings import suggest_encoding

    with path.open("rb") as lines:
        number = next((number for number, line in enumerate(lines, 1) if not _is_utf8(line)), 1)
    hint = suggest_encoding(path, is_labelled=True, option="--encoding" if has_option else None)
    return UserError(f"{path}, line {number}, is not UTF-8.{hint}")


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True

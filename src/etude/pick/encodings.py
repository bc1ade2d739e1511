"""The encoding of a file that is not UTF-8: Korean spreadsheets write CP949, others UTF-16."""

from __future__ import annotations

import codecs
from pathlib import Path

SAMPLE_BYTES = 1 << 16
HANGUL_SHARE = 0.6  # of the characters beyond ASCII, from which on a text is taken for Korean


def suggest_encoding(path: str | Path) -> str:
    """Return a hint such as " It reads as CP949: ...", or "" where nothing fits."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(SAMPLE_BYTES)
    except OSError:
        return ""
    name = _guess_encoding(data)
    return f" It reads as {name}: iconv -f {name} -t UTF-8 turns it into UTF-8." if name else ""


def _guess_encoding(data: bytes) -> str:
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "UTF-16"
    try:
        text = codecs.getincrementaldecoder("cp949")().decode(data)  # a character cut at the end is no error
    except UnicodeDecodeError:
        return ""
    beyond = [letter for letter in text if not letter.isascii()]
    hangul = sum("\uac00" <= letter <= "\ud7a3" for letter in beyond)
    return "CP949" if beyond and hangul >= HANGUL_SHARE * len(beyond) else ""

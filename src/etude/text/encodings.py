"""The encoding of a file that is not UTF-8: Korean spreadsheets write CP949, others UTF-16, old Windows files CP1252.

A guess for a message, never used unasked: `etude prepare --encoding` reads such text.
"""

from __future__ import annotations

import codecs
import shlex
from functools import lru_cache
from pathlib import Path

from etude.errors import UserError, suggest_name

SAMPLE_BYTES = 1 << 16
HANGUL_SHARE = 0.6  # of the characters beyond ASCII, from which on a text is taken for Korean
LATIN_SHARE = 0.9  # of them that a text in Western European letters has in letters and marks of print
MOST_BEYOND = 0.3  # of all characters: more is another alphabet
LATIN = frozenset(chr(code) for code in range(0xC0, 0x100)) - {"×", "÷"} | frozenset("ŒœŠšŽžŸƒªºß")
PRINT = frozenset("€‚„…†‡‰‹›‘’“”•–—™¡¢£§©«®°±²³´µ·»¼½¾¿\xa0")
NAMES = {"CP949": "CP949 (Korean Windows)", "CP1252": "CP1252 (Windows-1252, Western European)"}
COMPRESSED = (".gz", ".xz", ".zst", ".bz2", ".zip")
KNOWN = ("cp1252", "cp949", "euc_kr", "latin_1", "utf-16", "shift_jis", "gb18030", "big5", "cp1251")
NO_TEXT = ("idna", "punycode", "unicode_escape", "raw_unicode_escape")  # codecs of domain names and of program code
UTF8 = ("utf-8", "utf8", "utf_8", "utf-8-sig")


def suggest_encoding(path: str | Path, is_labelled: bool = False, option: str | None = None) -> str:
    """Return a hint such as " It reads as CP949 ...".

    Where nothing fits it is "", or for a labelled file what can be done all the same. `option`: how the reader of
    such a file is told its encoding, --encoding or a setting's name and colon.
    """
    try:
        status = Path(path).stat()
        name = _guess_of_file(str(path), status.st_size, status.st_mtime_ns)
    except (OSError, ValueError):
        name = ""
    if not name:
        other = f" Name its encoding, as in {option} cp1252, or save it as UTF-8." if option else " Convert it."
        return other if is_labelled else ""
    convert = f"iconv -f {name} -t UTF-8 {shlex.quote(str(path))} > converted{Path(path).suffix}"
    kind = f" It reads as {NAMES.get(name, name)}: "
    if option:
        return f'{kind}name that, {option} {name.lower()}, or save it as UTF-8 ("CSV UTF-8" in a spreadsheet).'
    if is_labelled:
        return f"{kind}save it as UTF-8 (\"CSV UTF-8\" in a spreadsheet), or '{convert}' converts it."
    return f"{kind}etude prepare reads it with --encoding {name.lower()}, and '{convert}' converts it to UTF-8."


@lru_cache(maxsize=8)
def _guess_of_file(path: str, size: int, modified: int) -> str:
    """The guess for a file as it is now; a file has many lines that ask."""
    if Path(path).suffix.lower() in COMPRESSED:
        return ""
    with Path(path).open("rb") as file:
        return guess_encoding(file.read(SAMPLE_BYTES))


def guess_encoding(data: bytes) -> str:
    """Return UTF-16, CP949 or CP1252, or "" where none of them fits the first bytes of a file."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "UTF-16"
    if _is_damaged_utf8(data):
        return ""
    for name, fits in (("CP949", _is_korean), ("CP1252", _is_western)):
        try:
            text = codecs.getincrementaldecoder(name)().decode(data)  # a character cut at the end is no error
        except UnicodeDecodeError:
            continue
        beyond = [letter for letter in text if not letter.isascii()]
        if beyond and fits(text, beyond):
            return name
    return ""


def _is_damaged_utf8(data: bytes) -> bool:
    """Whether more characters beyond ASCII are valid UTF-8 than not: in another encoding hardly any is, by chance."""
    text = data.decode("utf-8", "replace")
    damaged = text.count("\ufffd")
    return len(text) - len(text.encode("ascii", "ignore")) > 2 * damaged


def _is_korean(text: str, beyond: list[str]) -> bool:
    """Whether most of what is not ASCII are syllables of the national standard, as of every Korean text.

    Quotation marks of CP1252 before a letter are syllables of CP949, too, but of its rare extension.
    """
    hangul = sum("\uac00" <= letter <= "\ud7a3" and len(letter.encode("euc_kr", "ignore")) == 2 for letter in beyond)
    return hangul >= HANGUL_SHARE * len(beyond)


def _is_western(text: str, beyond: list[str]) -> bool:
    usual = sum(letter in LATIN or letter in PRINT for letter in beyond)
    return usual >= LATIN_SHARE * len(beyond) and len(beyond) <= MOST_BEYOND * len(text)


def check_encoding(name: str | None) -> str | None:
    """Return the name of an encoding to decode, None for UTF-8; raise UserError where there is none of that name."""
    if name is None or name.lower() in UTF8:
        return None
    try:
        codec = codecs.lookup(name)
        "a".encode(codec.name)  # refuses what is no encoding of text, such as base64
        if codec.name.replace("-", "_") in NO_TEXT:
            raise LookupError(codec.name)
    except (LookupError, ValueError):
        hint = suggest_name(name, KNOWN)
        usual = ", ".join(KNOWN)
        raise UserError(
            f"There is no encoding of text '{name}'.{hint} Python's names are known, such as {usual}."
        ) from None
    return codec.name

"""Translation memories (.tmx, Translation Memory eXchange 1.4): units of one sentence in several languages.

    <tu><tuv xml:lang="en"><seg>A cat.</seg></tuv><tuv xml:lang="ko-KR"><seg>고양이.</seg></tuv></tu>

A file is parsed as it is read, whatever its size; a unit or a tag that would fill the memory is refused. A language
matches a variant of it (ko and ko-KR), an exact name first. Codes of the original format inside a segment (bpt, ept,
it, ph, ut) are no text and are dropped. Declarations of entities are refused: nothing in such a file needs them, and a
few of them may expand to gigabytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from xml.parsers import expat

from etude.errors import UserError

CHUNK = 1 << 16
LARGEST_TOKEN = 1 << 22  # bytes of a tag or a comment: the parser holds it whole, and begins it anew with each chunk
LARGEST_UNIT = 1 << 24  # characters of a unit in all its languages
DEEPEST = 256  # elements in each other; a segment of a unit stands at five
CODES = {"bpt", "ept", "it", "ph", "ut"}


class TmxParser:
    """Collects the units of a file while it is fed."""

    def __init__(self, path: str, names: tuple[str, str]) -> None:
        self.path, self.names = path, names
        self.units: list[dict[str, str]] = []  # complete, in order
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._characters
        self._parser.EntityDeclHandler = self._refuse_entity
        self._variants: dict[str, str] = {}  # language -> segment, of the current unit
        self._line = 0  # of the current unit
        self._language = ""
        self._text: list[str] | None = None  # of the current segment
        self._codes = 0  # how deep inside elements that hold codes
        self._depth = 0  # of elements
        self._size = 0  # characters of the current unit
        self._fed = 0  # bytes

    def feed(self, data: bytes, is_last: bool) -> None:
        """Parse some bytes more; UserError where they are no XML."""
        try:
            self._parser.Parse(data, is_last)
        except expat.ExpatError as problem:
            message = expat.ErrorString(problem.code)
            raise UserError(f"{self.path}, line {problem.lineno}: not readable as TMX: {message}.") from None
        except (LookupError, ValueError) as problem:  # of the table of characters that the declaration asks for
            raise UserError(
                f"{self.path}: its encoding is not read: {problem}. Convert the file to UTF-8, and name that in its "
                "first line."
            ) from None
        self._fed += len(data)
        if self._fed - max(0, self._parser.CurrentByteIndex) > LARGEST_TOKEN:
            raise self._too_large(f"a tag or a comment has more than {LARGEST_TOKEN >> 20} MB")

    def _too_large(self, what: str) -> UserError:
        return UserError(f"{self.path}, line {self._parser.CurrentLineNumber}: {what}. Is it a translation memory?")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > DEEPEST:
            raise self._too_large(f"more than {DEEPEST} elements in each other")
        if name == "tu":
            self._variants, self._line, self._size = {}, self._parser.CurrentLineNumber, 0
        elif name == "tuv":
            self._language = attributes.get("xml:lang") or attributes.get("lang") or ""
        elif name == "seg":
            self._text, self._codes = [], 0
        elif name in CODES and self._text is not None:
            self._codes += 1

    def _end(self, name: str) -> None:
        self._depth -= 1
        if name == "seg" and self._text is not None:
            self._variants.setdefault(self._language.lower(), "".join(self._text))
            self._text = None
        elif name in CODES and self._text is not None:
            self._codes -= 1
        elif name == "tu":
            self.units.append({name: self._find_variant(name) for name in self.names})

    def _characters(self, text: str) -> None:
        if self._text is not None and not self._codes:
            self._text.append(text)
            self._size += len(text)
            if self._size > LARGEST_UNIT:
                raise self._too_large(f"a unit has more than {LARGEST_UNIT >> 20} million characters")

    def _find_variant(self, name: str) -> str:
        wanted = name.lower()
        if wanted in self._variants:
            return self._variants[wanted]
        for language, text in self._variants.items():
            if language.replace("_", "-").split("-")[0] == wanted:
                return text
        languages = ", ".join(self._variants) or "none"
        place = f"{self.path}, line {self._line}"
        raise UserError(f"{place}: the unit has no text in '{name}' (its languages: {languages}).")

    def _refuse_entity(self, *declaration: object) -> None:
        line = self._parser.CurrentLineNumber
        raise UserError(f"{self.path}, line {line}: declares an entity, which is not read. Remove the declaration.")


def read_units(path: str, read: Callable[[int], bytes], names: tuple[str, str]) -> Iterator[dict[str, str]]:
    """Yield source and target of every unit, by the names of the two languages."""
    parser = TmxParser(path, names)
    while True:
        data = read(CHUNK)
        parser.feed(data, is_last=not data)
        yield from parser.units
        parser.units.clear()
        if not data:
            return

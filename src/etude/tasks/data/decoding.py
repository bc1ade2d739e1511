"""The encoding of labelled files: UTF-8, unless a verb names another for those it reads.

    with decoding("cp949"):
        examples = module.read(path, columns)

It holds for every file that is opened inside, whatever kind of task reads it, a plugin's too.
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from etude.errors import UserError
from etude.text.encodings import check_encoding, suggest_encoding

CHUNK_BYTES = 1 << 16


class EncodingError(UserError):
    """Bytes of a file that are no text in its encoding; the message says what to do."""


@dataclass(frozen=True)
class Decoding:
    """What the reader of a file was told."""

    name: str | None = None  # as Python calls it; None: UTF-8
    option: str | None = None  # how the user names another


PLAIN = Decoding()
_DECODING: ContextVar[Decoding] = ContextVar("decoding", default=PLAIN)


@contextmanager
def decoding(name: str | None, option: str = "--encoding") -> Iterator[None]:
    """Read files of examples in this encoding, UTF-8 for None; UserError where there is none of that name.

    `option`: how messages say that another can be named.
    """
    token = _DECODING.set(Decoding(check_encoding(name), option))
    try:
        yield
    finally:
        _DECODING.reset(token)


def recode(path: Path, file: BinaryIO) -> BinaryIO:
    """Return the bytes of a file as UTF-8, whatever encoding was named for it."""
    chosen = _DECODING.get()
    return file if chosen.name is None else cast(BinaryIO, io.BufferedReader(_Recoder(path, file, chosen)))


def advise_encoding(path: Path) -> str:
    """Return what to do with a file that is not UTF-8, as the end of a message."""
    return suggest_encoding(path, is_labelled=True, option=_DECODING.get().option)


class _Recoder(io.RawIOBase):
    """The bytes of a file as UTF-8."""

    def __init__(self, path: Path, file: BinaryIO, chosen: Decoding) -> None:
        assert chosen.name is not None and chosen.option is not None
        self.path, self.file, self.encoding = path, file, chosen.name
        self.option = chosen.option.rstrip(":")
        self.decoder = codecs.getincrementaldecoder(chosen.name)()
        self.pending, self.has_ended = b"", False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object, /) -> int:
        while not self.pending and not self.has_ended:
            data = self.file.read(CHUNK_BYTES)
            self.has_ended = not data
            try:
                self.pending = self.decoder.decode(data, self.has_ended).encode("utf-8", "surrogatepass")
            except UnicodeDecodeError:
                raise EncodingError(
                    f"{self.path} is not text in {self.encoding}: name another {self.option}, or none for UTF-8."
                ) from None
        target = memoryview(buffer)  # type: ignore[arg-type]
        size = min(len(target), len(self.pending))
        target[:size] = self.pending[:size]
        self.pending = self.pending[size:]
        return size

    def close(self) -> None:
        self.file.close()
        super().close()

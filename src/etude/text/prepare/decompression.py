"""Input files: decompressed (gzip, xz, zstd) and hashed while they are read; lines of text end in line feeds."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from etude.errors import UserError, WriteError
from etude.text.line_ends import SAMPLE_BYTES, has_return_ends
from etude.text.prepare.sources import SourceFile
from etude.text.prepare.zstd_stream import open_zstd
from etude.text.remote.urls import is_url

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

DECOMPRESSION_ERRORS = (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile)  # what reading a broken archive raises


@contextmanager
def explain_damage(path: str) -> Iterator[None]:
    """Raise UserError, naming the file, where it cannot be unpacked or read."""
    try:
        yield
    except DECOMPRESSION_ERRORS as problem:
        raise UserError(f"{path} is damaged and cannot be unpacked: {problem}.") from None
    except WriteError:  # a store that does not answer: what is done stays
        raise
    except OSError as problem:
        raise UserError(f"{path} cannot be read: {problem.strerror or problem}.") from None


class _Readable(Protocol):
    """A stream of decompressed bytes."""

    def read(self, size: int, /) -> bytes: ...


class InputFile:
    """A file open for reading; a hub data set has nothing to open."""

    def __init__(self, file: SourceFile, hashing: bool, encoding: str | None = None, errors: str = "strict") -> None:
        """`encoding`: of its text, where that is not UTF-8; it is read as if it were, with `errors` as `decode` has."""
        self.file, self.hashing, self.encoding = file, hashing, encoding
        self.raw: BinaryIO | None = None
        self.head: bytes | None = None  # that was read to look at it, and is still to be returned; None: nothing was
        self.has_return_ends = False
        if file.format == "hub":
            return
        self.raw = _open_raw(file)
        self.hash = hashlib.sha256()
        hashed = io.BufferedReader(_HashingReader(self.raw, self.hash), 1 << 18) if hashing else self.raw
        self.source = hashed
        self.stream = DECOMPRESSORS[file.compression](self.source)
        if encoding is not None:
            self.stream = _Transcoder(self.stream, encoding, errors, file.path)

    def position(self) -> int:
        """Return how many bytes of the file were read so far."""
        return self.raw.tell() if self.raw else 0

    def skip(self, offset: int) -> None:
        """Skip the first bytes of the decompressed text."""
        if not offset:
            return
        if self.file.compression or self.hashing or self.encoding is not None:
            while offset and (chunk := self.read(min(offset, 1 << 20))):
                offset -= len(chunk)
        else:
            self._look_ahead()
            self.head = b""
            self.source.seek(offset)

    def read(self, size: int) -> bytes:
        """Read exactly `size` bytes, or all that is left; returns that end lines are line feeds."""
        if self.head is None:
            self._look_ahead()
        if self.head:
            data, self.head = self.head[:size], self.head[size:]
            data += self._read_stream(size - len(data))
        else:
            data = self._read_stream(size)
        return data.replace(b"\r", b"\n") if self.has_return_ends else data  # as many bytes: offsets stay

    def _look_ahead(self) -> None:
        """Find out how lines end; called before anything is read."""
        self.head = self._read_stream(SAMPLE_BYTES) if self.file.format != "parquet" else b""
        self.has_return_ends = has_return_ends(self.head)

    def _read_stream(self, size: int) -> bytes:
        """Read exactly `size` bytes, or all that is left; decompressors may return fewer."""
        chunks = []
        while size and (chunk := self.stream.read(size)):
            chunks.append(chunk)
            size -= len(chunk)
        return b"".join(chunks)

    def finish(self) -> str | None:
        """Read to the end and return the SHA-256 of the file as it is on disk; None without hashing."""
        if self.raw is None or not self.hashing:
            return None
        while self.source.read(1 << 20):
            pass
        return self.hash.hexdigest()

    def close(self) -> None:
        if self.raw is not None:
            self.raw.close()


def _open_raw(file: SourceFile) -> BinaryIO:
    if not is_url(file.path):
        return Path(file.path).open("rb")
    from etude.text.remote.remote_file import RemoteFile  # plain paths do without

    return io.BufferedReader(RemoteFile(file.path, file.size), 1 << 18)


class _Transcoder:
    """A stream of text in some encoding, as UTF-8."""

    def __init__(self, stream: _Readable, encoding: str, errors: str, path: str) -> None:
        self.stream, self.encoding, self.path = stream, encoding, path
        self.decoder = codecs.getincrementaldecoder(encoding)(errors)
        self.pending, self.at_end, self.place = b"", False, 0

    def read(self, size: int, /) -> bytes:
        while not self.pending and not self.at_end:
            chunk = self.stream.read(1 << 16)
            self.at_end = not chunk
            try:
                text = self.decoder.decode(chunk, final=self.at_end)
            except UnicodeDecodeError as problem:
                raise UserError(
                    f"{self.path} is not {self.encoding}: a byte near {self.place + problem.start} is invalid. Its "
                    "encoding is named with --encoding; without the option it is UTF-8. Or go on with --errors "
                    "replace, which puts U+FFFD in its place."
                ) from None
            except UnicodeError as problem:  # UTF-16 and UTF-32 without the mark that says their byte order
                raise UserError(
                    f"{self.path} is not {self.encoding}: {problem}. Its encoding is named with --encoding, as in "
                    "--encoding utf-16-le where there is no such mark; without the option it is UTF-8."
                ) from None
            self.place += len(chunk)
            self.pending = text.encode("utf-8", "surrogatepass")
        piece, self.pending = self.pending[:size], self.pending[size:]
        return piece


class _HashingReader(io.RawIOBase):
    def __init__(self, raw: BinaryIO, digest: hashlib._Hash) -> None:
        self.raw, self.digest = raw, digest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        count = self.raw.readinto(buffer)  # type: ignore[attr-defined]
        self.digest.update(memoryview(buffer)[:count])
        return count


def _open_gzip(source: BinaryIO) -> gzip.GzipFile:
    return gzip.GzipFile(fileobj=source)


DECOMPRESSORS: dict[str, Callable[[BinaryIO], _Readable]] = {
    "": lambda source: source, "gz": _open_gzip, "xz": lzma.LZMAFile, "zst": open_zstd,
}  # fmt: skip

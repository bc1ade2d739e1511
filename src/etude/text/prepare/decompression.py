"""Files with their packing (gzip, xz, zstd) undone and their hash taken, as they are read."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from etude.text.prepare.sources import File

DAMAGE = (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile)  # what reading a broken archive raises


class Opened:
    """One file, open for reading; a hub data set has nothing to open."""

    def __init__(self, file: File, hashing: bool) -> None:
        self.file, self.hashing = file, hashing
        self.raw: BinaryIO | None = None
        if file.format == "hub":
            return
        self.raw = Path(file.path).open("rb")  # noqa: SIM115 (lives as long as this object)
        self.hash = hashlib.sha256()
        self.source: Any = io.BufferedReader(_Hashed(self.raw, self.hash), 1 << 18) if hashing else self.raw
        self.stream: Any = UNPACK[file.packing](self.source)

    def position(self) -> int:
        """Bytes of the file read so far."""
        return self.raw.tell() if self.raw else 0

    def skip(self, offset: int) -> None:
        """Passes over the first bytes of the unpacked text."""
        if self.file.packing or self.hashing:
            while offset and (chunk := self.stream.read(min(offset, 1 << 20))):
                offset -= len(chunk)
        else:
            self.stream.seek(offset)

    def read(self, size: int) -> bytes:
        """Exactly `size` bytes, or all that is left: unpackers give what they please."""
        chunks = []
        while size and (chunk := self.stream.read(size)):
            chunks.append(chunk)
            size -= len(chunk)
        return b"".join(chunks)

    def finish(self) -> str | None:
        """The hash of the whole file as it lies on disk."""
        if self.raw is None or not self.hashing:
            return None
        while self.source.read(1 << 20):
            pass
        return self.hash.hexdigest()

    def close(self) -> None:
        if self.raw is not None:
            self.raw.close()


class _Hashed(io.RawIOBase):
    def __init__(self, raw: BinaryIO, digest: Any) -> None:
        self.raw, self.digest = raw, digest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self.raw.readinto(buffer)  # type: ignore[attr-defined]
        self.digest.update(memoryview(buffer)[:count])
        return count


def _gzip(source: BinaryIO) -> gzip.GzipFile:
    return gzip.GzipFile(fileobj=source)


class _Zstd:
    """Unpacks zstd frames. The package's own reader takes a file that is cut short for a whole one; this does not."""

    CHUNK = 1 << 14  # packed bytes at a time: little, since all they unpack to is held

    def __init__(self, source: BinaryIO) -> None:
        import zstandard

        self.source, self.package = source, zstandard
        self.unpacker: Any = None  # of the frame being read
        self.rest = b""  # packed, read ahead
        self.ready = b""  # unpacked, not yet asked for

    def read(self, size: int) -> bytes:
        while not self.ready:
            packed = self.rest or self.source.read(self.CHUNK)
            self.rest = b""
            if not packed:
                if self.unpacker is not None:
                    raise EOFError("the file ends before its data does")
                return b""
            self.unpacker = self.unpacker or self.package.ZstdDecompressor().decompressobj()
            try:
                self.ready = self.unpacker.decompress(packed)
            except self.package.ZstdError as problem:
                raise EOFError(str(problem)) from None
            if self.unpacker.eof:
                self.rest, self.unpacker = self.unpacker.unused_data, None
        given, self.ready = self.ready[:size], self.ready[size:]
        return given


UNPACK: dict[str, Callable[[Any], Any]] = {"": lambda source: source, "gz": _gzip, "xz": lzma.LZMAFile, "zst": _Zstd}

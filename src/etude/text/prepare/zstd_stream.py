"""Decompressed zstd: in bounded memory, at the speed of the library, and only where the file is whole.

The package's stream reader decompresses as much as is asked for, but takes the end of a truncated file for the end of
the text. So the compressed bytes pass through a walk over the structure of frames (RFC 8878, section 3), which knows at
any byte whether a frame is complete. The walk reads three bytes a block of up to 128 KB.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, BinaryIO, cast

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAGIC = 0xFD2FB528
SKIPPABLE_MAGIC, SKIPPABLE_MASK = 0x184D2A50, 0xFFFFFFF0
RLE = 1  # a block of one repeated byte
MAX_WINDOW = 1 << 27  # bytes: what `zstd --long` writes and zstd reads without being told
CHUNK = 1 << 17


class ZstdReader(io.RawIOBase):
    """Reads the text of one or more zstd frames; EOFError where the file is damaged or not whole."""

    def __init__(self, source: BinaryIO) -> None:
        import zstandard

        self.error = zstandard.ZstdError
        self.frames = _FrameWalk(source)
        decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW)
        source = cast("BinaryIO", self.frames)
        self.stream = decompressor.stream_reader(source, read_size=CHUNK, read_across_frames=True)

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            self.frames.source.close()
        super().close()

    def readinto(self, buffer: WriteableBuffer) -> int:
        try:
            count: int = self.stream.readinto(buffer)
        except self.error as problem:
            raise EOFError(str(problem)) from None
        if not count and not self.frames.is_complete and memoryview(buffer).nbytes:
            raise EOFError("the file ends before its data does")
        return count


class _FrameWalk:
    """Passes bytes on to the decompressor and follows the frames and blocks in them."""

    def __init__(self, source: BinaryIO) -> None:
        self.source = source
        self.header = b""  # the bytes of a field that is not whole yet
        self.skip = 0  # bytes of a block, a checksum or a skippable frame still to come
        self.next = "magic"
        self.has_checksum = False

    @property
    def is_complete(self) -> bool:
        """Whether every frame so far has come to its end."""
        return self.next == "magic" and not self.header and not self.skip

    def read(self, size: int = -1, /) -> bytes:
        data = self.source.read(size)
        place = 0
        while place < len(data):
            if self.skip:
                step = min(self.skip, len(data) - place)
                self.skip -= step
                place += step
                continue
            needed = self._field_size() - len(self.header)
            self.header += data[place : place + needed]
            place += needed
            if len(self.header) >= self._field_size():
                self._take_field()
        return data

    def _field_size(self) -> int:
        if self.next == "descriptor" and self.header:
            descriptor = self.header[0]
            is_single = descriptor >> 5 & 1
            content = (1 if is_single else 0, 2, 4, 8)[descriptor >> 6]
            return 1 + (0 if is_single else 1) + (0, 1, 2, 4)[descriptor & 3] + content
        return {"magic": 4, "skippable": 4, "descriptor": 1, "block": 3}[self.next]

    def _take_field(self) -> None:
        field, self.header = self.header, b""
        number = int.from_bytes(field, "little")
        if self.next == "magic":
            is_skippable = number & SKIPPABLE_MASK == SKIPPABLE_MAGIC
            if not is_skippable and number != MAGIC:
                raise EOFError("the bytes behind a frame are no zstd")
            self.next = "skippable" if is_skippable else "descriptor"
        elif self.next == "skippable":
            self.skip, self.next = number, "magic"
        elif self.next == "descriptor":
            self.has_checksum, self.next = bool(field[0] >> 2 & 1), "block"
        else:
            is_last, kind, size = number & 1, number >> 1 & 3, number >> 3
            self.skip = 1 if kind == RLE else size
            if is_last:
                self.skip += 4 * self.has_checksum
                self.next = "magic"


def open_zstd(source: BinaryIO) -> BinaryIO:
    """Open a zstd file for its text; `readline` and iteration work, which the package's reader does not offer."""
    return io.BufferedReader(ZstdReader(source), CHUNK)

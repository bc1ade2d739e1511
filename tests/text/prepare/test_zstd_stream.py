"""zstd is read in bounded memory, as fast as gzip, and only where the file is whole."""

from __future__ import annotations

import io
import random
import tracemalloc

import pytest
import zstandard

from etude.text.prepare.zstd_stream import open_zstd

TEXT = b"The town has a market and a garden.\n" * 20_000


def pack(text: bytes, **options: bool) -> bytes:
    return zstandard.ZstdCompressor(3, **options).compress(text)  # type: ignore[arg-type]


FORMS = {
    "plain": pack(TEXT),
    "checksum": pack(TEXT, write_checksum=True),
    "no size": pack(TEXT, write_content_size=False),
    "frames": pack(TEXT[:100]) + pack(b"") + pack(TEXT[100:]),
    "skippable": b"\x53\x2a\x4d\x18\x05\0\0\0hello" + pack(TEXT),
    "random": pack(TEXT),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read(form: str) -> None:
    assert open_zstd(io.BytesIO(FORMS[form])).read() == TEXT
    assert sum(1 for _ in open_zstd(io.BytesIO(FORMS[form]))) == 20_000


@pytest.mark.parametrize("form", FORMS)
def test_a_file_that_is_not_whole_is_an_error(form: str) -> None:
    draw, data = random.Random(form), FORMS[form]
    ends = {0, len(pack(TEXT[:100])), len(pack(TEXT[:100]) + pack(b"")), 13}  # between frames nothing is missing
    for cut in {len(data) - 1, len(data) - 4, 1, 5, *(draw.randrange(1, len(data)) for _ in range(30))} - ends:
        with pytest.raises(EOFError):
            open_zstd(io.BytesIO(data[:cut])).read()
    with pytest.raises(EOFError):
        open_zstd(io.BytesIO(data + b"junk behind it")).read()


def test_one_long_line_is_read_in_bounded_memory() -> None:
    packed = pack(b"a" * (1 << 28))
    tracemalloc.start()
    stream = open_zstd(io.BytesIO(packed))
    total = 0
    while chunk := stream.read(1 << 16):
        total += len(chunk)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == 1 << 28 and peak < 1 << 22

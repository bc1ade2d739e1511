"""Lines of a file, decompressed ahead in a thread, checked to be UTF-8 text."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from etude.errors import UserError
from etude.text.prepare.decompression import DECOMPRESSION_ERRORS, InputFile
from etude.text.prepare.sources import SourceFile, refuse_binary

BLOCK_BYTES = 1 << 22  # of text at a time: a few hundredths of a second to parse
MAX_LINE_BYTES = 1 << 26
BOM = b"\xef\xbb\xbf"


@dataclass
class FileWatch:
    """How far a file is read, and its SHA-256 once it was read to the end."""

    position: int = 0  # bytes on disk
    sha256: str = ""


def read_lines(file: SourceFile, watch: FileWatch | None = None) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of the first line, lines without their ends) block by block; hashed where somebody watches."""
    input_file = InputFile(file, hashing=watch is not None)
    try:
        # decompressors release the lock of the interpreter: the next block unpacks while this one is parsed
        with ThreadPoolExecutor(1) as ahead:
            for block in _split_blocks(file.path, input_file, ahead):
                if watch is not None:
                    watch.position = input_file.position()
                yield block
        digest = input_file.finish()
    except DECOMPRESSION_ERRORS as problem:
        raise UserError(f"{file.path} is damaged and cannot be unpacked: {problem}.") from None
    except OSError as problem:
        raise UserError(f"{file.path} cannot be read: {problem.strerror or problem}.") from None
    finally:
        input_file.close()
    if watch is not None:
        watch.position, watch.sha256 = file.size, digest or ""


def _split_blocks(path: str, input_file: InputFile, ahead: ThreadPoolExecutor) -> Iterator[tuple[int, list[str]]]:
    line, left = 1, b""
    is_first = True
    pending = ahead.submit(input_file.read, BLOCK_BYTES)
    while True:
        block = pending.result()
        is_last = len(block) < BLOCK_BYTES
        if not is_last:
            pending = ahead.submit(input_file.read, BLOCK_BYTES)
        if is_first:
            refuse_binary(path, block[: 1 << 16])
            block, is_first = block.removeprefix(BOM), False
        block = left + block
        cut = len(block) if is_last else block.rfind(b"\n") + 1
        if not cut and not is_last:
            if len(block) > MAX_LINE_BYTES:
                raise UserError(f"{path}:{line}: the line is longer than {MAX_LINE_BYTES >> 20} MB. Is it text?")
            left = block
            continue
        block, left = block[:cut], block[cut:]
        if block:
            lines = _decode(path, line, block).replace("\r\n", "\n").split("\n")
            if not lines[-1]:
                lines.pop()
            yield line, lines
            line += len(lines)
        if is_last:
            return


def _decode(path: str, line: int, block: bytes) -> str:
    try:
        return block.decode()
    except UnicodeDecodeError as problem:
        line += block.count(b"\n", 0, problem.start)
        column = problem.start - block.rfind(b"\n", 0, problem.start)
        raise UserError(
            f"{path}:{line}: byte {column} of the line is not UTF-8. Convert the file: iconv -f ENCODING -t UTF-8."
        ) from None

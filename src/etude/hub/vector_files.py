"""Files of word vectors: word2vec text and binary, GloVe text, fastText's .bin (fasttext_files.py).

    word2vec          "W D" in the first line, then a line a word: the word and D numbers, parted by spaces.
                      fastText's .vec is the same, with a space at the end of each line
    word2vec-binary   "W D\\n", then for each word its bytes, a space and D little-endian float32; the original program
                      puts a newline behind them, gensim does not
    glove             as word2vec, without the first line; the last word may be <unk>

Words are read from the left up to the last D fields, because glove.840B has words with spaces in them. Numbers are
written with as many digits as float32 needs to be read back the same. Nothing is skipped in silence: a line that does
not fit is an error with its place, duplicate words are counted and logged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np

from etude.errors import UserError
from etude.hub.fasttext_files import MAGIC, MAX_WORD_BYTES, read_fasttext
from etude.hub.word_vectors import WordVectors

log = logging.getLogger("etude")

VectorFormat = Literal["word2vec", "word2vec-binary", "glove", "fasttext"]
UNKNOWN_WORD = "<unk>"  # GloVe's name for the mean of its rarest words
BLOCK_BYTES = 1 << 20
MAX_DIGITS = 15  # of a header's numbers: more than any file has bytes
# first bytes of packed files, as vectors are published -> what unpacks them
PACKED = {
    b"\x1f\x8b": "gunzip",
    b"PK\x03\x04": "unzip",
    b"BZh9": "bunzip2",
    b"\xfd7zXZ": "unxz",
    b"\x28\xb5\x2f\xfd": "unzstd",
}


def detect_format(path: Path) -> VectorFormat:
    """Detect the format of a file by its first bytes."""
    with _open(path) as file:
        start = file.read(BLOCK_BYTES)
    if start[:4] == MAGIC:
        return "fasttext"
    command = next((command for mark, command in PACKED.items() if start.startswith(mark)), None)
    if command is not None:
        raise UserError(f"{path} is packed. Unpack it first: {command} {path}")
    first, _, rest = start.partition(b"\n")
    fields = first.split()
    if len(fields) != 2 or not all(field.isdigit() for field in fields):
        return "glove"
    width, line = _parse_size(path, fields)[1], rest.split(b"\n", 1)[0]
    numbers = line.rstrip().rsplit(b" ", width)[1:]
    return "word2vec" if len(numbers) == width and all(map(_is_number, numbers)) else "word2vec-binary"


def read_vectors(path: str | Path, file_format: VectorFormat | None = None) -> WordVectors:
    """Read a file of any format; by default the format is detected."""
    path = Path(path)
    file_format = file_format or detect_format(path)
    if file_format == "fasttext":
        return read_fasttext(path).vectors()
    if file_format == "word2vec-binary":
        words, matrix = _read_binary(path)
    else:
        words, matrix = _read_text(path, file_format == "word2vec")
    if matrix.size and not (np.isfinite(matrix.min()) and np.isfinite(matrix.max())):
        row = int(np.flatnonzero(~np.isfinite(matrix).all(axis=1))[0])
        raise UserError(f"{path}: the vector of {words[row]!r} has a number that is not finite. Take it from a copy.")
    unknown = None
    if file_format == "glove" and words and words[-1] == UNKNOWN_WORD:
        unknown, words, matrix = matrix[-1], words[:-1], matrix[:-1]
    duplicates = len(words) - len(set(words))
    if duplicates:
        log.warning("%s: %d words come twice; the first of each counts.", path, duplicates)
    return WordVectors(words, matrix, unknown_row=unknown)


def write_vectors(vectors: WordVectors, path: str | Path, file_format: VectorFormat) -> None:
    """Write a file, or replace it.

    fastText's .bin needs more than words and vectors: see fasttext_files.py.
    """
    path = Path(path)
    bad_word = next((word for word in vectors.words if not word or any(letter in word for letter in " \n")), None)
    if bad_word is not None and (file_format != "glove" or "\n" in bad_word or not bad_word):
        raise UserError(f"The word {bad_word!r} cannot be written to {path}: a space ends a word in this form.")
    if file_format == "word2vec-binary":
        _write_binary(vectors, path)
    elif file_format in ("word2vec", "glove"):
        _write_text(vectors, path, file_format)
    else:
        raise ValueError(f"format {file_format}: see fasttext_files.write_fasttext")


# --- text -------------------------------------------------------------------------------------------


def _read_text(path: Path, header: bool) -> tuple[list[str], np.ndarray]:
    count, width = _read_size(path, header)
    size = path.stat().st_size
    if count * (2 * width + 1) > size + count:  # a digit and a space for each number
        raise UserError(f"{path}: {count:,} words of {width:,} numbers do not fit into its {size:,} bytes.")
    words: list[str] = []
    matrix = np.empty((count, width), np.float32)
    for place, line in _read_lines(path, 1 if header else 0):
        if len(words) == count:
            raise UserError(f"{place}: the first line of the file promises {count:,} words, and here is one more.")
        parts = line.rsplit(b" ", width)
        if len(parts) != width + 1:
            raise UserError(f"{place}: expected a word and {width} numbers, found {len(parts) - 1} numbers.")
        try:
            matrix[len(words)] = [float(part) for part in parts[1:]]
            words.append(parts[0].decode())
        except UnicodeDecodeError as problem:
            raise UserError(f"{place}: the word is not UTF-8 ({problem.reason}). Convert the file.") from None
        except ValueError as problem:
            raise UserError(f"{place}: expected a word and {width} numbers: {problem}.") from None
    if len(words) < count:
        raise UserError(f"{path}: the file ends after {len(words):,} of {count:,} words: it is not whole.")
    return words, matrix


def _read_size(path: Path, header: bool) -> tuple[int, int]:
    """Return the numbers of words and of dimensions, from the header or from the lines."""
    place, first = next(_read_lines(path, 0), (str(path), b""))
    fields = first.split()
    if header:
        if len(fields) != 2 or not all(field.isdigit() for field in fields):
            raise UserError(f"{place}: expected the numbers of words and of dimensions, found {first[:40]!r}.")
        return _parse_size(path, fields)
    width = 0
    for field in reversed(fields[1:]):
        if not _is_number(field):
            break
        width += 1
    if not width:
        raise UserError(f"{place}: this is no file of word vectors: a word and numbers behind it are expected.")
    return sum(1 for _ in _read_lines(path, 0)), width


def _read_lines(path: Path, skip: int) -> Iterator[tuple[str, bytes]]:
    """Yield (place, line without its end) of every line that is not empty; only \\n ends a line."""
    with _open(path) as file:
        for number, line in enumerate(file, 1):
            if number > skip and (text := line.rstrip(b" \r\n")):
                yield f"{path}:{number}", text


def _write_text(vectors: WordVectors, path: Path, file_format: VectorFormat) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        if file_format == "word2vec":
            file.write(f"{len(vectors.words)} {vectors.width}\n")
        for word, row in zip(vectors.words, vectors.matrix, strict=True):
            file.write(f"{word} {' '.join(_format_numbers(row))}\n")
        if file_format == "glove":
            [row] = vectors.vectors([UNKNOWN_WORD], "rarest") if UNKNOWN_WORD not in vectors.index else [None]
            if row is not None:
                file.write(f"{UNKNOWN_WORD} {' '.join(_format_numbers(row))}\n")


def _format_numbers(row: np.ndarray) -> list[str]:
    return row.astype(np.float32).astype(str).tolist()  # numpy writes the shortest digits that read back the same


def _parse_size(path: Path, fields: list[bytes]) -> tuple[int, int]:
    """Parse a header: the numbers of words and of dimensions. They may have more digits than Python converts."""
    if max(map(len, fields)) > MAX_DIGITS:
        raise UserError(f"{path}:1: no file has as many words or dimensions as its first line promises.")
    return int(fields[0]), int(fields[1])


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


# --- binary -----------------------------------------------------------------------------------------


def _read_binary(path: Path) -> tuple[list[str], np.ndarray]:
    with _open(path) as file:
        fields = file.readline(MAX_WORD_BYTES).split()
        if len(fields) != 2 or not all(field.isdigit() for field in fields):
            raise UserError(f"{path}: expected the numbers of words and of dimensions in the first line.")
        count, width = _parse_size(path, fields)
        rest_bytes = path.stat().st_size - file.tell()
        if count * (4 * width + 2) > rest_bytes + count:
            raise UserError(f"{path}: the file is too short for {count:,} words of {width} numbers: it is not whole.")
        words, matrix = [], np.empty((count, width), np.float32)
        buffer, place = b"", 0
        for number in range(count):
            while (end := buffer.find(b" ", place, place + MAX_WORD_BYTES)) < 0 or len(buffer) < end + 1 + 4 * width:
                more = file.read(BLOCK_BYTES)
                if not more or (end < 0 and len(buffer) - place > MAX_WORD_BYTES):
                    raise UserError(f"{path}: word {number + 1} of {count:,} is not there: the file is not whole.")
                buffer, place = buffer[place:] + more, 0
            try:
                words.append(buffer[place:end].lstrip(b"\n").decode())
            except UnicodeDecodeError:
                raise UserError(f"{path}: word {number + 1} is not UTF-8. Convert the file.") from None
            matrix[number] = np.frombuffer(buffer, "<f4", width, end + 1)
            place = end + 1 + 4 * width
        if (buffer[place:] + file.read(BLOCK_BYTES)).strip(b"\n"):
            raise UserError(f"{path}: there is more behind the {count:,} words that the first line promises.")
    return words, matrix


def _write_binary(vectors: WordVectors, path: Path) -> None:
    with open(path, "wb") as file:
        file.write(f"{len(vectors.words)} {vectors.width}\n".encode())
        for word, row in zip(vectors.words, vectors.matrix, strict=True):
            file.write(word.encode() + b" " + row.astype("<f4").tobytes() + b"\n")


def _open(path: Path) -> BinaryIO:
    try:
        return open(path, "rb")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None

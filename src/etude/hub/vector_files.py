"""Files of word vectors, read and written: word2vec text and binary, GloVe text. (fastText's .bin: fasttext_files.py.)

    word2vec          "W D" in the first line, then a line a word: the word and D numbers, parted by spaces.
                      fastText's .vec is the same, with a space at the end of each line
    word2vec-binary   "W D\\n", then for each word its bytes, a space and D little-endian float32; the original program
                      puts a newline behind them, gensim does not
    glove             as word2vec, without the first line; the last word may be <unk>

Words are read from the left up to the last D fields, because glove.840B has words with spaces in them. Numbers are
written with as many digits as float32 needs to be read back the same. Nothing is skipped in silence: a line that does
not fit is an error with its place, words that come twice are counted and told.
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

Form = Literal["word2vec", "word2vec-binary", "glove", "fasttext"]
UNKNOWN = "<unk>"  # GloVe's name for the mean of its rarest words
BLOCK = 1 << 20


def form_of(path: Path) -> Form:
    """What a file is, by its first bytes."""
    with _open(path) as file:
        start = file.read(BLOCK)
    if start[:4] == MAGIC:
        return "fasttext"
    first, _, rest = start.partition(b"\n")
    fields = first.split()
    if len(fields) != 2 or not all(field.isdigit() for field in fields):
        return "glove"
    width, line = int(fields[1]), rest.split(b"\n", 1)[0]
    numbers = line.rstrip().rsplit(b" ", width)[1:]
    return "word2vec" if len(numbers) == width and all(map(_is_number, numbers)) else "word2vec-binary"


def read_vectors(path: str | Path, form: Form | None = None) -> WordVectors:
    """Any of the forms; which one, the file says itself unless told."""
    path = Path(path)
    form = form or form_of(path)
    if form == "fasttext":
        return read_fasttext(path).vectors()
    if form == "word2vec-binary":
        words, matrix = _read_binary(path)
    else:
        words, matrix = _read_text(path, form == "word2vec")
    unknown = None
    if form == "glove" and words and words[-1] == UNKNOWN:
        unknown, words, matrix = matrix[-1], words[:-1], matrix[:-1]
    twice = len(words) - len(set(words))
    if twice:
        log.warning("%s: %d words come twice; the first of each counts.", path, twice)
    return WordVectors(words, matrix, unknown_row=unknown)


def write_vectors(vectors: WordVectors, path: str | Path, form: Form) -> None:
    """Replaces a file that is there. fastText's .bin needs more than words and vectors: see fasttext_files.py."""
    path = Path(path)
    spaced = next((word for word in vectors.words if not word or any(letter in word for letter in " \n")), None)
    if spaced is not None and (form != "glove" or "\n" in spaced or not spaced):
        raise UserError(f"The word {spaced!r} cannot be written to {path}: a space ends a word in this form.")
    if form == "word2vec-binary":
        _write_binary(vectors, path)
    elif form in ("word2vec", "glove"):
        _write_text(vectors, path, form)
    else:
        raise ValueError(f"form {form}: see fasttext_files.write_fasttext")


# --- text -------------------------------------------------------------------------------------------


def _read_text(path: Path, header: bool) -> tuple[list[str], np.ndarray]:
    count, width, words = _size(path, header)
    matrix = np.empty((count, width), np.float32)
    for place, line in _lines(path, 1 if header else 0):
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


def _size(path: Path, header: bool) -> tuple[int, int, list[str]]:
    """Words and width, by the header or by the lines themselves."""
    place, first = next(_lines(path, 0), (str(path), b""))
    fields = first.split()
    if header:
        if len(fields) != 2 or not all(field.isdigit() for field in fields):
            raise UserError(f"{place}: expected the numbers of words and of dimensions, found {first[:40]!r}.")
        return int(fields[0]), int(fields[1]), []
    width = 0
    for field in reversed(fields[1:]):
        if not _is_number(field):
            break
        width += 1
    if not width:
        raise UserError(f"{place}: this is no file of word vectors: a word and numbers behind it are expected.")
    return sum(1 for _ in _lines(path, 0)), width, []


def _lines(path: Path, skip: int) -> Iterator[tuple[str, bytes]]:
    """(place, line without its end) of every line that is not empty; only \\n ends a line."""
    with _open(path) as file:
        for number, line in enumerate(file, 1):
            if number > skip and (text := line.rstrip(b" \r\n")):
                yield f"{path}:{number}", text


def _write_text(vectors: WordVectors, path: Path, form: Form) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        if form == "word2vec":
            file.write(f"{len(vectors.words)} {vectors.width}\n")
        for word, row in zip(vectors.words, vectors.matrix, strict=True):
            file.write(f"{word} {' '.join(_numbers(row))}\n")
        if form == "glove":
            [row] = vectors.vectors([UNKNOWN], "rarest") if UNKNOWN not in vectors.index else [None]
            if row is not None:
                file.write(f"{UNKNOWN} {' '.join(_numbers(row))}\n")


def _numbers(row: np.ndarray) -> list[str]:
    return row.astype(np.float32).astype(str).tolist()  # numpy writes the shortest digits that read back the same


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
        count, width = (int(field) for field in fields)
        left = path.stat().st_size - file.tell()
        if count * (4 * width + 2) > left + count:
            raise UserError(f"{path}: the file is too short for {count:,} words of {width} numbers: it is not whole.")
        words, matrix = [], np.empty((count, width), np.float32)
        held, place = b"", 0
        for number in range(count):
            while (end := held.find(b" ", place, place + MAX_WORD_BYTES)) < 0 or len(held) < end + 1 + 4 * width:
                more = file.read(BLOCK)
                if not more or (end < 0 and len(held) - place > MAX_WORD_BYTES):
                    raise UserError(f"{path}: word {number + 1} of {count:,} is not there: the file is not whole.")
                held, place = held[place:] + more, 0
            try:
                words.append(held[place:end].lstrip(b"\n").decode())
            except UnicodeDecodeError:
                raise UserError(f"{path}: word {number + 1} is not UTF-8. Convert the file.") from None
            matrix[number] = np.frombuffer(held, "<f4", width, end + 1)
            place = end + 1 + 4 * width
        if (held[place:] + file.read(BLOCK)).strip(b"\n"):
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

"""Files of fastText models (.bin), version 12 of the released program [code]; of word vectors version 11 is the same.

    int32 magic, int32 version
    int32 dim ws epoch minCount neg wordNgrams loss model bucket minn maxn lrUpdateRate, float64 t
    int32 size nwords nlabels, int64 ntokens pruneidx_size; an entry a word: bytes, 0, int64 count, int8 type
    uint8 quantised, int64 rows columns, float32 ... of the input table: nwords rows, then `bucket` rows of n-grams
    uint8 quantised, int64 rows columns, float32 ... of the output table

All little-endian. Quantised, pruned and supervised models are refused: their tables differ.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from etude.errors import UserError
from etude.hub.word_vectors import WordVectors
from etude.text.tokenizer.char_ngrams import NgramTable, build_subword_rows

MAGIC = (793712314).to_bytes(4, "little")  # the first bytes of a file
VERSION = 12
READ_VERSIONS = (11, 12)  # they differ in classifiers alone
MAX_WORD_BYTES = 4096  # of a word in a binary file: beyond it the file is something else
LARGEST_SIDE = 1 << 40  # of a table: numpy makes none of 2^62 rows, even where it has no columns
LONGEST_NGRAM = 1024  # characters: fastText's default is 6
HEADER_FIELDS = (
    "width", "window", "epochs", "min_count", "negatives", "word_ngrams", "loss", "model", "buckets", "min_n", "max_n",
    "lr_update_rate",
)  # fmt: skip
LOSSES = {1: "hierarchical", 2: "negative"}
MODELS = {1: "cbow", 2: "skipgram"}


@dataclass(frozen=True)
class FastTextTraining:
    """The training settings in the header of a file."""

    window: int = 5
    epochs: int = 5
    min_count: int = 5
    negatives: int = 5
    output: str = "negative"
    objective: str = "skipgram"
    subsample: float = 1e-4


@dataclass(frozen=True)
class FastText:
    """A fastText model."""

    words: list[str]
    counts: np.ndarray  # (W,) int64
    inputs: np.ndarray  # (W + buckets, D) float32
    outputs: np.ndarray  # (W, D) float32
    ngram_sizes: tuple[int, int]  # characters of the shortest and the longest n-gram
    training: FastTextTraining

    @property
    def buckets(self) -> int:
        """Rows of n-grams."""
        return len(self.inputs) - len(self.words)

    def vectors(self) -> WordVectors:
        """Return the word vectors: the mean of each word's rows."""
        if not self.buckets:
            return WordVectors(self.words, self.inputs, self.counts)
        bounds, rows = build_subword_rows(self.words, self.buckets, *self.ngram_sizes)
        matrix = np.empty((len(self.words), self.inputs.shape[1]), np.float32)
        for number in range(len(self.words)):
            matrix[number] = self.inputs[rows[bounds[number] : bounds[number + 1]]].mean(0)
        ngrams = NgramTable(self.inputs[len(self.words) :], *self.ngram_sizes)
        return WordVectors(self.words, matrix, self.counts, ngrams)


def read_fasttext(path: str | Path) -> FastText:
    """Read a fastText .bin."""
    path = Path(path)
    with open(path, "rb") as file:
        reader = _BinaryReader(file, path)
        magic, version = reader.read_numbers("<ii")
        if magic != int.from_bytes(MAGIC, "little") or version not in READ_VERSIONS:
            versions = " or ".join(map(str, READ_VERSIONS))
            raise UserError(f"{path} is no fastText .bin of version {versions} (magic {magic}, version {version}).")
        header = dict(zip(HEADER_FIELDS, reader.read_numbers("<12i"), strict=True))
        [subsample] = reader.read_numbers("<d")
        if header["loss"] not in LOSSES or header["model"] not in MODELS:
            raise UserError(f"{path} is a classifier, not word vectors: only skip-gram and CBOW models are read.")
        size, words, labels = reader.read_numbers("<iii")
        _, pruned = reader.read_numbers("<qq")
        if labels or pruned > 0 or size != words:
            raise UserError(f"{path} has labels or a pruned vocabulary: only whole word vectors are read.")
        names, counts = reader.read_entries(size)
        inputs, outputs = reader.read_table(), reader.read_table()
        reader.expect_end()
    if inputs.shape != (words + header["buckets"] * (header["max_n"] > 0), header["width"]):
        expected = f"{words} words and {header['buckets']} buckets"
        raise UserError(f"{path}: the input table is {inputs.shape}, not {expected}.")
    if outputs.shape != (words, header["width"]):
        raise UserError(f"{path}: the output table is {outputs.shape}, not {words} words of {header['width']} numbers.")
    if inputs.shape[0] > words and not 0 <= header["min_n"] <= header["max_n"] <= LONGEST_NGRAM:
        raise UserError(f"{path}: n-grams of {header['min_n']} to {header['max_n']} characters: the file is damaged.")
    training = FastTextTraining(
        header["window"], header["epochs"], header["min_count"], header["negatives"], LOSSES[header["loss"]],
        MODELS[header["model"]], subsample,
    )  # fmt: skip
    # of -minn 0 the shortest n-gram has one character: none has none
    sizes = (max(1, header["min_n"]), header["max_n"]) if header["max_n"] else (0, 0)
    return FastText(names, counts, inputs, outputs, sizes, training)


def write_fasttext(model: FastText, path: str | Path) -> None:
    """Write a fastText .bin that the released program reads."""
    training, words = model.training, model.words
    bad = next((word for word in words if "\0" in word or any(letter in word for letter in " \n")), None)
    if bad is not None:
        raise UserError(f"The word {bad!r} cannot be written to {path}: a space or a zero ends a word in this form.")
    loss = next(number for number, name in LOSSES.items() if name == training.output)
    kind = next(number for number, name in MODELS.items() if name == training.objective)
    min_n, max_n = model.ngram_sizes if model.buckets else (0, 0)
    with open(path, "wb") as file:
        file.write(struct.pack("<ii", int.from_bytes(MAGIC, "little"), VERSION))
        file.write(struct.pack(
            "<12id", model.inputs.shape[1], training.window, training.epochs, training.min_count, training.negatives, 1,
            loss, kind, model.buckets, min_n, max_n, 100, training.subsample,
        ))  # fmt: skip
        file.write(struct.pack("<iiiqq", len(words), len(words), 0, int(model.counts.sum()), -1))
        for word, count in zip(words, model.counts.tolist(), strict=True):
            file.write(word.encode() + b"\0" + struct.pack("<qb", count, 0))
        for table in (model.inputs, model.outputs):
            file.write(struct.pack("<?qq", False, *table.shape))
            np.ascontiguousarray(table, "<f4").tofile(file)


class _BinaryReader:
    """Reads numbers, words and tables, and raises UserError where the file ends too soon."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.file, self.path = file, path

    def read_bytes(self, size: int) -> bytes:
        data = self.file.read(size)
        if len(data) != size:
            raise UserError(f"{self.path} ends after {self.file.tell():,} bytes, too soon: the file is not whole.")
        return data

    def read_numbers(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack(layout, self.read_bytes(struct.calcsize(layout)))

    def read_entries(self, size: int) -> tuple[list[str], np.ndarray]:
        rest_bytes = self.path.stat().st_size - self.file.tell()
        if not 0 <= size <= rest_bytes // 10:  # a zero byte, a count and a kind at least
            raise UserError(f"{self.path}: {size:,} words do not fit into the rest of the file.")
        words, counts = [], np.empty(size, np.int64)
        for number in range(size):
            letters = bytearray()
            while (letter := self.read_bytes(1)) != b"\0":
                letters += letter
                if len(letters) > MAX_WORD_BYTES:
                    raise UserError(f"{self.path}: word {number + 1} has no end: the file is damaged.")
            counts[number], kind = self.read_numbers("<qb")
            if kind:
                raise UserError(f"{self.path}: entry {number + 1} is a label, not a word.")
            try:
                words.append(letters.decode())
            except UnicodeDecodeError:
                raise UserError(f"{self.path}: word {number + 1} is not UTF-8.") from None
        return words, counts

    def read_table(self) -> np.ndarray:
        quantised, rows, columns = self.read_numbers("<?qq")
        if quantised:
            raise UserError(
                f"{self.path} is quantised: only tables of whole numbers are read. Take the .bin, not .ftz."
            )
        rest_bytes = self.path.stat().st_size - self.file.tell()
        if min(rows, columns) < 0 or max(rows, columns) > LARGEST_SIDE or 4 * rows * columns > rest_bytes:
            raise UserError(f"{self.path}: a table of {rows} x {columns} does not fit into the rest of the file.")
        table = np.fromfile(self.file, "<f4", rows * columns).reshape(rows, columns)
        if table.size and not (np.isfinite(table.min()) and np.isfinite(table.max())):
            row = int(np.flatnonzero(~np.isfinite(table).all(axis=1))[0])
            raise UserError(f"{self.path}: row {row} of a table has a number that is not finite. Take it from a copy.")
        return table

    def expect_end(self) -> None:
        if self.file.read(1):
            raise UserError(f"{self.path}: there is more behind the last table: the file is damaged.")

"""fastText's .bin: a whole model, words, n-grams and all (version 12 of the released program [code]).

    int32 magic, int32 version
    int32 dim ws epoch minCount neg wordNgrams loss model bucket minn maxn lrUpdateRate, float64 t
    int32 size nwords nlabels, int64 ntokens pruneidx_size; an entry a word: bytes, 0, int64 count, int8 type
    uint8 quantised, int64 rows columns, float32 ... of the input table: nwords rows, then `bucket` rows of n-grams
    uint8 quantised, int64 rows columns, float32 ... of the output table

All little-endian. Models that are quantised, pruned or supervised are refused: their tables are others.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from etude.errors import UserError
from etude.hub.word_vectors import NgramTable, WordVectors
from etude.text.tokenizer.char_ngrams import build_subword_rows

MAGIC = (793712314).to_bytes(4, "little")  # the first bytes of a file
VERSION = 12
MAX_WORD_BYTES = 4096  # of a word in a binary file: beyond it the file is something else
NAMES = ("width", "window", "epochs", "least", "negatives", "word_grams", "loss", "model", "buckets", "smallest",
         "largest", "rate_every")  # fmt: skip
LOSSES = {1: "hierarchical", 2: "negative"}
MODELS = {1: "cbow", 2: "skipgram"}


@dataclass(frozen=True)
class Training:
    """The settings that a file tells of."""

    window: int = 5
    epochs: int = 5
    least: int = 5
    negatives: int = 5
    output: str = "negative"
    objective: str = "skipgram"
    subsample: float = 1e-4


@dataclass(frozen=True)
class FastText:
    words: list[str]
    counts: np.ndarray  # (W,) int64
    inputs: np.ndarray  # (W + buckets, D) float32
    outputs: np.ndarray  # (W, D) float32
    grams: tuple[int, int]  # characters of the shortest and the longest n-gram
    training: Training

    @property
    def buckets(self) -> int:
        return len(self.inputs) - len(self.words)

    def vectors(self) -> WordVectors:
        """A word's vector is the mean of its rows."""
        if not self.buckets:
            return WordVectors(self.words, self.inputs, self.counts)
        bounds, rows = build_subword_rows(self.words, self.buckets, *self.grams)
        matrix = np.empty((len(self.words), self.inputs.shape[1]), np.float32)
        for number in range(len(self.words)):
            matrix[number] = self.inputs[rows[bounds[number] : bounds[number + 1]]].mean(0)
        return WordVectors(self.words, matrix, self.counts, NgramTable(self.inputs[len(self.words) :], *self.grams))


def read_fasttext(path: str | Path) -> FastText:
    path = Path(path)
    with open(path, "rb") as file:
        reader = _Reader(file, path)
        magic, version = reader.numbers("<ii")
        if magic != int.from_bytes(MAGIC, "little") or version != VERSION:
            raise UserError(f"{path} is no fastText .bin of version {VERSION} (magic {magic}, version {version}).")
        facts = dict(zip(NAMES, reader.numbers("<12i"), strict=True))
        [subsample] = reader.numbers("<d")
        if facts["loss"] not in LOSSES or facts["model"] not in MODELS:
            raise UserError(f"{path} is a classifier, not word vectors: only skip-gram and CBOW models are read.")
        size, words, labels = reader.numbers("<iii")
        _, pruned = reader.numbers("<qq")
        if labels or pruned > 0 or size != words:
            raise UserError(f"{path} has labels or a pruned vocabulary: only whole word vectors are read.")
        names, counts = reader.entries(size)
        inputs, outputs = reader.table(), reader.table()
        reader.end()
    if inputs.shape != (words + facts["buckets"] * (facts["largest"] > 0), facts["width"]):
        raise UserError(f"{path}: the input table is {inputs.shape}, not {words} words and {facts['buckets']} buckets.")
    training = Training(
        facts["window"], facts["epochs"], facts["least"], facts["negatives"], LOSSES[facts["loss"]],
        MODELS[facts["model"]], subsample,
    )  # fmt: skip
    return FastText(names, counts, inputs, outputs, (facts["smallest"], facts["largest"]), training)


def write_fasttext(model: FastText, path: str | Path) -> None:
    training, words = model.training, model.words
    bad = next((word for word in words if "\0" in word or any(letter in word for letter in " \n")), None)
    if bad is not None:
        raise UserError(f"The word {bad!r} cannot be written to {path}: a space or a zero ends a word in this form.")
    loss = next(number for number, name in LOSSES.items() if name == training.output)
    kind = next(number for number, name in MODELS.items() if name == training.objective)
    smallest, largest = model.grams if model.buckets else (0, 0)
    with open(path, "wb") as file:
        file.write(struct.pack("<ii", int.from_bytes(MAGIC, "little"), VERSION))
        file.write(struct.pack(
            "<12id", model.inputs.shape[1], training.window, training.epochs, training.least, training.negatives, 1,
            loss, kind, model.buckets, smallest, largest, 100, training.subsample,
        ))  # fmt: skip
        file.write(struct.pack("<iiiqq", len(words), len(words), 0, int(model.counts.sum()), -1))
        for word, count in zip(words, model.counts.tolist(), strict=True):
            file.write(word.encode() + b"\0" + struct.pack("<qb", count, 0))
        for table in (model.inputs, model.outputs):
            file.write(struct.pack("<?qq", False, *table.shape))
            np.ascontiguousarray(table, "<f4").tofile(file)


class _Reader:
    """Numbers from a file that may end too soon."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.file, self.path = file, path

    def bytes(self, size: int) -> bytes:
        found = self.file.read(size)
        if len(found) != size:
            raise UserError(f"{self.path} ends after {self.file.tell():,} bytes, too soon: the file is not whole.")
        return found

    def numbers(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(form, self.bytes(struct.calcsize(form)))

    def entries(self, size: int) -> tuple[list[str], np.ndarray]:
        words, counts = [], np.empty(size, np.int64)
        for number in range(size):
            letters = bytearray()
            while (letter := self.bytes(1)) != b"\0":
                letters += letter
                if len(letters) > MAX_WORD_BYTES:
                    raise UserError(f"{self.path}: word {number + 1} has no end: the file is damaged.")
            counts[number], kind = self.numbers("<qb")
            if kind:
                raise UserError(f"{self.path}: entry {number + 1} is a label, not a word.")
            try:
                words.append(letters.decode())
            except UnicodeDecodeError:
                raise UserError(f"{self.path}: word {number + 1} is not UTF-8.") from None
        return words, counts

    def table(self) -> np.ndarray:
        quantised, rows, columns = self.numbers("<?qq")
        if quantised:
            raise UserError(
                f"{self.path} is quantised: only tables of whole numbers are read. Take the .bin, not .ftz."
            )
        left = self.path.stat().st_size - self.file.tell()
        if rows < 0 or columns < 0 or 4 * rows * columns > left:
            raise UserError(f"{self.path}: a table of {rows} x {columns} does not fit into the rest of the file.")
        return np.fromfile(self.file, "<f4", rows * columns).reshape(rows, columns)

    def end(self) -> None:
        if self.file.read(1):
            raise UserError(f"{self.path}: there is more behind the last table: the file is damaged.")

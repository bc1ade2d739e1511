"""How often words stand near each other, counted exactly, in any memory (Pennington et al. 2014, section 3).

A pair of words d places apart adds 1/d to its count. Unknown words are dropped first, windows end with their document,
as in GloVe's `cooccur` [code]. Counts are kept as whole numbers of 1/unit, where every 1/d is one (unit is the least
common multiple of 1..window; 2^32 for windows beyond 20, where that overflows), so no order of adding shows.

Pairs are sorted and added up a stretch of text at a time; what does not fit into `memory` bytes goes to disk as a
sorted run, and the runs are merged in the end. The entries lie on disk in the order of a hash of their words, which is
the shuffling that training wants: the file is the same, bit for bit, whatever the memory.

    rows.u32, columns.u32   the words of each entry; of a symmetric pair, the smaller id first, once
    counts.f64
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from etude.chance import fold, random_bits
from etude.errors import UserError
from etude.text.corpus.corpus import Corpus

log = logging.getLogger("etude")

FORMAT = "etude co-occurrences 1"
MANIFEST = "manifest.json"
FILES: dict[str, np.dtype] = {
    "rows.u32": np.dtype("<u4"),
    "columns.u32": np.dtype("<u4"),
    "counts.f64": np.dtype("<f8"),
}
ENTRY = 16  # bytes of a key and a sum, in memory and in a run
LARGEST_EXACT = 20  # windows up to it have a least common multiple that 10^10 pairs do not carry beyond 63 bits
LEAST_MEMORY = 1 << 20
TELL = 10.0  # seconds between two lines on how far it is


@dataclass(frozen=True)
class CountSettings:
    """What is counted."""

    window: int
    symmetric: bool = True  # False: only words to the left of each word
    by_distance: bool = True  # False: every pair in the window adds 1

    @property
    def key(self) -> str:
        """What the name of the folder with the counts is hashed from; never to change, or all is counted again."""
        return f"Counting(window={self.window}, symmetric={self.symmetric}, by_distance={self.by_distance})"

    @property
    def unit(self) -> int:
        if not self.by_distance:
            return 1
        return math.lcm(*range(1, self.window + 1)) if self.window <= LARGEST_EXACT else 1 << 32

    @property
    def weights(self) -> np.ndarray:
        """(window,) int64, of distances 1.. in units."""
        if not self.by_distance:
            return np.ones(self.window, np.int64)
        return np.array([round(self.unit / distance) for distance in range(1, self.window + 1)], np.int64)


@dataclass(frozen=True)
class Cooccurrences:
    """The entries, mapped into memory."""

    rows: np.ndarray  # (E,) uint32
    columns: np.ndarray  # (E,) uint32
    counts: np.ndarray  # (E,) float64

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def open(cls, folder: Path) -> Cooccurrences:
        try:
            manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            entries, form = manifest["entries"], manifest["format"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{folder} does not hold co-occurrences: {error}. Remove it, and they are counted."
            ) from None
        arrays = []
        for name, dtype in FILES.items():
            path = folder / name
            if form != FORMAT or not path.is_file() or path.stat().st_size != entries * dtype.itemsize:
                raise UserError(f"{path} is not what was written. Remove {folder}, and they are counted again.")
            arrays.append(np.memmap(path, dtype, "r") if entries else np.zeros(0, dtype))
        return cls(*arrays)


def count_cooccurrences(corpus: Corpus, counting: CountSettings, folder: Path, memory: int = 1 << 31) -> Cooccurrences:
    """Counts a part of a corpus into `folder`, which is there whole or not at all; one that is there is opened."""
    if (folder / MANIFEST).is_file():
        return Cooccurrences.open(folder)
    if corpus.tokenizer.vocab**2 * max(1, counting.window) >= 1 << 63:
        raise UserError(f"A vocabulary of {corpus.tokenizer.vocab:,} words has too many pairs. Prepare a smaller one.")
    memory = max(memory, LEAST_MEMORY)
    work = folder.with_name(f".{folder.name}.counting-{os.getpid()}")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        runs = list(_runs(corpus, counting, work, memory))
        entries = _write(
            merge_runs(runs, max(1, memory // (8 * ENTRY * max(1, len(runs))))), counting, corpus, work, memory
        )
        for run in runs:
            run.unlink()
        (work / MANIFEST).write_text(json.dumps({"format": FORMAT, "entries": entries, **vars(counting)}), "utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(work, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return Cooccurrences.open(folder)


# --- counting ---------------------------------------------------------------------------------------


def _runs(corpus: Corpus, counting: CountSettings, work: Path, memory: int) -> Iterator[Path]:
    """Sorted runs on disk, one where everything fits."""
    # a stretch makes window keys a token, sorted in place and cut to keys and sums: about 40 bytes each at the worst
    stretch = max(1000, memory // 2 // (40 * counting.window))
    held: list[tuple[np.ndarray, np.ndarray]] = []
    size = number = 0

    def spill() -> Path:
        keys, sums = sum_by_key(np.concatenate([k for k, _ in held]), np.concatenate([s for _, s in held]))
        path = work / f"run-{number}"
        np.stack([keys, sums], axis=1).tofile(path)
        return path

    for part in count_pairs(corpus, counting, stretch):
        held.append(part)
        size += ENTRY * len(part[0])
        if size > memory // 4:  # joining and sorting takes three times as much again
            yield spill()
            held, size, number = [], 0, number + 1
    if held:
        yield spill()


def count_pairs(corpus: Corpus, counting: CountSettings, stretch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(keys, sums) of one stretch of text after the other; keys are sorted, each once."""
    vocab, unknown, window = corpus.tokenizer.vocab, corpus.tokenizer.special.unknown, counting.window
    before = np.zeros(0, np.int64)  # the last words of the stretch before, and their documents
    before_documents = np.zeros(0, np.int64)
    told = time.monotonic()
    for start in range(0, corpus.total, stretch):
        if time.monotonic() - told > TELL:
            told = time.monotonic()
            log.warning("counting co-occurrences: %.0f %% of the text", 100 * start / corpus.total)
        stop = min(start + stretch, corpus.total)
        new = corpus.tokens(start, stop).astype(np.int64)
        first, last = corpus.documents.find(start), corpus.documents.find(stop - 1)
        bounds = np.concatenate([[start], corpus.documents.slice(first + 1, last + 1), [stop]])
        number = np.repeat(np.arange(first, last + 1), np.diff(bounds))
        known = np.ones(len(new), bool) if unknown is None else new != unknown
        words = np.concatenate([before, new[known]])
        documents = np.concatenate([before_documents, number[known]])
        keys = [_keys(words, documents, distance, len(before), vocab, counting) for distance in range(1, window + 1)]
        before, before_documents = words[-window:], documents[-window:]
        tagged = np.concatenate(keys)
        tagged.sort()
        distances = tagged % window
        tagged //= window
        yield sum_by_key(tagged, counting.weights[distances], sort=False)


def _keys(
    words: np.ndarray, documents: np.ndarray, distance: int, old: int, vocab: int, counting: CountSettings
) -> np.ndarray:
    """(row * V + column) * window + distance - 1 of all pairs so far apart whose right word is not an old one."""
    left, right = words[: max(0, len(words) - distance)], words[distance:]
    together = documents[: max(0, len(words) - distance)] == documents[distance:]
    together[: max(0, old - distance)] = False
    left, right = left[together], right[together]
    if counting.symmetric:
        left, right = np.minimum(left, right), np.maximum(left, right)
    return (left * vocab + right) * counting.window + distance - 1


def sum_by_key(keys: np.ndarray, sums: np.ndarray, sort: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Each key once, with the sum of all its sums."""
    if not len(keys):
        return keys, sums
    if sort:
        order = np.argsort(keys, kind="stable")
        keys, sums = keys[order], sums[order]
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return keys[starts], np.add.reduceat(sums, starts)


def merge_runs(runs: list[Path], block: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The entries of sorted runs, sorted, each key once; `block` entries of a run in memory."""
    readers = [np.memmap(run, np.int64, "r").reshape(-1, 2) for run in runs if run.stat().st_size]
    places = [0] * len(readers)
    while True:
        left = [number for number, reader in enumerate(readers) if places[number] < len(reader)]
        if not left:
            return
        parts = {number: np.asarray(readers[number][places[number] : places[number] + block]) for number in left}
        # up to the smallest last key nothing can come later in any run
        bound = min(parts[number][-1, 0] for number in left)
        taken = []
        for number, part in parts.items():
            size = int(np.searchsorted(part[:, 0], bound, side="right"))
            taken.append(part[:size])
            places[number] += size
        whole = np.concatenate(taken)
        yield sum_by_key(whole[:, 0], whole[:, 1])


# --- the order of training --------------------------------------------------------------------------


def _write(
    entries: Iterator[tuple[np.ndarray, np.ndarray]], counting: CountSettings, corpus: Corpus, work: Path, memory: int
) -> int:
    """The entries by the hash of their keys, into the files; returns how many. Sorted bucket by bucket."""
    key, total = fold("co-occurrence order"), 0
    known = sum(path.stat().st_size for path in work.glob("run-*"))
    buckets = 1 << max(0, math.ceil(math.log2(max(1, 4 * known / memory))))  # four times as much while it is sorted
    shift = np.uint64(64 - int(math.log2(buckets))) if buckets > 1 else None
    files = [(work / f"bucket-{number}").open("wb") for number in range(buckets)]
    for keys, sums in entries:
        owner = np.zeros(len(keys), np.int64) if shift is None else (random_bits(key, keys) >> shift).astype(np.int64)
        table = np.stack([keys, sums], axis=1)
        for number in np.unique(owner):
            table[owner == number].tofile(files[number])
    outs = {name: (work / name).open("wb") for name in FILES}
    vocab = corpus.tokenizer.vocab
    for file in files:
        file.close()
        path = Path(file.name)
        table = np.fromfile(path, np.int64).reshape(-1, 2)
        path.unlink()
        table = table[np.argsort(random_bits(key, table[:, 0]), kind="stable")]
        row, column = np.divmod(table[:, 0], vocab)
        counts = table[:, 1] / counting.unit
        if counting.symmetric:
            counts = np.where(row == column, 2 * counts, counts)  # a word beside itself is beside it both ways
        for name, array in zip(FILES, (row, column, counts), strict=True):
            array.astype(FILES[name]).tofile(outs[name])
        total += len(table)
    for out in outs.values():
        out.flush()
        os.fsync(out.fileno())
        out.close()
    return total

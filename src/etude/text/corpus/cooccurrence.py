"""Co-occurrence counts of words, exact, in bounded memory (Pennington et al. 2014, section 3).

A pair of words d positions apart adds 1/d to its count. Unknown words are dropped first, as in GloVe's `cooccur`
[code]. Windows end with their document; there they end with a line. Counts are integer multiples of 1/unit, as every
1/d is (unit is the least common multiple of 1..window; 2^32 for windows beyond 20, where that overflows), so the order
of addition has no effect.

Pairs are sorted and summed one chunk of text at a time; what does not fit into `memory` bytes goes to disk as a sorted
run, and the runs are merged at the end. The entries lie on disk in the order of a hash of their words, which is the
shuffling that training needs: the file is the same, bit for bit, whatever the memory.

    rows.u32, columns.u32   the words of each entry; of a symmetric pair, the smaller id first, once
    counts.f64
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from etude.chance import fold, random_bits
from etude.errors import UserError
from etude.text.checked_files import ALWAYS_HASHED, MANIFEST, hash_file, parse_manifest, write_manifest
from etude.text.corpus.corpus import Corpus

log = logging.getLogger("etude")

FORMAT = "etude co-occurrences 2"
FOLDERS = "cooccurrence-*"  # in the folder of a corpus
FILES: dict[str, np.dtype] = {
    "rows.u32": np.dtype("<u4"),
    "columns.u32": np.dtype("<u4"),
    "counts.f64": np.dtype("<f8"),
}
ENTRY_BYTES = 16  # of a key and a sum, in memory and in a run
MAX_EXACT_WINDOW = 20  # windows up to it have a least common multiple that 10^10 pairs do not carry beyond 63 bits
MIN_MEMORY = 1 << 20
LOG_SECONDS = 10.0  # between two lines of progress


@dataclass(frozen=True)
class CountSettings:
    """Which pairs are counted, and with what weight."""

    window: int
    symmetric: bool = True  # False: only words to the left of each word
    by_distance: bool = True  # False: every pair in the window adds 1

    @property
    def key(self) -> str:
        """What the name of the counts' folder is hashed from; if it changes, everything is counted again."""
        return f"Counting(window={self.window}, symmetric={self.symmetric}, by_distance={self.by_distance})"

    @property
    def unit(self) -> int:
        """The integer that stands for a count of 1."""
        if not self.by_distance:
            return 1
        return math.lcm(*range(1, self.window + 1)) if self.window <= MAX_EXACT_WINDOW else 1 << 32

    @property
    def weights(self) -> np.ndarray:
        """Weights of the distances 1..window, (window,) int64, in units."""
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
    def open(cls, folder: Path, vocab: int, verify: bool = False) -> Cooccurrences:
        """Map the entries of a folder into memory; ids and counts are checked.

        Files are hashed where they are small, with `verify` always.
        """
        advice = f"Remove {folder}, and they are counted again."
        try:
            manifest = parse_manifest(folder / MANIFEST, (folder / MANIFEST).read_bytes(), advice)
            entries, form, hashes = manifest["entries"], manifest["format"], manifest["sha256s"]
            expected = {name: str(hashes[name]) for name in FILES}
        except (OSError, KeyError, TypeError) as error:
            raise UserError(f"{folder} does not hold co-occurrences: {error!r}. {advice}") from None
        arrays = []
        for name, dtype in FILES.items():
            path = folder / name
            size = path.stat().st_size if path.is_file() else -1
            is_whole = form == FORMAT and type(entries) is int and size == entries * dtype.itemsize
            if not is_whole or ((verify or size <= ALWAYS_HASHED) and hash_file(path) != expected[name]):
                raise UserError(f"{path} is not what was written. {advice}")
            arrays.append(np.memmap(path, dtype, "r") if entries else np.zeros(0, dtype))
        rows, columns, counts = arrays
        if entries and not (max(rows.max(), columns.max()) < vocab and counts.min() > 0 and counts.max() < np.inf):
            raise UserError(f"{folder} holds words that the vocabulary of {vocab:,} has not, or no counts. {advice}")
        return cls(rows, columns, counts)


def count_cooccurrences(corpus: Corpus, settings: CountSettings, folder: Path, memory: int = 1 << 31) -> Cooccurrences:
    """Count a split of a corpus into `folder`, or open the counts that are there.

    The folder appears when it is complete.
    """
    vocab = corpus.tokenizer.vocab
    if (folder / MANIFEST).is_file():
        return Cooccurrences.open(folder, vocab)
    if vocab**2 * max(1, settings.window) >= 1 << 63:
        raise UserError(f"A vocabulary of {vocab:,} words has too many pairs. Prepare a smaller one.")
    memory = max(memory, MIN_MEMORY)
    with _work_folder(folder) as work:
        if work is None:  # another process counted it meanwhile
            return Cooccurrences.open(folder, vocab)
        runs = list(_write_runs(corpus, settings, work, memory))
        entries = _write_entries(
            merge_runs(runs, max(1, memory // (8 * ENTRY_BYTES * max(1, len(runs))))), settings, corpus, work, memory
        )
        for run in runs:
            run.unlink()
        hashes = {name: hash_file(work / name) for name in FILES}
        write_manifest(work, {"format": FORMAT, "entries": entries, **vars(settings), "sha256s": hashes})
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(work, folder)
    return Cooccurrences.open(folder, vocab)


@contextmanager
def _work_folder(folder: Path) -> Iterator[Path | None]:
    """Yield an empty folder of one process beside `folder`; None where another one filled `folder` meanwhile.

    What a process that was killed left there is removed.
    """
    work = folder.with_name(f".{folder.name}.counting")
    handle = _lock_folder(work)
    try:
        if (folder / MANIFEST).is_file():
            yield None
            return
        for path in work.iterdir():
            path.unlink()
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
        os.close(handle)


def _lock_folder(folder: Path) -> int:
    """Make a folder where there is none and lock it; waits for whoever has it, and counts the same."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX)
        if folder.is_dir() and os.path.samestat(os.fstat(handle), folder.stat()):
            return handle
        os.close(handle)  # it was renamed or removed meanwhile


# --- counting ---------------------------------------------------------------------------------------


def _write_runs(corpus: Corpus, settings: CountSettings, work: Path, memory: int) -> Iterator[Path]:
    """Write sorted runs to disk, one where everything fits; yield their paths."""
    # a chunk makes window keys a token, sorted in place and cut to keys and sums: about 40 bytes each at the worst
    chunk = max(1000, memory // 2 // (40 * settings.window))
    parts: list[tuple[np.ndarray, np.ndarray]] = []
    size = number = 0

    def spill() -> Path:
        keys, sums = sum_by_key(np.concatenate([k for k, _ in parts]), np.concatenate([s for _, s in parts]))
        path = work / f"run-{number}"
        np.stack([keys, sums], axis=1).tofile(path)
        return path

    for part in count_pairs(corpus, settings, chunk):
        parts.append(part)
        size += ENTRY_BYTES * len(part[0])
        if size > memory // 4:  # joining and sorting takes three times as much again
            yield spill()
            parts, size, number = [], 0, number + 1
    if parts:
        yield spill()


def count_pairs(corpus: Corpus, settings: CountSettings, chunk: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (keys, sums) of one chunk of text after the other; keys are ascending and distinct."""
    vocab, unknown, window = corpus.tokenizer.vocab, corpus.tokenizer.special.unknown, settings.window
    before = np.zeros(0, np.int64)  # the last words of the chunk before, and their documents
    before_documents = np.zeros(0, np.int64)
    logged = time.monotonic()
    for start in range(0, corpus.total, chunk):
        if time.monotonic() - logged > LOG_SECONDS:
            logged = time.monotonic()
            log.warning("counting co-occurrences: %.0f %% of the text", 100 * start / corpus.total)
        stop = min(start + chunk, corpus.total)
        new = corpus.tokens(start, stop).astype(np.int64)
        first, last = corpus.documents.find(start), corpus.documents.find(stop - 1)
        bounds = np.concatenate([[start], corpus.documents.slice(first + 1, last + 1), [stop]])
        number = np.repeat(np.arange(first, last + 1), np.diff(bounds))
        known = np.ones(len(new), bool) if unknown is None else new != unknown
        words = np.concatenate([before, new[known]])
        documents = np.concatenate([before_documents, number[known]])
        keys = [
            _encode_pairs(words, documents, distance, len(before), vocab, settings) for distance in range(1, window + 1)
        ]
        before, before_documents = words[-window:], documents[-window:]
        tagged = np.concatenate(keys)
        tagged.sort()
        distances = tagged % window
        tagged //= window
        yield sum_by_key(tagged, settings.weights[distances], sort=False)


def _encode_pairs(
    words: np.ndarray, documents: np.ndarray, distance: int, old: int, vocab: int, settings: CountSettings
) -> np.ndarray:
    """Return the keys of all pairs at a distance whose right word is new.

    A key is (row * V + column) * window + distance - 1.
    """
    left, right = words[: max(0, len(words) - distance)], words[distance:]
    same_document = documents[: max(0, len(words) - distance)] == documents[distance:]
    same_document[: max(0, old - distance)] = False
    left, right = left[same_document], right[same_document]
    if settings.symmetric:
        left, right = np.minimum(left, right), np.maximum(left, right)
    return (left * vocab + right) * settings.window + distance - 1


def sum_by_key(keys: np.ndarray, sums: np.ndarray, sort: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Return each key once, with the sum of its values."""
    if not len(keys):
        return keys, sums
    if sort:
        order = np.argsort(keys, kind="stable")
        keys, sums = keys[order], sums[order]
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return keys[starts], np.add.reduceat(sums, starts)


def merge_runs(runs: list[Path], block: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the entries of sorted runs, ascending, each key once; `block` entries of a run in memory."""
    readers = [np.memmap(run, np.int64, "r").reshape(-1, 2) for run in runs if run.stat().st_size]
    places = [0] * len(readers)
    while True:
        unread = [number for number, reader in enumerate(readers) if places[number] < len(reader)]
        if not unread:
            return
        parts = {number: np.asarray(readers[number][places[number] : places[number] + block]) for number in unread}
        # up to the smallest last key nothing can come later in any run
        bound = min(parts[number][-1, 0] for number in unread)
        blocks = []
        for number, part in parts.items():
            size = int(np.searchsorted(part[:, 0], bound, side="right"))
            blocks.append(part[:size])
            places[number] += size
        whole = np.concatenate(blocks)
        yield sum_by_key(whole[:, 0], whole[:, 1])


# --- the order of training --------------------------------------------------------------------------


def _write_entries(
    entries: Iterator[tuple[np.ndarray, np.ndarray]], settings: CountSettings, corpus: Corpus, work: Path, memory: int
) -> int:
    """Write the entries in the order of the hash of their keys, sorted bucket by bucket; return how many."""
    key, total = fold("co-occurrence order"), 0
    run_bytes = sum(path.stat().st_size for path in work.glob("run-*"))
    buckets = 1 << max(0, math.ceil(math.log2(max(1, 4 * run_bytes / memory))))  # four times as much while it is sorted
    shift = np.uint64(64 - int(math.log2(buckets))) if buckets > 1 else None
    files = [(work / f"bucket-{number}").open("wb") for number in range(buckets)]
    for keys, sums in entries:
        owner = np.zeros(len(keys), np.int64) if shift is None else (random_bits(key, keys) >> shift).astype(np.int64)
        table = np.stack([keys, sums], axis=1)
        for number in np.unique(owner):
            table[owner == number].tofile(files[number])
    outputs = {name: (work / name).open("wb") for name in FILES}
    vocab = corpus.tokenizer.vocab
    for file in files:
        file.close()
        path = Path(file.name)
        table = np.fromfile(path, np.int64).reshape(-1, 2)
        path.unlink()
        table = table[np.argsort(random_bits(key, table[:, 0]), kind="stable")]
        row, column = np.divmod(table[:, 0], vocab)
        counts = table[:, 1] / settings.unit
        if settings.symmetric:
            counts = np.where(row == column, 2 * counts, counts)  # a word beside itself is beside it both ways
        for name, array in zip(FILES, (row, column, counts), strict=True):
            array.astype(FILES[name]).tofile(outputs[name])
        total += len(table)
    for output in outputs.values():
        output.flush()
        os.fsync(output.fileno())
        output.close()
    return total

"""Co-occurrences: exact against the definition, the same bits in any memory and any order of spilling."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.errors import UserError
from etude.text.corpus import cooccurrence
from etude.text.corpus.cooccurrence import (
    Cooccurrences,
    CountSettings,
    count_cooccurrences,
    count_pairs,
    merge_runs,
    sum_by_key,
)


class Texts:
    """What counting reads of a corpus."""

    part = "train"

    def __init__(self, documents: list[list[int]], vocab: int = 12, unknown: int | None = 1) -> None:
        class Special:
            pass

        class Words:
            special: Any = Special()

        self.words = np.array([word for document in documents for word in document], np.int32)
        self.starts = np.cumsum([0, *map(len, documents)])
        self.total = len(self.words)
        self.tokenizer: Any = Words()
        self.tokenizer.vocab, self.tokenizer.special.unknown = vocab, unknown
        self.documents: Any = self

    def tokens(self, start: int, stop: int) -> np.ndarray:
        return self.words[start:stop]

    def find(self, offset: int) -> int:
        return int(np.searchsorted(self.starts, offset, side="right")) - 1

    def slice(self, start: int, stop: int) -> np.ndarray:
        return self.starts[start:stop]


def by_hand(
    documents: list[list[int]], counting: CountSettings, unknown: int | None = 1
) -> dict[tuple[int, int], Fraction]:
    """GloVe's table X, both ways, in exact fractions."""
    table: Counter[tuple[int, int]] = Counter()
    for document in documents:
        words = [word for word in document if word != unknown]
        for place, word in enumerate(words):
            for distance in range(1, min(counting.window, place) + 1):
                left, weight = words[place - distance], Fraction(1, distance if counting.by_distance else 1)
                table[left, word] += weight
                if counting.symmetric:
                    table[word, left] += weight
    return table


def as_table(entries: Cooccurrences, symmetric: bool) -> dict[tuple[int, int], float]:
    table = {}
    for row, column, value in zip(
        entries.rows.tolist(), entries.columns.tolist(), entries.counts.tolist(), strict=True
    ):
        assert not symmetric or row <= column
        assert (row, column) not in table
        table[row, column] = value
        if symmetric:
            table[column, row] = value
    return table


documents_ = st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=30), min_size=1, max_size=5)


@given(documents_, st.integers(1, 7), st.booleans(), st.booleans(), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_counts_are_exact_however_the_text_is_cut(
    documents: list[list[int]], window: int, symmetric: bool, by_distance: bool, stretch: int
) -> None:
    counting = CountSettings(window, symmetric, by_distance)
    expected = by_hand(documents, counting)
    counts: Counter[tuple[int, int]] = Counter()
    for keys, sums in count_pairs(Texts(documents), counting, stretch):
        assert (np.diff(keys) > 0).all()
        for key, value in zip(keys.tolist(), sums.tolist(), strict=True):
            counts[divmod(key, 12)] += Fraction(value, counting.unit)
    if symmetric:
        expected = {place: value for place, value in expected.items() if place[0] <= place[1]}
        counts = {place: 2 * value if place[0] == place[1] else value for place, value in counts.items()}
    assert dict(counts) == dict(expected)


@pytest.mark.parametrize("symmetric", [True, False])
def test_spills_leave_no_trace(tmp_path: Path, symmetric: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Much memory and hardly any: the same files, bit for bit, and both the table by hand."""
    chance = np.random.default_rng(0)
    documents = [chance.integers(0, 300, size).tolist() for size in (700, 1, 500, 1200)]
    counting, corpus = CountSettings(10, symmetric), Texts(documents, vocab=300)
    whole = count_cooccurrences(corpus, counting, tmp_path / "whole")
    runs: list[int] = []
    before = cooccurrence.merge_runs

    def count_runs(paths: list[Path], block: int) -> Any:
        runs.append(len(paths))
        return before(paths, block)

    monkeypatch.setattr(cooccurrence, "MIN_MEMORY", 0)
    monkeypatch.setattr(cooccurrence, "merge_runs", count_runs)
    count_cooccurrences(corpus, counting, tmp_path / "spilled", memory=30_000)
    assert runs[0] >= 3
    for name in cooccurrence.FILES:
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "spilled" / name).read_bytes()
    expected = {place: float(value) for place, value in by_hand(documents, counting).items()}
    counts = as_table(whole, symmetric)
    assert counts.keys() == expected.keys()
    np.testing.assert_allclose([counts[place] for place in expected], list(expected.values()), rtol=1e-15)
    assert {path.name for path in tmp_path.iterdir()} == {"whole", "spilled"}
    assert {path.name for path in (tmp_path / "spilled").iterdir()} == {*cooccurrence.FILES, "manifest.json"}


def test_entries_lie_in_a_random_order(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    entries = count_cooccurrences(
        Texts([chance.integers(0, 60, 3000).tolist()], vocab=60), CountSettings(5), tmp_path / "c"
    )
    rows = entries.rows.astype(int)
    assert abs(np.corrcoef(rows[1:], rows[:-1])[0, 1]) < 0.1


def test_it_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = count_cooccurrences(Texts([[2, 3, 4]]), CountSettings(2), tmp_path / "c")
    monkeypatch.setattr(cooccurrence, "count_pairs", None)
    again = count_cooccurrences(Texts([[2, 3, 4]]), CountSettings(2), tmp_path / "c")
    assert again.counts.tolist() == first.counts.tolist() and sorted(first.counts.tolist()) == [0.5, 1, 1]


def test_what_is_broken_is_told(tmp_path: Path) -> None:
    count_cooccurrences(Texts([[2, 3, 4]]), CountSettings(2), tmp_path / "c")
    (tmp_path / "c" / "counts.f64").write_bytes(b"half")
    with pytest.raises(UserError, match="Remove"):
        count_cooccurrences(Texts([[2, 3, 4]]), CountSettings(2), tmp_path / "c")
    (tmp_path / "c" / "manifest.json").write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        Cooccurrences.open(tmp_path / "c", 10)
    with pytest.raises(UserError, match="does not hold co-occurrences"):
        Cooccurrences.open(tmp_path / "absent", 10)
    with pytest.raises(UserError, match="too many pairs"):
        count_cooccurrences(Texts([[2, 3]], vocab=1 << 31), CountSettings(10), tmp_path / "d")


def test_a_flipped_bit_is_refused_by_name(tmp_path: Path) -> None:
    """Counts had no hash: another number of meetings was learnt."""
    count_cooccurrences(Texts([[2, 3, 4, 2, 5]]), CountSettings(2), tmp_path / "c")
    for path in sorted((tmp_path / "c").iterdir()):
        whole = path.read_bytes()
        for place in range(0, len(whole), max(1, len(whole) // 20)):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
            with pytest.raises(UserError, match=path.name if path.name != "manifest.json" else "cooccurrence|c"):
                Cooccurrences.open(tmp_path / "c", 10)
        path.write_bytes(whole)
    assert len(Cooccurrences.open(tmp_path / "c", 10)) > 0


def test_ids_beyond_the_vocabulary_are_refused(tmp_path: Path) -> None:
    """A stranger's corpus may bring counts whose hashes are right."""
    count_cooccurrences(Texts([[2, 3, 4]]), CountSettings(2), tmp_path / "c")
    with pytest.raises(UserError, match="vocabulary of 4 has not"):
        Cooccurrences.open(tmp_path / "c", 4)


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    work = tmp_path / ".c.counting"
    work.mkdir()
    (work / "run-0").write_bytes(b"x" * 16)
    assert len(count_cooccurrences(Texts([[2, 3, 4]]), CountSettings(2), tmp_path / "c")) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_runs_are_merged_block_by_block(tmp_path: Path) -> None:
    chance = np.random.default_rng(1)
    tables, paths = [], []
    for number, size in enumerate((500, 1, 0, 333)):
        table = np.stack(sum_by_key(chance.integers(0, 400, size), chance.integers(1, 9, size)), axis=1)
        path = tmp_path / f"run-{number}"
        table.astype(np.int64).tofile(path)
        tables.append(table)
        paths.append(path)
    whole = np.concatenate(tables)
    expected = sum_by_key(whole[:, 0], whole[:, 1])
    for block in (1, 7, 10_000):
        parts = list(merge_runs(paths, block))
        keys, sums = (np.concatenate([part[side] for part in parts]) for side in (0, 1))
        np.testing.assert_array_equal(keys, expected[0])
        np.testing.assert_array_equal(sums, expected[1])

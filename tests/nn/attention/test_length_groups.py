"""Runs of lengths of the least cost, against all ways to cut."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from etude.nn.attention.length_groups import find_cheapest_runs, round_lengths


@given(st.lists(st.lists(st.integers(0, 9), min_size=6, max_size=6), min_size=7, max_size=7), st.integers(0, 6))
def test_no_other_cut_is_cheaper(table: list[list[int]], count: int) -> None:
    costs = np.array(table)  # of a run, by its end and its beginning

    def total(runs: list[tuple[int, int]]) -> int:
        return int(sum(costs[end, begin] for begin, end in runs))

    runs = find_cheapest_runs(count, lambda end: costs[end, :end])
    inner = range(1, count)
    ways = [[0, *cut, count] for size in range(count) for cut in combinations(inner, size)] if count else [[0]]
    assert total(runs) == min(total(list(pairwise(way))) for way in ways)
    assert [*(begin for begin, _ in runs), count] == [0, *(end for _, end in runs)], "end to end, from first to last"


def test_lengths_are_rounded_up_and_counted() -> None:
    sizes, starts = round_lengths(np.array([1, 7, 8, 9, 16, 30]), 8)
    assert sizes.tolist() == [8, 16, 32]
    assert starts.tolist() == [0, 3, 5, 6]

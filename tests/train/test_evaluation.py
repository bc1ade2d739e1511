"""Held-out rows, streamed into micro-batches: the same as of the whole list, one row looked at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from etude.objectives.base import Row
from etude.train.evaluation import build_batches
from etude.train.loader import split_into_micro_batches
from etude.train.parallel import Ranks
from etude.train.settings import Settings


class LabelledRows:
    shuffle, row_tokens = True, None

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Row:
        length = self.lengths[index]
        return Row(index, np.zeros(length, np.int32), np.array([0, length], np.int32))


class Grouping:
    """An objective whose batches are the numbers of their rows."""

    def batch(self, rows: list[Row], chance: object) -> list[int]:
        return [row.index for row in rows]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(1, 100))
def test_streamed_groups_are_those_of_the_whole_list(lengths: list[int], limit: int) -> None:
    rows, objective = LabelledRows(lengths), Grouping()
    settings = Settings(batch_examples=8, epochs=1, micro_tokens=limit)
    streamed: Any = list(build_batches(objective, rows, settings, Ranks(), lanes=1))  # type: ignore[arg-type]
    groups = split_into_micro_batches([rows[number] for number in range(len(rows))], limit)
    assert streamed == [[row.index for row in group] for group in groups]

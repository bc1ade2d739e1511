"""The first pass: the sample that the tokenizer is trained on."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.text.prepare.scan import TokenizerSample


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 30)), min_size=1, max_size=60),
    st.integers(1, 200), st.booleans(), st.integers(1, 9),
)  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_the_sample_is_of_the_smallest_draws(
    documents: list[tuple[int, int]], limit: int, unique: bool, group: int
) -> None:
    """Whatever is added together; equal draws are of equal texts."""
    sizes = dict(documents)
    rows = [(draw, number, bytes([draw + 1]) * sizes[draw]) for number, (draw, _) in enumerate(documents)]
    sample = TokenizerSample(limit, unique)
    for start in range(0, len(rows), group):
        some = rows[start : start + group]
        draws, numbers = (np.array([row[place] for row in some]) for place in (0, 1))
        sample.add(draws.astype(np.uint64), numbers, [text for _, _, text in some])
    sample.trim()
    expected: list[tuple[int, int, bytes]] = []
    for row in sorted(rows, key=lambda row: row[:2]):
        if unique and expected and expected[-1][0] == row[0]:
            continue
        if expected and sum(len(text) for _, _, text in expected) + len(row[2]) > limit:
            break
        expected.append(row)
    assert list(zip(sample.draws.tolist(), sample.numbers.tolist(), sample.texts, strict=True)) == expected

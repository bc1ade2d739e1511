"""Which program has which part of which tensor: every element is somebody's, and only one program's."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from etude.train.tensor_lists import copy_to_device, split_into_chunks


@given(st.lists(st.integers(0, 70), max_size=12), st.integers(1, 16))
def test_every_element_is_one_programs(sizes: list[int], block: int) -> None:
    chunks = split_into_chunks(tuple(sizes), block, torch.device("cpu"))
    assert chunks.dtype == torch.int32 and chunks.shape[0] == 3
    seen = [np.zeros(size, dtype=int) for size in sizes]
    for tensor, number, left in chunks.t().tolist():
        assert 0 < left <= block and number * block + left <= sizes[tensor]
        seen[tensor][number * block : number * block + left] += 1
    assert all((count == 1).all() for count in seen)


def test_what_is_sent_arrives_as_it_was() -> None:
    values = np.array([[1, 2**40], [3, -4]], dtype=np.int64)
    assert np.array_equal(copy_to_device(values, torch.device("cpu")).numpy(), values)

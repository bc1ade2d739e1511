"""The reading order of recurrent layers: without indices for equal lengths, and with gradients that are looked up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from etude.nn.lstm import LSTM, LSTMState
from etude.nn.schedule import EqualSchedule, Schedule, find_schedule, permute, select_previous
from tests.nn.test_lstm import make_layout


class Operations(TorchDispatchMode):
    """Counts what is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.names[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("lengths", [[3, 3, 3, 3], [5], [1, 1]])
@pytest.mark.parametrize("reverse", [False, True])
def test_equal_lengths_need_no_indices(lengths: list[int], reverse: bool) -> None:
    layout = make_layout(lengths)
    found, expected = find_schedule(layout, reverse), find_schedule(replace(layout, equal=False), reverse)
    assert isinstance(found, EqualSchedule) and isinstance(expected, Schedule)
    assert found.batch_sizes == expected.batch_sizes
    x, initial = torch.randn(layout.total, 2), torch.randn(len(lengths), 2)
    for name in ("sort_tokens", "unsort_tokens"):
        assert torch.equal(getattr(found, name)(x), getattr(expected, name)(x)), name
    for name in ("sort_sequences", "unsort_sequences"):
        assert torch.equal(getattr(found, name)(initial), getattr(expected, name)(initial)), name
    assert torch.equal(found.select_last(initial, x), expected.select_last(initial, x))
    assert torch.equal(select_previous(initial, x, None), select_previous(initial, x, expected.previous))


def test_no_sequences_have_no_steps() -> None:
    assert find_schedule(replace(make_layout([]), longest=4, equal=True), reverse=False).batch_sizes == []


@pytest.mark.parametrize("lengths", [[4, 4, 4], [4, 2, 3]])
def test_no_gradient_of_a_layer_is_added_up_by_index(lengths: list[int]) -> None:
    """A GPU sorts an index for that; and equal lengths look nothing up at all."""
    layer, layout = LSTM(6, 8, projection=4, cell_clip=3.0, projection_clip=3.0), make_layout(lengths)
    find_schedule(layout, reverse=False)  # what it sends counts nothing
    carry = LSTMState(torch.randn(3, 4), torch.randn(3, 8))
    x = torch.randn(layout.total, 6, requires_grad=True)
    with Operations() as operations:
        outputs, _ = layer(x, layout, carry)
        outputs.sum().backward()
    assert operations.names["mm"] and not operations.names["index_put"] + operations.names["index_put_"]
    assert bool(operations.names["index"]) is (not layout.equal)


def test_a_permutation_has_the_gradients_of_an_index() -> None:
    order = torch.tensor([2, 0, 3, 1])
    inverse, x = order.argsort(), torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.equal(permute(x, order, inverse), x[order])

    def square(x: Tensor) -> Tensor:
        return permute(x, order, inverse).square()

    assert torch.autograd.gradcheck(square, [x]) and torch.autograd.gradgradcheck(square, [x])

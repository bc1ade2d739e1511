"""Two texts cut to fit as BERT's code does, and poolings by hand. How each family frames: test_contract.py."""

from __future__ import annotations

import pytest
import torch

from etude.models.framing import Pooling, fit, pool
from etude.nn.packed import pack


def test_the_longer_text_gives_way() -> None:
    assert fit([5, 9], 20) == [5, 9] and fit([30], 20) == [20] and fit([5, 9], None) == [5, 9]
    assert fit([5, 30], 20) == [5, 15] and fit([30, 5], 20) == [15, 5]
    assert fit([30, 30], 21) == [11, 10]
    for first in range(1, 12):
        for second in range(1, 12):
            for room in range(2, 24):
                left, right = first, second  # BERT's loop: drop from the longer, of equals from the second
                while left + right > room:
                    left, right = (left - 1, right) if left > right else (left, right - 1)
                assert fit([first, second], room) == [left, right], (first, second, room)


@pytest.mark.parametrize("how", ["start", "mean", "last", "max"])
def test_pooling_by_hand(how: Pooling) -> None:
    sequences = [[1], [2, 3, 4], [5, 6]]
    layout = pack(sequences).layout
    last = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    pooled = pool(last, layout, how)
    parts = [last[0:1], last[1:4], last[4:6]]
    reduce = {"start": lambda x: x[0], "last": lambda x: x[-1], "mean": lambda x: x.mean(0), "max": lambda x: x.amax(0)}
    wanted = torch.stack([reduce[how](part) for part in parts])
    torch.testing.assert_close(pooled, wanted)
    weight = torch.randn_like(wanted)
    left, right = (torch.autograd.grad((x * weight).sum(), last, retain_graph=True)[0] for x in (pooled, wanted))
    torch.testing.assert_close(left, right)

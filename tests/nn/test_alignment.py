"""Scores of recurrent attention, by the papers' formulas, one pair at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from etude.nn.alignment import Alignment, Score
from etude.nn.packed import pack

LENGTHS = [4, 2, 7]


@torch.no_grad()
def by_hand(alignment: Alignment, query: Tensor, states: Tensor) -> Tensor:
    """The weights of one query (Q,) over the tokens of one source (L, K)."""
    scores = []
    for state in states:
        if alignment.score == "additive":
            inner = alignment.query.weight @ query + alignment.query.bias + alignment.key.weight @ state
            scores.append(alignment.value.weight[0] @ torch.tanh(inner))
        elif alignment.score == "general":
            scores.append(query @ (alignment.key.weight @ state))
        else:
            scores.append(query @ state)
    exps = [math.exp(float(score)) for score in scores]
    if alignment.window is None:
        return torch.tensor([each / sum(exps) for each in exps])
    inner = torch.tanh(alignment.place.weight @ query)
    place = len(states) / (1 + math.exp(-float(alignment.place_value.weight[0] @ inner)))
    near = [abs(index - place) <= alignment.window for index in range(len(states))]
    total = sum(each for each, is_near in zip(exps, near, strict=True) if is_near)
    return torch.tensor([
        each / total * math.exp(-((index - place) ** 2) / (2 * (alignment.window / 2) ** 2)) if is_near else 0.0
        for index, (each, is_near) in enumerate(zip(exps, near, strict=True))
    ])  # fmt: skip


@pytest.mark.parametrize("score", ["additive", "dot", "general"])
@pytest.mark.parametrize("window", [None, 1, 2])
def test_weights_are_those_of_the_formula(score: Score, window: int | None) -> None:
    torch.manual_seed(0)
    alignment = Alignment(5, 5, score, 3, window)
    packed = pack([[1] * length for length in LENGTHS])
    states, query = torch.randn(13, 5), torch.randn(3, 5)
    seen, weights = alignment(query, alignment.project(states, packed.layout))
    for number, part in enumerate(states.split(LENGTHS)):
        expected = by_hand(alignment, query[number], part)
        torch.testing.assert_close(weights[number, : len(part)], expected, atol=1e-5, rtol=1e-4)
        assert not weights[number, len(part) :].any()
        torch.testing.assert_close(seen[number], expected @ part, atol=1e-5, rtol=1e-4)


def test_cost_is_counted_over_real_tokens() -> None:
    alignment = Alignment(5, 6, "additive", 3)
    source, target = np.array([4, 2]), np.array([3, 1])
    assert alignment.flops(source, target) == 2 * (6 * 6 * 3 + 4 * 5 * 3 + 14 * 3 + 14 * 6)

"""Attention at some places is that among all, and rows of queries are as long as they must be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from etude.nn.attention import query_subset, shared_rows
from etude.nn.attention.dispatch import attend_reference
from etude.nn.attention.query_subset import attend_query_subset, locate_queries
from etude.nn.attention.shared_rows import get_plan, make_plan
from tests.nn.attention.natural_rows import MASKS, NATURAL, make_layout, random_qkv


@pytest.mark.parametrize("price", [1.0, 1e9])
@pytest.mark.parametrize("causal, window", MASKS)
@pytest.mark.parametrize("lengths", [NATURAL, [16] * 5, [8, 8, 0, 8], [300, 1, 2]])
def test_a_query_subset_equals_the_same_rows_of_all(
    monkeypatch: pytest.MonkeyPatch, lengths: list[int], causal: bool, window: int | None, price: float
) -> None:
    """Value and gradients; places in any order, none of some sequences, one of them three times."""
    monkeypatch.setattr(shared_rows, "_PRICE", price)
    layout = make_layout(lengths)
    chance = torch.Generator().manual_seed(1)
    places = torch.randperm(layout.total, generator=chance)[: layout.total // 4 + 1]
    places = torch.cat([places, places[:1], places[:1]])
    approximate, far = random_qkv(layout), random_qkv(layout)
    result = attend_query_subset(
        approximate[places, 0], approximate[:, 1:], layout, places, causal=causal, window=window, dropout=0.0
    )
    expected = attend_reference(*far.unbind(1), layout, causal=causal, window=window)[0][places]
    torch.testing.assert_close(result, expected, rtol=1e-10, atol=1e-12)
    grad_out = torch.randn(result.shape, generator=chance, dtype=torch.float64)
    result.backward(grad_out)
    expected.backward(grad_out)
    torch.testing.assert_close(approximate.grad, far.grad, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("places", [[], [2, 299, 5], [306]])
def test_unused_rows_get_no_gradient(monkeypatch: pytest.MonkeyPatch, places: list[int]) -> None:
    monkeypatch.setattr(shared_rows, "_PRICE", 1.0)
    layout = make_layout([304, 1, 2])
    assert len(get_plan(layout).rows) == 2
    qkv, index = random_qkv(layout), torch.tensor(places, dtype=torch.int64)
    result = attend_query_subset(qkv[index, 0], qkv[:, 1:], layout, index, causal=False, window=None, dropout=0.0)
    assert result.shape == (len(places), 2, 8)
    result.sum().backward()
    owners = np.repeat([0, 1, 2], [304, 1, 2])
    moved = set(owners[qkv.grad[:, 2].flatten(1).any(1).numpy()])
    assert moved == set(owners[places])


@pytest.mark.parametrize("lengths", [[], [0], [0, 0]])
def test_no_tokens_have_no_results(lengths: list[int]) -> None:
    layout = make_layout(lengths)
    qkv, index = random_qkv(layout), torch.zeros(0, dtype=torch.int64)
    result = attend_query_subset(qkv[index, 0], qkv[:, 1:], layout, index, causal=True, window=None, dropout=0.5)
    assert result.shape == (0, 2, 8)
    result.sum().backward()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=12).filter(any), st.randoms(use_true_random=False))
def test_every_query_is_in_its_row_once(lengths: list[int], chance: Any) -> None:
    layout = make_layout(lengths)
    places = np.array(chance.sample(range(layout.total), chance.randint(0, layout.total)), np.int64)
    plan = make_plan(layout.host)
    seen: list[int] = []
    for rows, requested in zip(plan.rows, locate_queries(plan, places), strict=True):
        assert requested.queries.shape == requested.slots.shape
        assert requested.slots.shape[1] % query_subset._GRAIN == 0
        for row, numbers, slots in zip(rows.tokens, *requested, strict=True):
            result = numbers[numbers >= 0]
            np.testing.assert_array_equal(places[result], row[slots[numbers >= 0]])
            seen += result.tolist()
    assert sorted(seen) == list(range(len(places)))


def test_dropped_weights_of_few_queries_keep_the_mean() -> None:
    """The mean over many draws is the plain result."""
    layout = make_layout([24] * 200)
    qkv = random_qkv(layout, torch.float32).detach()
    qkv[:] = qkv[:24].repeat(200, 1, 1, 1)  # 200 times the same sequence
    places = torch.arange(3, layout.total, 24)
    torch.manual_seed(0)
    result = attend_query_subset(qkv[places, 0], qkv[:, 1:], layout, places, causal=False, window=None, dropout=0.3)
    plain = attend_query_subset(qkv[places, 0], qkv[:, 1:], layout, places, causal=False, window=None, dropout=0.0)
    assert float((result.std(0) > 0).float().mean()) == 1.0
    torch.testing.assert_close(result.mean(0), plain.mean(0), rtol=0, atol=0.08)


def test_dropout_gradients_follow_the_mask() -> None:
    layout, places = make_layout([5, 3, 1]), torch.tensor([7, 0, 4])
    qkv = random_qkv(layout, heads=1, size=2)

    def run(given: Tensor) -> Tensor:
        torch.manual_seed(4)
        return attend_query_subset(
            given[places, 0], given[:, 1:], layout, places, causal=False, window=None, dropout=0.3
        )

    assert torch.autograd.gradcheck(run, qkv)

"""How sequences of several lengths become a few dense batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.nn.attention import grouped
from etude.nn.attention.dispatch import attend_packed, attend_reference
from etude.nn.attention.grouped import attend_grouped, get_plan, make_plan
from etude.nn.packed import Layout

CPU = torch.device("cpu")


def bounds_of(lengths: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 300), min_size=0, max_size=40))
def test_every_token_fills_one_slot_of_its_sequence(lengths: list[int]) -> None:
    plan = make_plan(bounds_of(lengths), CPU)
    total = sum(lengths)
    if plan.token_of_slot is None or plan.slot_of_token is None:
        assert len({length for length in lengths if length}) <= 1
        return
    tokens, slots = plan.token_of_slot.numpy(), plan.slot_of_token.numpy()
    np.testing.assert_array_equal(tokens[slots], np.arange(total))
    assert (tokens >= 0).sum() == total
    owner = np.repeat(np.arange(len(lengths)), lengths)
    start = 0
    for bucket in plan.buckets:
        assert bucket.length == bucket.lengths.max()
        rows = tokens[start : start + len(bucket.lengths) * bucket.length].reshape(-1, bucket.length)
        for row, length in zip(rows, bucket.lengths, strict=True):
            assert (row[length:] == -1).all()
            assert len(set(owner[row[:length]])) == 1
            assert length == lengths[owner[row[0]]]
            np.testing.assert_array_equal(np.diff(row[:length]), 1)
        start += rows.size
    assert start == len(tokens)


def test_equal_lengths_are_reshaped_and_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout.from_bounds(bounds_of([8, 8, 0, 8, 0, 0]), 8)
    parts = torch.randn(24, 3, 2, 4)
    seen = []

    def watch(query: torch.Tensor, *rest: object) -> torch.Tensor:
        seen.append(query.data_ptr() == parts.data_ptr())
        return query.contiguous()

    monkeypatch.setattr(grouped, "attend_dense", watch)
    attend_grouped(parts, layout, causal=True)
    assert seen == [True]


def test_the_buckets_waste_little_and_are_few() -> None:
    lengths = np.random.default_rng(0).integers(1, 129, 128)
    plan = make_plan(bounds_of(list(lengths)), CPU)
    padded = sum(len(bucket.lengths) * bucket.length**2 for bucket in plan.buckets)
    assert padded < 1.15 * (lengths**2).sum()
    assert len(plan.buckets) <= 16
    on_gpu = grouped.choose_buckets(np.arange(128), np.sort(lengths), grouped._PRICE_GPU)
    assert len(on_gpu) <= 3  # there a further call costs more than padding


def test_the_plan_is_made_once_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    original = grouped.make_plan
    monkeypatch.setattr(grouped, "make_plan", lambda *given: calls.append(1) or original(*given))
    layout = Layout.from_bounds(bounds_of([3, 5]), 8)
    for _ in range(4):
        attend_grouped(torch.randn(8, 3, 1, 4), layout, causal=False)
    assert len(calls) == 1
    assert get_plan(layout, CPU) is get_plan(layout, CPU)
    assert layout.to("cpu").cache == {}, "a moved layout makes its own plan"


def test_masks_are_made_once_and_are_finite() -> None:
    layout = Layout.from_bounds(bounds_of([3, 5, 5, 4]), 8)
    plan = get_plan(layout, CPU)
    for causal in (False, True):
        for window in (None, 1):
            for dtype in (torch.float32, torch.float16):
                mask = plan.mask(0, causal, window, dtype)
                assert mask is plan.mask(0, causal, window, dtype)
                if causal and window is None:
                    assert mask is None, "right padding is never in a causal query's past"
                else:
                    assert mask is not None
                    assert torch.isfinite(mask).all()


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bfloat16 says so, and goes on
@pytest.mark.parametrize("dtype, close", [(torch.float64, 1e-12), (torch.bfloat16, 0.01)])
@pytest.mark.parametrize("causal", [False, True])
def test_one_projection_of_equal_lengths_is_its_three_parts(dtype: torch.dtype, close: float, causal: bool) -> None:
    """Value and gradient, by plain products (bf16) and by torch's form, against the reference."""
    layout = Layout.from_bounds(bounds_of([8, 8, 8]), 8)
    torch.manual_seed(0)
    exact = torch.randn(24, 3, 2, 4, dtype=torch.float64).bfloat16().double().requires_grad_()
    grad_probs = torch.randn(24, 2, 4, dtype=torch.float64).bfloat16().double()
    full = exact.detach().to(dtype).requires_grad_()
    result = attend_packed(full, layout, causal=causal)
    target, _ = attend_reference(*exact.unbind(1), layout, causal=causal)
    result.backward(grad_probs.to(dtype))
    target.backward(grad_probs)
    for actual, expected in ((result.detach(), target.detach()), (full.grad, exact.grad)):
        assert actual is not None
        assert expected is not None
        assert float((actual.double() - expected).norm() / expected.norm()) < close

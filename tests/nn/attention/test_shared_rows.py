"""Short sequences share the rows of dense attention, and never see each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from etude.nn.attention import grouped, shared_rows
from etude.nn.attention.dispatch import attend_packed, attend_reference
from etude.nn.attention.shared_rows import attend_shared_rows, get_plan, make_plan
from tests.nn.attention.natural_rows import MASKS, NATURAL, make_layout, random_qkv

pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bfloat16 says so, and goes on


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 300), max_size=40), st.sampled_from([1.0, 1e4, 1e9]))
def test_every_token_has_one_slot_and_every_sequence_a_stretch_of_a_row(lengths: list[int], price: float) -> None:
    before, shared_rows._PRICE = shared_rows._PRICE, price
    try:
        plan = make_plan(make_layout(lengths).host)
    finally:
        shared_rows._PRICE = before
    owner = np.repeat(np.arange(len(lengths)), lengths)
    seen: list[int] = []
    for rows in plan.rows:
        shared = len(rows.owners)
        assert rows.length % 16 == 0
        np.testing.assert_array_equal(rows.owners < 0, rows.tokens[:shared] < 0)
        real = rows.owners >= 0
        np.testing.assert_array_equal(owner[rows.tokens[:shared][real]], rows.owners[real])
        assert (rows.tokens[shared:] >= 0).all(), "what has no mask has no padding"
        for row in rows.tokens[shared:]:
            assert lengths[owner[row[0]]] == rows.length
        for row in rows.tokens:
            result = row[row >= 0]
            first = np.flatnonzero(np.diff(np.append(-1, owner[result])))  # where another sequence begins
            assert len(set(owner[result[first]])) == len(first), "a sequence is not cut"
            for stretch in np.split(result, first[1:]):
                assert len(stretch) == lengths[owner[stretch[0]]]
                np.testing.assert_array_equal(np.diff(stretch), 1)
            seen += result.tolist()
    assert sorted(seen) == list(range(sum(lengths)))


def test_a_batch_of_natural_lengths_is_about_as_large_as_a_full_one() -> None:
    """Two thirds of the sequences fill a row, as in a real corpus; the others are anything."""
    chance = np.random.default_rng(0)
    lengths = [128] * 26 + chance.integers(2, 128, 12).tolist()
    (rows,) = make_plan(make_layout(lengths).host).rows
    assert rows.length == 128
    assert rows.tokens.size < 1.1 * sum(lengths)
    assert len(rows.tokens) - len(rows.owners) == 26, "and they need no mask"


def test_long_rows_are_not_for_short_sequences() -> None:
    lengths = [512] * 4 + [20] * 200
    long, short = make_plan(make_layout(lengths).host).rows
    assert (long.length, short.length) == (512, 32)
    assert long.tokens.shape[0] == 4


@pytest.mark.parametrize("price", [1.0, 1e9])
@pytest.mark.parametrize("causal, window", MASKS)
@pytest.mark.parametrize("lengths", [NATURAL, [16, 16, 3], [40]])
def test_it_is_the_reference_forward_and_backward(
    monkeypatch: pytest.MonkeyPatch, price: float, causal: bool, window: int | None, lengths: list[int]
) -> None:
    monkeypatch.setattr(shared_rows, "_PRICE", price)
    layout = make_layout(lengths)
    qkv = random_qkv(layout)
    result = attend_shared_rows(qkv, layout, causal=causal, window=window, dropout=0.0)
    expected, _ = attend_reference(*qkv.unbind(1), layout, causal=causal, window=window)
    torch.testing.assert_close(result, expected, rtol=1e-10, atol=1e-12)
    grad = torch.randn_like(result)
    actual, reference = (torch.autograd.grad(item, qkv, grad)[0] for item in (result, expected))
    torch.testing.assert_close(actual, reference, rtol=1e-10, atol=1e-12)


def test_one_size_and_several_give_the_same() -> None:
    layout = make_layout(NATURAL)
    assert len(get_plan(layout).rows) == 1
    price, shared_rows._PRICE = shared_rows._PRICE, 1.0
    try:
        assert len(make_plan(layout.host).rows) > 2
    finally:
        shared_rows._PRICE = price


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_no_sequence_moves_another(dtype: torch.dtype, dropout: float) -> None:
    """Not by a bit, whatever stands in it: neither its result nor its gradient."""
    layout = make_layout(NATURAL)

    def run(qkv: Tensor) -> tuple[Tensor, Tensor]:
        qkv = qkv.detach().requires_grad_()
        torch.manual_seed(0)
        out = attend_shared_rows(qkv, layout, causal=False, window=None, dropout=dropout)
        return out.detach(), torch.autograd.grad(out, qkv, torch.ones_like(out))[0]

    qkv = random_qkv(layout, dtype)
    before = run(qkv)
    for sequence in (0, 2, 7):
        here = slice(int(layout.host[sequence]), int(layout.host[sequence + 1]))
        moved = qkv.detach().clone()
        moved[here] = moved[here] * 50 + 7
        rest = torch.ones(layout.total, dtype=torch.bool)
        rest[here] = False
        for old, new in zip(before, run(moved), strict=True):
            assert torch.equal(old[rest], new[rest])
            assert not torch.equal(old[here], new[here])


@pytest.mark.parametrize("causal", [False, True])
def test_dropout_gradients_follow_the_mask(causal: bool) -> None:
    layout = make_layout([5, 3, 16, 7])
    qkv = random_qkv(layout, size=4, heads=1)

    def run(given: Tensor) -> Tensor:
        torch.manual_seed(4)
        return attend_shared_rows(given, layout, causal=causal, window=None, dropout=0.3)

    assert not torch.equal(run(qkv), attend_shared_rows(qkv, layout, causal=causal, window=None, dropout=0.0))
    assert torch.autograd.gradcheck(run, qkv)


def test_only_training_in_bf16_takes_this_path(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = make_layout(NATURAL)
    calls: list[bool] = []
    original = grouped.attend_shared_rows

    def watched(*given: Tensor, **said: bool) -> Tensor:
        calls.append(True)
        return original(*given, **said)  # type: ignore[arg-type]

    monkeypatch.setattr(grouped, "attend_shared_rows", watched)
    qkv = random_qkv(layout, torch.bfloat16)
    approximate = attend_packed(qkv, layout, causal=False)
    assert len(calls) == 1
    exact = attend_packed(qkv.double(), layout, causal=False)
    attend_packed(qkv.detach(), layout, causal=False)
    attend_packed(
        random_qkv(make_layout([8, 8, 0]), torch.bfloat16), make_layout([8, 8, 0]), causal=False
    )  # dense as it lies
    assert len(calls) == 1
    attend_packed(qkv.float(), layout, causal=False, dropout=0.1)
    assert len(calls) == 2
    assert float((approximate.double() - exact).detach().norm() / exact.detach().norm()) < 0.006


def test_plan_masks_and_orders_are_made_once_a_batch() -> None:
    layout = make_layout(NATURAL)
    plan = get_plan(layout)
    assert get_plan(layout) is plan
    assert plan.slot_map(3, 2) is plan.slot_map(3, 2)
    assert plan.mask(0, False, None, torch.float32) is plan.mask(0, False, None, torch.float32)
    masks = plan.mask(0, False, None, torch.float32)
    assert len(masks) == 1 and len(masks[0].added) == len(plan.rows[0].owners), "full rows have none"
    assert torch.isfinite(masks[0].added).all()
    assert layout.to("cpu").cache == {}

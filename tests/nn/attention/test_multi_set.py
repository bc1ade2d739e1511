"""A softmax over several sets of keys: every path against scores written out one pair at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from etude.errors import UserError
from etude.nn.attention import multi_set
from etude.nn.attention.multi_set import KeySet, NullSlot, attend_multi_set, sequence_edges, shift
from etude.nn.packed import Layout
from tests.nn.attention import flash_emulation

HEADS, SIZE = 2, 8
LENGTHS = [3, 0, 1, 5, 2, 0, 0]
VARIANTS: dict[str, list[tuple[multi_set.Reach, bool]]] = {
    "full": [("past", False), ("future", False)],
    "current": [("past", True), ("future", True)],
    "none": [("all", True), ("all", True)],
    "past": [("past", True)],
    "before": [("past", False)],
    "future": [("future", True)],
    "three": [("past", False), ("future", False), ("all", True)],
}


def make_layout(lengths: list[int]) -> Layout:
    return Layout.from_bounds(np.concatenate([[0], np.cumsum(lengths)]), max(lengths) + 1)


def random_tensors(layout: Layout, parts: int, dtype: torch.dtype) -> list[Tensor]:
    """Query, keys and values of each part, slot key, slot value, gradient."""
    generator = torch.Generator().manual_seed(3)
    shapes = [(layout.total, HEADS, SIZE)] * (1 + 2 * parts) + [(HEADS, SIZE)] * 2 + [(layout.total, HEADS, SIZE)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def sees(reach: str, edge: bool, query: int, key: int, length: int) -> bool:
    if reach == "all":
        return True
    if reach == "past":
        return key <= query and (edge or key != 0)
    return key >= query and (edge or key != length - 1)


def reference_attention(
    tensors: list[Tensor], variant: list[tuple[multi_set.Reach, bool]], slot: bool, layout: Layout
) -> Tensor:
    """Every query alone, its keys in a list: no masks, no matrices, no helper of the code that is tested."""
    query, *flat = tensors[:-3]
    slot_key, slot_value = tensors[-3:-1]
    rows = []
    for start, stop in zip(layout.host[:-1].tolist(), layout.host[1:].tolist(), strict=True):
        for place in range(start, stop):
            heads = []
            for head in range(HEADS):
                pairs = [
                    (flat[2 * number][right, head], flat[2 * number + 1][right, head])
                    for number, (reach, edge) in enumerate(variant)
                    for right in range(start, stop)
                    if sees(reach, edge, place - start, right - start, stop - start)
                ]
                if slot:
                    pairs.append((slot_key[head], slot_value[head]))
                if not pairs:
                    heads.append(0 * query[place, head])
                    continue
                scores = torch.stack([(query[place, head] * key).sum() / math.sqrt(SIZE) for key, _ in pairs])
                weights = scores.exp() / scores.exp().sum()
                heads.append(sum((w * value for w, (_, value) in zip(weights, pairs, strict=True)), torch.zeros(SIZE)))
            rows.append(torch.stack(heads))
    return torch.stack(rows)


def outcome(
    path: str | None, dtype: torch.dtype, variant: list[tuple[multi_set.Reach, bool]], slot: bool, layout: Layout
) -> list[Tensor]:
    """The result and the gradients of everything it depends on."""
    *leaves, grad_out = (item.requires_grad_() for item in random_tensors(layout, len(variant), dtype))
    if path is None:
        out = reference_attention([*leaves, grad_out], variant, slot, layout)
    else:
        flat = leaves[1:-2]
        parts = [KeySet(flat[2 * n], flat[2 * n + 1], *sight) for n, sight in enumerate(variant)]
        out = attend_multi_set(leaves[0], parts, layout, slot=(leaves[-2], leaves[-1]) if slot else None, path=path)
    target = leaves if slot else leaves[:-2]
    result = torch.autograd.grad(out, target, grad_out.detach(), allow_unused=True)
    zeros = (torch.zeros_like(item) if grad is None else grad for item, grad in zip(target, result, strict=True))
    return [out.detach().double(), *(item.double() for item in zeros)]


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multi_set, "_flash", flash_emulation.forward)
    monkeypatch.setattr(multi_set, "_flash_backward", flash_emulation.backward)


@pytest.mark.parametrize("slot", [False, True], ids=["plain", "slot"])
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("path", ["grouped", "reference", "varlen"])
def test_every_path_is_the_softmax_over_all_sets(path: str, name: str, slot: bool, emulated: None) -> None:
    layout = make_layout(LENGTHS)
    expected = outcome(None, torch.float64, VARIANTS[name], slot, layout)
    for result, item in zip(outcome(path, torch.float32, VARIANTS[name], slot, layout), expected, strict=True):
        assert torch.isfinite(result).all()
        torch.testing.assert_close(result, item, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("path", ["grouped", "reference", "varlen"])
@pytest.mark.parametrize("lengths", [[4, 4, 4], [1], [1, 1, 0], [9]])
def test_equal_lengths_single_tokens_and_one_sequence(path: str, lengths: list[int], emulated: None) -> None:
    layout = make_layout(lengths)
    expected = outcome(None, torch.float64, VARIANTS["full"], False, layout)
    for result, item in zip(outcome(path, torch.float32, VARIANTS["full"], False, layout), expected, strict=True):
        torch.testing.assert_close(result, item, rtol=1e-5, atol=1e-5)


def test_the_derivative_of_the_joined_kernels_is_that_of_finite_differences(emulated: None) -> None:
    """In float64 but for the log-sum-exp, which the kernels keep in float32."""
    layout = make_layout([3, 1, 4])
    query, *flat, slot_key, slot_value, _ = (item.requires_grad_() for item in random_tensors(layout, 2, torch.float64))

    def mixed(*given: Tensor) -> Tensor:
        parts = [KeySet(given[1], given[2], "past", False), KeySet(given[3], given[4], "future", False)]
        return attend_multi_set(given[0], parts, layout, slot=(given[5], given[6]), path="varlen")

    inputs = (query, *flat, slot_key, slot_value)
    assert torch.autograd.gradcheck(mixed, inputs, eps=1e-3, atol=2e-3, rtol=1e-2, fast_mode=True)


def test_dropout_keeps_the_mean_and_drops_the_slot_too() -> None:
    layout = make_layout([6, 3])
    query, *flat, slot_key, slot_value, _ = random_tensors(layout, 2, torch.float32)
    parts = [KeySet(flat[0], flat[1], "past", False), KeySet(flat[2], flat[3], "future", False)]
    torch.manual_seed(0)
    for path in ("grouped", "reference"):
        plain = attend_multi_set(query, parts, layout, slot=(slot_key, slot_value), path=path)
        dropped = [
            attend_multi_set(query, parts, layout, slot=(slot_key, slot_value), dropout=0.3, path=path)
            for _ in range(150)
        ]
        assert not torch.equal(dropped[0], plain)
        torch.testing.assert_close(torch.stack(dropped).mean(0), plain, rtol=0, atol=0.35)


def test_no_tokens_is_no_error() -> None:
    layout = Layout.from_bounds(np.array([0, 0, 0]), 4)
    empty = torch.zeros(0, HEADS, SIZE)
    assert attend_multi_set(empty, [KeySet(empty, empty, "past")], layout).shape == (0, HEADS, SIZE)


def test_an_unknown_path_is_an_error() -> None:
    layout, item = make_layout([2]), torch.zeros(2, HEADS, SIZE)
    with pytest.raises(UserError, match="reference"):
        attend_multi_set(item, [KeySet(item, item, "past")], layout, path="flex")
    with pytest.raises(ValueError, match="ends at"):
        attend_multi_set(item[:1], [KeySet(item, item, "past")], layout)


def test_neighbours_are_of_the_same_sequence() -> None:
    layout = make_layout([3, 0, 1, 2, 0])
    x = torch.arange(1.0, 7.0)[:, None]
    assert shift(x, layout, 1)[:, 0].tolist() == [0, 1, 2, 0, 0, 5]
    assert shift(x, layout, -1)[:, 0].tolist() == [2, 3, 0, 0, 6, 0]
    first, last = sequence_edges(layout, 6)
    assert first.tolist() == [True, False, False, True, True, False]
    assert last.tolist() == [False, False, True, True, False, True]


def test_a_zero_slot_is_a_constant() -> None:
    learned, zero = NullSlot(2, 4, "learned"), NullSlot(2, 4, "zero")
    assert len(list(learned.parameters())) == 2 and not list(zero.parameters()) and not zero.state_dict()
    assert zero()[0].shape == (2, 4)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_torch_kernels_get_valid_arguments(dropout: float) -> None:
    """By their shape functions alone, which every torch brings: what goes in, what comes out, forward and backward."""
    with torch.device("meta"):
        query, *flat = (torch.zeros(13, HEADS, SIZE, dtype=torch.bfloat16, requires_grad=True) for _ in range(5))
        slot = tuple(torch.zeros(HEADS, SIZE, requires_grad=True) for _ in range(2))
        layout = Layout(torch.zeros(6, dtype=torch.int32), np.array([0, 5, 5, 6, 13, 13], np.int32), 8, False)
        parts = [KeySet(flat[0], flat[1], "past", False), KeySet(flat[2], flat[3], "future", False)]
        out = attend_multi_set(query, parts, layout, slot=(slot[0], slot[1]), dropout=dropout, path="varlen")
        assert out.shape == query.shape and out.dtype == query.dtype
        result = torch.autograd.grad(out.float().sum(), [query, *flat, *slot])
    assert [item.shape for item in result] == [(13, HEADS, SIZE)] * 5 + [(HEADS, SIZE)] * 2


@pytest.mark.slow
def test_the_joined_kernels_are_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled, with kernels that a compiler cannot look into, as on a GPU."""

    @torch.library.custom_op("etude_test::flash", mutates_args=())
    def flash(
        query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, longest: int, causal: bool, dropout: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return flash_emulation.forward(query, key, value, bounds, longest, causal, dropout)

    @flash.register_fake
    def _(query: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        lse = query.new_empty((query.shape[1], query.shape[0]), dtype=torch.float32)
        return torch.empty_like(query), lse, lse.new_empty(2), lse.new_empty(0)

    @torch.library.custom_op("etude_test::flash_backward", mutates_args=())
    def flash_backward(
        grad: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        lse: Tensor,
        bounds: Tensor,
        longest: int,
        causal: bool,
        dropout: float,
        state: Tensor,
        unused: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        given = (grad, query, key, value, out, lse, bounds, longest, causal, dropout, state, unused)
        return flash_emulation.backward(*given)

    @flash_backward.register_fake
    def _(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)

    monkeypatch.setattr(multi_set, "_flash", flash)
    monkeypatch.setattr(multi_set, "_flash_backward", flash_backward)
    layout = make_layout(LENGTHS)
    *leaves, grad_out = (left.requires_grad_() for left in random_tensors(layout, 2, torch.float32))

    def mixed(*given: Tensor) -> Tensor:
        parts = [KeySet(given[1], given[2], "past", False), KeySet(given[3], given[4], "future", False)]
        return attend_multi_set(given[0], parts, layout, slot=(given[5], given[6]), path="varlen")

    multi_set.allow_in_graph()
    compiled = torch.compile(mixed, backend="aot_eager", fullgraph=True, dynamic=False)
    for left, right in zip(
        _with_gradients(mixed, leaves, grad_out), _with_gradients(compiled, leaves, grad_out), strict=True
    ):
        torch.testing.assert_close(left, right)


@pytest.mark.gpu
def test_compiled_kernels_have_the_gradients_of_eager_ones() -> None:
    """The backward kernel once got log-sum-exps in another order of places than it reads them, compiled alone."""
    layout = make_layout(LENGTHS).to("cuda")
    *leaves, grad_out = (
        left.to("cuda", torch.bfloat16).requires_grad_() for left in random_tensors(layout, 2, torch.float32)
    )

    def mixed(*given: Tensor) -> Tensor:
        parts = [KeySet(given[1], given[2], "past", False), KeySet(given[3], given[4], "future", False)]
        return attend_multi_set(given[0], parts, layout, slot=(given[5], given[6]), path="varlen")

    multi_set.allow_in_graph()
    compiled = torch.compile(mixed, dynamic=False)
    for left, right in zip(
        _with_gradients(mixed, leaves, grad_out), _with_gradients(compiled, leaves, grad_out), strict=True
    ):
        torch.testing.assert_close(left, right, atol=0.02, rtol=0.05)


def _with_gradients(function: Callable[..., Tensor], leaves: list[Tensor], slope: Tensor) -> list[Tensor]:
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, slope.detach())]

"""Attention by our Triton kernels against the reference: on a GPU by name, elsewhere in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from etude.nn.attention import dispatch as attention
from etude.nn.attention.dispatch import attend, attend_packed
from etude.nn.packed import Layout
from tests.nn.triton.launches import Watched


def test_in_the_interpreter(in_the_interpreter: Callable[[str], None]) -> None:
    in_the_interpreter(__file__)


def make_layout(lengths: list[int], longest: int) -> Layout:
    return Layout.from_bounds(np.concatenate([[0], np.cumsum(lengths)]), longest)


def attention_of(qkv: Tensor, layout: Layout, causal: bool, path: str, grad_out: Tensor) -> tuple[Tensor, Tensor]:
    out = attend(*qkv.unbind(1), layout, causal=causal, path=path)
    return out.detach(), torch.autograd.grad(out, qkv, grad_out)[0]


def is_the_reference(path: str, layout: Layout, size: int, causal: bool, error: float) -> None:
    torch.manual_seed(1)
    qkv = torch.randn(layout.total, 3, 2, size, requires_grad=True)
    grad_out = torch.randn(layout.total, 2, size)
    actual, expected = (attention_of(qkv, layout, causal, item, grad_out) for item in (path, "reference"))
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=error)


@pytest.mark.interpreted
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [16, 24])  # a power of two, and not one
def test_short_sequences(causal: bool, size: int) -> None:
    is_the_reference("short", make_layout([5, 0, 16, 1, 9, 0], 16), size, causal, 1e-6)


@pytest.mark.interpreted
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tiles, size", [((32, 16), 16), ((16, 32), 24), ((16, 16), 16)])  # a power of two, and not one
def test_tiles(causal: bool, tiles: tuple[int, int], size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths at, before and behind the edges of tiles; empty sequences; fewer tokens than the bound."""
    from etude.nn.triton import tiled_attention

    for kernel in ("FORWARD", "QUERY_GRAD", "KEY_GRAD", "KEY_GRAD_CAUSAL"):
        held = kernel == "KEY_GRAD_CAUSAL"
        monkeypatch.setattr(tiled_attention, kernel, tiled_attention.Tiles(*tiles, 4, 2, 1, 0, held))
    is_the_reference("tiled", make_layout([15, 1, 0, 33, 48, 0], 48), size, causal, 2e-6)


@pytest.mark.interpreted
def test_more_sequences_than_a_launch_has(monkeypatch: pytest.MonkeyPatch) -> None:
    from etude.nn.triton import tiled_attention

    monkeypatch.setattr(tiled_attention, "MAX_SEQUENCES", 2)
    is_the_reference("tiled", make_layout([15, 1, 0, 33, 7], 48), 16, True, 2e-6)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_launches_have_no_more_sequences_than_cuda_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """65,535 along the third axis: short documents fill a batch with more, and one long one makes them all tiled."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("runs without the interpreter")
    from etude.nn.triton import tiled_attention

    launches: dict[str, list[tuple[int, int, int]]] = {}
    for name in ("_forward_kernel", "_query_grad_kernel", "_key_grad_kernel"):

        def watch(grid: tuple[int, int, int], *_: object, name: str = name, **__: object) -> None:
            launches.setdefault(name, []).append(grid)

        monkeypatch.setattr(tiled_attention, name, Watched(watch))
    layout = make_layout([1] * 70_000, 129)
    qkv = torch.zeros(70_000, 3, 1, 16, requires_grad=True)
    attend_packed(qkv, layout, causal=True, path="tiled").sum().backward()
    assert len(launches) == 3
    for grids in launches.values():
        assert sum(sequences for _, _, sequences in grids) == 70_000
        assert all(sequences <= 65_535 for _, _, sequences in grids)


@pytest.mark.interpreted
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")  # the interpreter's: that is the test
def test_scores_beyond_any_sum(causal: bool, dtype: torch.dtype) -> None:
    """Exponentials relative to a query's score with its own key overflow where another one is far higher."""
    torch.manual_seed(1)
    layout = make_layout([70, 0, 64, 130], 192)
    qkv = torch.randn(layout.total, 3, 2, 16)
    qkv[:200, :2] *= 14  # scores of up to a thousand; the last sequence has them, and small ones, too
    qkv = qkv.to(dtype)
    expected = attend(*qkv.float().unbind(1), layout, causal=causal, path="reference")
    result = attend(*qkv.unbind(1), layout, causal=causal, path="tiled").float()
    error = 2e-5 if dtype == torch.float32 else 5e-3
    torch.testing.assert_close(result, expected, rtol=error, atol=error)


@pytest.mark.interpreted
@pytest.mark.parametrize("path", attention.KERNEL_PATHS)
@pytest.mark.parametrize("causal", [False, True])
def test_dropout_is_that_of_its_gradient(path: str, causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a reference with the mask that was drawn, read off from values that are the keys' unit vectors."""
    from etude.nn.triton import tiled_attention
    from etude.nn.triton.short_attention import attend_short

    cut = {"FORWARD": (16, 32), "QUERY_GRAD": (32, 16), "KEY_GRAD": (16, 16), "KEY_GRAD_CAUSAL": (32, 16)}
    for kernel, tiles in cut.items():
        monkeypatch.setattr(tiled_attention, kernel, tiled_attention.Tiles(*tiles, 4, 2, 1, 0))
    bounds, seed = torch.tensor([0, 40, 49], dtype=torch.int32), torch.tensor([5])

    def ours(qkv: Tensor, seed: Tensor = seed) -> Tensor:
        if path == "short":
            return attend_short(qkv, bounds, seed, 64, causal, 0.3)
        return tiled_attention.attend_tiled(qkv, bounds, seed, 64, causal, 0.3)[0]

    torch.manual_seed(1)
    qkv, grad_out = torch.randn(49, 3, 2, 64, requires_grad=True), torch.randn(49, 2, 64)
    layout = make_layout([40, 9], 64)
    spread = qkv.detach().clone()
    place = torch.cat([torch.arange(40), torch.arange(9)])
    spread[:, 2] = torch.eye(64)[place][:, None, :]
    weights = attend(*spread.unbind(1), layout, causal=causal, path="reference")  # (N, H, keys of the sequence)
    factor = ours(spread) / weights.clamp(min=1e-12)
    drawn = factor[weights > 0]
    fraction = float((drawn > 0.5).double().mean())
    assert ((drawn - 1 / 0.7).abs().min(drawn.abs()) < 1e-4).all() and 0.63 < fraction < 0.77

    query, key, value = qkv.unbind(1)
    parts = []
    for start, stop in ((0, 40), (40, 49)):
        scores = torch.einsum("ihd,jhd->hij", query[start:stop], key[start:stop]) / 8
        if causal:
            scores = scores.masked_fill(torch.ones(stop - start, stop - start).triu(1).bool(), -torch.inf)
        mask = (factor[start:stop, :, : stop - start].transpose(0, 1) > 0.5) / 0.7
        parts.append(torch.einsum("hij,jhd->ihd", scores.softmax(-1) * mask, value[start:stop]))
    expected, mixed = torch.cat(parts), ours(qkv)
    torch.testing.assert_close(mixed, expected, rtol=1e-4, atol=1e-5)
    result, target = (torch.autograd.grad(item, qkv, grad_out)[0] for item in (mixed, expected))
    torch.testing.assert_close(result, target, rtol=1e-4, atol=1e-5)
    assert torch.equal(mixed, ours(qkv)) and not torch.equal(mixed, ours(qkv, seed + 1))


@pytest.mark.interpreted
def test_dropout_of_rows_columns_and_programs_is_independent() -> None:
    """Over many keys: the rate within each row and column, and how often neighbours and other keys agree."""
    from tests.nn.dropout_masks import dropout_masks

    factor = dropout_masks(programs=24, size=128, rate=0.1, seed=3)
    gone = (factor == 0).double()
    assert abs(float(gone.mean()) - 0.1) < 0.002
    for axis in (1, 2):  # 24 rows or columns of the same place, 3,072 draws: a deviation is 0.0054
        assert float((gone.mean((0, axis)) - 0.1).abs().max()) < 0.024
    pairs = [(gone[:, 1:], gone[:, :-1]), (gone[:, :, 1:], gone[:, :, :-1]), (gone[1:], gone[:-1])]
    for left, right in [*pairs, (gone[:, 64:], gone[:, :64])]:
        assert abs(float((left * right).mean()) - 0.01) < 0.0015
    mirrored = gone * gone.mT * (1 - torch.eye(128))
    assert abs(float(mirrored.sum()) / (24 * 128 * 127) - 0.01) < 0.0015
    # of four corners of a rectangle none is settled by the others
    corners = [gone[:, a : -8 + a or None, b : -8 + b or None] for a in (0, 8) for b in (0, 8)]
    assert abs(float((corners[0] * corners[1] * corners[2] * corners[3]).mean()) - 1e-4) < 1e-4


@pytest.mark.gpu
def test_very_many_sequences_on_a_gpu() -> None:
    """Of one token each, which sees itself alone, and a last one of many."""
    layout = make_layout([1] * 70_000 + [200], 200).to("cuda")
    qkv = torch.randn(70_200, 3, 1, 16, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    mixed = attend_packed(qkv, layout, causal=True, path="tiled")
    mixed.sum().backward()
    assert qkv.grad is not None
    torch.testing.assert_close(mixed[:70_000], qkv[:70_000, 2])
    assert (qkv.grad[:70_000, 2] == 1).all()
    # a weight of 1, whatever the score: what is left is the rounding of two sums in different orders
    assert float(qkv.grad[:70_000, :2].abs().max()) < 1e-4
    expected = attend(*qkv.detach()[70_000:].float().unbind(1), make_layout([200], 200), causal=True, path="reference")
    torch.testing.assert_close(mixed[70_000:].float(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("longest", [128, 40])
def test_short_sequences_on_a_gpu(causal: bool, longest: int) -> None:
    draw = np.random.default_rng(0)
    layout = make_layout([*draw.integers(0, longest + 1, 40), longest, 1], longest).to("cuda")
    torch.manual_seed(1)
    qkv = torch.randn(layout.total, 3, 4, 64, device="cuda").bfloat16().requires_grad_()
    grad_out = torch.randn(layout.total, 4, 64, device="cuda").bfloat16()
    actual = attention_of(qkv, layout, causal, "short", grad_out)
    wide = qkv.detach().double().requires_grad_()
    expected = attention_of(wide, layout, causal, "reference", grad_out.double())
    for left, right in zip(actual, expected, strict=True):
        assert float((left.double() - right).abs().max() / right.abs().max()) < 1e-2


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
def test_tiles_on_a_gpu(causal: bool) -> None:
    draw = np.random.default_rng(0)
    layout = make_layout([*draw.integers(0, 1025, 12), 1024, 1, 0], 1024).to("cuda")
    torch.manual_seed(1)
    qkv = torch.randn(layout.total, 3, 4, 64, device="cuda").bfloat16().requires_grad_()
    grad_out = torch.randn(layout.total, 4, 64, device="cuda").bfloat16()
    actual, repeated = (attention_of(qkv, layout, causal, "tiled", grad_out) for _ in range(2))
    wide = qkv.detach().double().requires_grad_()
    expected = attention_of(wide, layout, causal, "reference", grad_out.double())
    for left, repeat, right in zip(actual, repeated, expected, strict=True):
        assert float((left.double() - right).abs().max() / right.abs().max()) < 1e-2
        assert torch.equal(left, repeat)


@pytest.mark.gpu
@pytest.mark.parametrize("path", attention.KERNEL_PATHS)
def test_dropout_on_a_gpu_keeps_the_mean(path: str) -> None:
    layout = make_layout([64, 3, 0, 17, 40, 1], 64).to("cuda")
    torch.manual_seed(1)
    qkv = torch.randn(layout.total, 3, 4, 64, device="cuda").bfloat16()
    query, key, value = qkv.unbind(1)
    plain = attend(query, key, value, layout, causal=False, path="reference")
    drawn = [attend_packed(qkv, layout, causal=False, dropout=0.2, path=path).double() for _ in range(400)]
    torch.testing.assert_close(torch.stack(drawn).mean(0), plain.double(), rtol=0.1, atol=0.1)

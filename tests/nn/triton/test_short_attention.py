"""Short attention that rotates queries and keys as it reads them: on a GPU by name, elsewhere interpreted.

Without rotation it is in test_attention_kernels.py, with the other kernels of attention.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from etude.nn.attention import dispatch
from etude.nn.attention.dispatch import attend, attend_packed
from etude.nn.packed import Layout
from etude.nn.rotary import Rotation, compute_rotation, rotate_packed, rotate_query_key
from etude.nn.triton import availability
from tests.nn.triton.launches import compile_launches

LENGTHS = [5, 0, 16, 1, 9, 0]


def test_in_the_interpreter(in_the_interpreter: Callable[[str], None]) -> None:
    in_the_interpreter(__file__)


def make_layout(lengths: list[int]) -> Layout:
    return Layout.from_bounds(np.concatenate([[0], np.cumsum(lengths)]), max(lengths))


def draw_batch(
    layout: Layout, heads: int, size: int, dtype: torch.dtype, device: str = "cpu"
) -> tuple[Tensor, Rotation, Tensor]:
    """Queries, keys and values in one tensor, the rotation of their positions, and a gradient of the output."""
    torch.manual_seed(layout.total + size)
    qkv = torch.randn(layout.total, 3, heads, size, device=device).to(dtype).requires_grad_()
    rotation = compute_rotation(torch.randint(0, 5000, (layout.total,), device=device), size)
    return qkv, rotation, torch.randn(layout.total, heads, size, device=device).to(dtype)


def attend_rotated(
    qkv: Tensor, layout: Layout, rotation: Rotation, grad_out: Tensor, causal: bool, dropout: float, fused: bool
) -> tuple[Tensor, Tensor]:
    """The output and the gradient of `qkv`, with the rotation in the kernels of attention or in one before them."""
    from etude.nn.triton.rotary import rotate_packed
    from etude.nn.triton.short_attention import attend_short

    arguments = (layout.bounds, torch.tensor([5], device=qkv.device), layout.longest, causal, dropout)
    if fused:
        out = attend_short(qkv, *arguments, *rotation)
    else:
        out = attend_short(rotate_packed(qkv, *rotation), *arguments)
    return out.detach(), torch.autograd.grad(out, qkv, grad_out)[0]


@pytest.mark.interpreted
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])  # the interpreter multiplies the bits of bf16
@pytest.mark.parametrize("size", [16, 24, 64])  # powers of two, and not one
def test_it_is_a_rotation_and_then_attention(causal: bool, dtype: torch.dtype, size: int) -> None:
    dropout = 0.3 if causal ^ (dtype == torch.float16) else 0.0  # any two of the three in all combinations
    layout = make_layout(LENGTHS)
    batch = draw_batch(layout, 2, size, dtype)
    for left, right in zip(
        *(attend_rotated(batch[0], layout, *batch[1:], causal, dropout, fused) for fused in (True, False)), strict=True
    ):
        if size == 24:  # zeros fill up each half in place of the whole row: sums of a product have another order
            error = 1e-5 if dtype == torch.float32 else 1e-3  # a unit in the last place of float16
            torch.testing.assert_close(left, right, rtol=error, atol=1e-6 if dtype == torch.float32 else 1e-3)
        else:
            assert torch.equal(left, right)


@pytest.mark.interpreted
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [16, 24])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_against_the_reference(causal: bool, size: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(availability._CAPABILITIES, None, (9, 0))
    layout = make_layout(LENGTHS)
    qkv, rotation, grad_out = draw_batch(layout, 2, size, dtype)
    wide = qkv.detach().float().requires_grad_()
    expected = attend(*rotate_query_key(wide, rotation), layout, causal=causal, path="reference")
    actual = attend_packed(qkv, layout, causal=causal, path="short", rotation=rotation)
    result, target = torch.autograd.grad(actual, qkv, grad_out)[0], torch.autograd.grad(expected, wide, grad_out)[0]
    for left, right, near in ((actual, expected, 1e-6), (result, target, 2e-6)):
        # float16 has 11 bits: of rotated queries and keys, weights and their gradients
        error = (1e-5, near) if dtype == torch.float32 else (5e-3, 5e-3)
        torch.testing.assert_close(left.float(), right, rtol=error[0], atol=error[1])


@pytest.mark.interpreted
@pytest.mark.parametrize("fused", [True, False])
def test_the_short_path_rotates_as_it_reads(fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer sequences are rotated before, and those whose dropout needs the registers, or on a GPU before Hopper."""
    rotated: list[torch.Size] = []

    def noted(qkv: Tensor, rotation: Rotation) -> Tensor:
        rotated.append(qkv.shape)
        return rotate_packed(qkv, rotation)

    monkeypatch.setitem(availability._CAPABILITIES, None, (9, 0))
    monkeypatch.setattr(dispatch, "rotate_packed", noted)
    monkeypatch.setattr(dispatch, "ROTATES_AS_IT_READS", fused)
    layout = make_layout([5, 9])
    qkv, rotation, _ = draw_batch(layout, 2, 16, torch.float32)
    short = attend_packed(qkv, layout, causal=False, path="short", rotation=rotation)
    assert len(rotated) == (0 if fused else 1)
    tiled = attend_packed(qkv, layout, causal=False, path="tiled", rotation=rotation)
    assert len(rotated) == (1 if fused else 2)
    torch.testing.assert_close(short, tiled, rtol=1e-5, atol=1e-6)
    attend_packed(qkv, layout, causal=False, path="short", rotation=rotation, dropout=0.1)
    assert len(rotated) == (2 if fused else 3)
    monkeypatch.setitem(availability._CAPABILITIES, None, (8, 9))
    before_hopper = attend_packed(qkv, layout, causal=False, path="short", rotation=rotation)
    assert len(rotated) == (3 if fused else 4) and torch.equal(before_hopper, short)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_the_kernels_compile_for_a_gpu(monkeypatch: pytest.MonkeyPatch, compiled_kernels: Path) -> None:
    from etude.nn.triton import short_attention

    variants = compile_launches(short_attention, ["_forward", "_backward"], monkeypatch, compiled_kernels)
    monkeypatch.setattr(short_attention, "wrap_triton", lambda kernel: kernel)
    cases: list[tuple[int, int, bool, float]] = [(64, 128, False, 0.0), (32, 128, True, 0.1), (24, 16, False, 0.0)]
    for size, longest, causal, dropout in cases:
        qkv, angles = torch.randn(5, 3, 2, size, dtype=torch.bfloat16), torch.randn(5, 1, size // 2)
        bounds, seed = torch.tensor([0, 3, 5], dtype=torch.int32), torch.tensor([5])
        rest: tuple[Any, ...] = (bounds, seed, longest, causal, dropout, angles, angles)
        out = short_attention.attend_short._init_fn(qkv, *rest)
        short_attention.attend_short_backward._init_fn(out, qkv, *rest)
    assert len(variants["_forward"]) == len(variants["_backward"]) == len(cases)


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("longest", "size"), [(128, 64), (128, 32), (128, 128), (64, 64), (40, 48), (20, 64)])
def test_it_is_a_rotation_and_then_attention_on_a_gpu(causal: bool, longest: int, size: int) -> None:
    """A product has its sums in one order either way, but how two products of a rotation are rounded is the compiler's:
    few numbers may differ in the last bit of a rotated query, key or gradient.

    With dropout the kernels do not rotate.
    """
    draw = np.random.default_rng(0)
    layout = make_layout([*draw.integers(0, longest + 1, 40).tolist(), longest, 1, 0]).to("cuda")
    batch = draw_batch(layout, 4, size, torch.bfloat16, "cuda")
    fused, apart = (attend_rotated(batch[0], layout, *batch[1:], causal, 0.0, fused) for fused in (True, False))
    repeated = attend_rotated(batch[0], layout, *batch[1:], causal, 0.0, True)
    for left, repeat, right in zip(fused, repeated, apart, strict=True):
        assert torch.equal(left, repeat)
        assert float((left.double() - right).abs().max() / right.abs().max()) < 1e-2
        assert float((left != right).double().mean()) < 0.05
    wide = batch[0].detach().double().requires_grad_()
    cosine, sine = (part.double() for part in batch[1])
    query, key, value = wide.unbind(1)

    def rotate(x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)

    out = attend(rotate(query), rotate(key), value, layout, causal=causal, path="reference")
    exact = out.detach(), torch.autograd.grad(out, wide, batch[2].double())[0]
    for left, right in zip(fused, exact, strict=True):
        assert float((left.double() - right).abs().max() / right.abs().max()) < 1e-2

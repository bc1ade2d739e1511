"""Rotary positions in one Triton kernel, against the plain formula: on a GPU by name, elsewhere interpreted."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from etude.nn.rotary import compute_rotation, rotate_query_key
from tests.nn.triton.launches import compile_launches


def test_in_the_interpreter(in_the_interpreter: Callable[[str], None]) -> None:
    in_the_interpreter(__file__)


def check_rotation(device: str, dtype: torch.dtype, tokens: int, heads: int, size: int) -> None:
    from etude.nn.triton.rotary import rotate_packed

    torch.manual_seed(tokens)
    positions = torch.randint(0, 5000, (tokens,), device=device)
    rotation = compute_rotation(positions, size)
    qkv = torch.randn(tokens, 3, heads, size, device=device).to(dtype).requires_grad_()
    by_result = torch.randn(tokens, 3, heads, size, device=device).to(dtype)
    result = rotate_packed(qkv, *rotation)
    (gradient,) = torch.autograd.grad(result, qkv, by_result)
    plain = qkv.detach().double().requires_grad_()
    cosine, sine = (part.double() for part in rotation)

    def turn(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)

    query, key, value = plain.unbind(1)
    expected = torch.stack([turn(query), turn(key), value], 1)
    (expected_gradient,) = torch.autograd.grad(expected, plain, by_result.double())
    tolerance = 1e-6 if dtype == torch.float32 else 8e-3  # half a unit in the last place of bf16
    torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=1e-6)
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=tolerance, atol=1e-6)
    assert torch.equal(result[:, 2], qkv[:, 2]) and torch.equal(gradient[:, 2], by_result[:, 2])
    # as the code without a kernel has it
    others = torch.stack(rotate_query_key(qkv.detach(), rotation), 1)
    torch.testing.assert_close(result.detach(), others, rtol=tolerance, atol=1e-6)


@pytest.mark.interpreted
@pytest.mark.parametrize(
    ("tokens", "heads", "size"), [(7, 3, 8), (1, 1, 2), (33, 2, 12), (0, 2, 8)], ids=["", "one", "not-a-power", "none"]
)
def test_rotation(tokens: int, heads: int, size: int) -> None:
    check_rotation("cpu", torch.float32, tokens, heads, size)


@pytest.mark.gpu
@pytest.mark.parametrize(("heads", "size"), [(8, 64), (4, 64), (12, 64), (3, 48), (2, 6)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotation_on_a_gpu(dtype: torch.dtype, heads: int, size: int) -> None:
    check_rotation("cuda", dtype, 1001, heads, size)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_the_kernel_compiles_for_a_gpu(monkeypatch: pytest.MonkeyPatch, compiled_kernels: Path) -> None:
    from etude.nn.triton import rotary

    variants = compile_launches(rotary, ["rotate_rows"], monkeypatch, compiled_kernels)
    monkeypatch.setattr(rotary, "wrap_triton", lambda kernel: kernel)
    for size in (64, 48):
        qkv, angles = torch.randn(5, 3, 2, size, dtype=torch.bfloat16), torch.randn(5, 1, size // 2)
        for reverse in (False, True):
            rotary.rotate_packed._init_fn(qkv, angles, angles, reverse)
    assert len(variants["rotate_rows"]) == 4

"""A residual sum with its norm in one Triton kernel, against float64: on a GPU by name, elsewhere interpreted."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.nn.triton.launches import compile_launches


def test_in_the_interpreter(in_the_interpreter: Callable[[str], None]) -> None:
    in_the_interpreter(__file__)


KINDS = ["biased", "layer", "rms"]  # the last two without a bias, as the branch


def sum_and_norm(
    device: str, rows: tuple[int, int], post: bool, renew: bool, alone: bool, dropout: float, kind: str = "biased",
    dtype: torch.dtype = torch.float32,
) -> None:  # fmt: skip
    """Against float64. With `post` the gradient that comes for the sum counts as one of the norm."""
    from etude.nn.triton.residual_norm import add_norm

    torch.manual_seed(1)
    width, epsilon, rms = rows[1], 1e-5, kind == "rms"
    old = (torch.rand(width, device=device) + 0.5, torch.randn(width, device=device)) if renew else (None, None)
    arguments = [torch.randn(shape, device=device) for shape in (rows, rows, (width,), (width,), (width,))]
    by_total, by_normed = (torch.randn(rows, device=device).to(dtype) for _ in range(2))
    arguments[:2] = [left.to(dtype) for left in arguments[:2]]
    x, branch, bias, weight, shift = actual = [left.clone().requires_grad_() for left in arguments]
    seed = torch.tensor([7], device=device) if dropout else None
    if kind == "biased":
        biases, wanted = (old[1], bias, shift), actual
    else:
        biases, wanted = (None, None, None), [x, branch, weight]
    old_bias, branch_bias, norm_bias = biases
    total, normed, *_ = add_norm(
        x, old[0], old_bias, branch, branch_bias, weight, norm_bias, seed, dropout, epsilon, post, rms
    )
    # which elements stay is read off a branch of ones on a stream of zeros
    nothing, everything = torch.zeros(rows, device=device), torch.ones(rows, device=device)
    factor = add_norm(nothing, None, None, everything, None, arguments[3], arguments[4], seed, dropout, epsilon, post)[
        0
    ].double()
    assert abs(float((factor > 0).double().mean()) - (1 - dropout)) < 0.06
    torch.testing.assert_close(
        factor[factor > 0], torch.full_like(factor[factor > 0], 1 / (1 - dropout)), rtol=1e-6, atol=0
    )

    def norm(x: Tensor, weight: Tensor, shift: Tensor) -> Tensor:
        if rms:
            return F.rms_norm(x, (width,), weight, epsilon)
        return F.layer_norm(x, (width,), weight, shift if kind == "biased" else None, epsilon)

    exact = [left.double().requires_grad_() for left in arguments]
    if renew:
        assert old[0] is not None and old[1] is not None
        start = norm(arguments[0].double(), old[0].double(), old[1].double())
        exact[0] = start.requires_grad_()
    summed = exact[0] + (exact[1] + exact[2] - exact[2].detach()) * factor  # the branch has its bias already
    expected = norm(summed, exact[3], exact[4])
    # bf16 has 8 bits: of the sum, and then of its norm; a norm that is recomputed is rounded once more
    near = {"rtol": 1e-5, "atol": 2e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 3e-2}
    torch.testing.assert_close((total.double(), normed.double()), (summed, expected), **near)

    outputs, grads = ([normed], [by_normed]) if alone else ([total, normed], [by_total, by_normed])
    result = torch.autograd.grad(outputs, wanted, grads)
    targets = exact if kind == "biased" else [exact[0], exact[1], exact[3]]
    if post:
        target = torch.autograd.grad(expected, targets, sum(left.double() for left in grads))
    else:
        target = torch.autograd.grad([summed, expected][alone:], targets, [left.double() for left in grads])
    for left, right in zip(result, target, strict=True):
        error = 2e-5 if dtype == torch.float32 else 2e-2
        assert float((left.double() - right).abs().max() / right.abs().max()) < error


@pytest.mark.interpreted
@pytest.mark.parametrize("post", [False, True])
@pytest.mark.parametrize("renew", [False, True])
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_residual_sum_and_its_norm(
    post: bool, renew: bool, alone: bool, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from etude.nn.triton import residual_norm

    dropout = 0.3 if post ^ renew ^ alone else 0.0  # any three of the four in all combinations
    # 13 rows: unequal shares, and a last block that is not full
    launch = residual_norm.WIDE._replace(programs=3)
    monkeypatch.setattr(residual_norm, "choose_launch", lambda width: launch)
    assert residual_norm.split_width(48) == (32, 16)
    sum_and_norm("cpu", (13, 48), post, renew, alone, dropout, kind)


@pytest.mark.interpreted
@pytest.mark.parametrize("post", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_residual_sum_and_its_norm_in_bf16(post: bool, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from etude.nn.triton import residual_norm

    launch = residual_norm.WIDE._replace(programs=3)
    monkeypatch.setattr(residual_norm, "choose_launch", lambda width: launch)
    sum_and_norm("cpu", (13, 48), post, renew=False, alone=False, dropout=0.0, kind=kind, dtype=torch.bfloat16)


@pytest.mark.interpreted
@pytest.mark.parametrize(("count", "width"), [(45, 96), (70, 32)])
def test_narrow_rows_as_they_are_divided(count: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 8 and of 32 rows, the last one not full; with the second, more programs than blocks."""
    from etude.nn.triton import residual_norm

    launch = residual_norm.choose_launch(width)._replace(programs=4)  # the interpreter takes its time for each
    monkeypatch.setattr(residual_norm, "choose_launch", lambda _: launch)
    sum_and_norm("cpu", (count, width), post=True, renew=True, alone=False, dropout=0.3)


@pytest.mark.gpu
@pytest.mark.parametrize(("post", "dropout"), [(False, 0.0), (True, 0.3)])  # each case is compiled
@pytest.mark.parametrize("width", [64, 256, 384, 768, 1280])
@pytest.mark.parametrize("kind", KINDS)
def test_a_residual_sum_and_its_norm_on_a_gpu(post: bool, dropout: float, width: int, kind: str) -> None:
    sum_and_norm("cuda", (1001, width), post, renew=post, alone=False, dropout=dropout, kind=kind)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_the_kernels_compile_for_a_gpu(monkeypatch: pytest.MonkeyPatch, compiled_kernels: Path) -> None:
    from etude.nn.triton import residual_norm

    variants = compile_launches(residual_norm, ["_forward", "_backward"], monkeypatch, compiled_kernels)
    monkeypatch.setattr(residual_norm, "wrap_triton", lambda kernel: kernel)
    rows, vector, seed = torch.zeros(5, 512, dtype=torch.bfloat16), torch.ones(512), torch.tensor([7])
    for kind in KINDS:
        for post, dropout in ((False, 0.0), (True, 0.1)):
            bias, drawn = vector if kind == "biased" else None, seed if dropout else None
            old = (vector, bias) if post else (None, None)
            rest = (drawn, dropout)
            total, normed, means, scales = residual_norm.add_norm._init_fn(
                rows, *old, rows, bias, vector, bias, *rest, 1e-5, post, kind == "rms"
            )
            assert len(means) == (0 if kind == "rms" else 5)
            *_, sums = residual_norm.add_norm_backward._init_fn(
                rows,
                normed,
                total,
                means,
                scales,
                vector,
                *rest,
                post,
                bias is not None,
                bias is not None,
                kind == "rms",
            )
            assert sums.shape[1:] == (3 if kind == "biased" else 1, 512)
    assert len(variants["_forward"]) == len(variants["_backward"]) == 6


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_a_program_has_as_many_elements_whatever_the_width() -> None:
    from etude.nn.triton.residual_norm import WIDE, choose_launch

    assert choose_launch(1024) == choose_launch(768) == choose_launch(512) == WIDE
    for width in (768, 1024, 1152, 1280, 2048):  # more in a thread of a backward program would not fit its registers
        assert choose_launch(width).back_rows * width <= 32 * 32 * choose_launch(width).back_warps
    for width, rows in {256: 4, 384: 2, 128: 8, 64: 16, 32: 32}.items():
        assert choose_launch(width).rows == choose_launch(width).back_rows == rows


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_rows_of_two_powers_of_two() -> None:
    from etude.nn.triton.residual_norm import split_width

    result = {width: split_width(width) for width in (768, 1024, 256, 384, 32, 640, 700, 31, 16, 2048, 4096, 8192)}
    assert result[768] == (512, 256) and result[1024] == (512, 512) and result[256] == (128, 128)
    assert result[384] == (256, 128) and result[32] == (16, 16) and result[640] == (512, 128)
    assert result[700] is None and result[31] is None and result[16] is None
    assert result[2048] == (1024, 1024)
    assert result[4096] is None and result[8192] is None  # more shared memory than a GPU has, or only some have

"""Layer norms of bf16 on a CPU: no less exact than through float32."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from etude.nn.norm import Norm


def error(result: Tensor, exact: Tensor) -> float:
    return float(((result.double() - exact).norm() / exact.norm()).detach())


def example(mean: float) -> tuple[Norm, Tensor, Tensor]:
    torch.manual_seed(0)
    norm = Norm(64)
    with torch.no_grad():
        norm.weight.normal_(1.0, 0.3)
        assert norm.bias is not None
        norm.bias.normal_(0.0, 0.3)
    x, grad_out = torch.randn(2000, 64) + mean, torch.randn(2000, 64)
    return norm, x.bfloat16().requires_grad_(), grad_out.bfloat16()


@pytest.mark.parametrize("mean", [0.0, 30.0])
@pytest.mark.parametrize("bias", [True, False])
def test_a_bf16_norm_is_exact_up_to_one_rounding(mean: float, bias: bool) -> None:
    norm, x, grad_out = example(mean)
    if not bias:
        norm.bias = None
    with torch.autocast("cpu", torch.bfloat16):
        result = norm(x)
    parts = [x, norm.weight] + ([] if norm.bias is None else [norm.bias])
    gradients = torch.autograd.grad(result, parts, grad_out)
    doubles = [part.detach().double().requires_grad_() for part in parts]
    exact = F.layer_norm(doubles[0], (64,), doubles[1], doubles[2] if bias else None, norm.epsilon)
    expected = torch.autograd.grad(exact, doubles, grad_out.double())
    assert [result.dtype, gradients[0].dtype] == [torch.bfloat16] * 2
    assert error(result, exact.detach()) < 2**-9
    assert error(gradients[0], expected[0]) < 2**-9
    for left, right in zip(gradients[1:], expected[1:], strict=True):
        assert left.dtype == torch.float32
        assert error(left, right) < 1e-4, "sums over tokens are taken in float32"


def test_only_trained_inputs_get_a_gradient() -> None:
    norm, x, grad_out = example(0.0)
    norm.requires_grad_(False)
    norm(x).backward(grad_out)
    assert x.grad is not None
    norm.requires_grad_(True)
    norm(x.detach()).backward(grad_out)
    assert norm.weight.grad is not None
    norm.bias = None
    assert not torch.equal(norm(x), x)
    with torch.no_grad():
        assert not norm(x).requires_grad


def test_a_norm_in_bf16_throughout_stays_in_it() -> None:
    norm, x, _ = example(0.0)
    wide = norm(x)
    narrow = norm.bfloat16()(x)
    assert narrow.dtype == torch.bfloat16
    torch.testing.assert_close(narrow, wide, rtol=0.02, atol=0.02)

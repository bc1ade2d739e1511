"""Activations and dropout of our own are torch's, value and derivative."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from etude.nn import activations
from etude.nn.activations import ACTIVATIONS, apply_dropout, draw_keep_mask, gelu, gelu_tanh

EDGES = torch.tensor([-1e4, -40.0, -9.0, -1.0, -0.0, 0.0, 1e-8, 0.5, 9.0, 40.0, 1e4])


@pytest.fixture(params=["ours", "torch's"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which GELU trains on a CPU, whatever CPU this is."""
    monkeypatch.setattr(activations, "has_fast_gelu", lambda: request.param != "ours")
    return str(request.param)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gelu_is_torch_s(form: str, approximate: str, dtype: torch.dtype) -> None:
    x = torch.cat([torch.randn(3, 500, generator=torch.Generator().manual_seed(0)).flatten() * 3, EDGES]).to(dtype)
    actual, reference = x.clone().requires_grad_(), x.clone().requires_grad_()
    result = (gelu if approximate == "none" else gelu_tanh)(actual)
    expected = F.gelu(reference, approximate=approximate)
    tolerance = 2e-6 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)
    grad_out = torch.linspace(-1, 1, len(x), dtype=dtype)
    result.backward(grad_out)
    expected.backward(grad_out)
    torch.testing.assert_close(actual.grad, reference.grad, rtol=tolerance, atol=tolerance)
    assert torch.equal(actual, x), "the input is left as it was"
    assert ("_Gelu" in type(result.grad_fn).__name__) == (form == "ours")


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_activation_has_its_own_gradient(form: str, name: str) -> None:
    x = torch.randn(20, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(ACTIVATIONS[name], (x,))


def test_torch_kernels_run_without_a_gradient() -> None:
    x = torch.randn(50)
    assert torch.equal(gelu(x), F.gelu(x))
    with torch.no_grad():
        assert torch.equal(gelu_tanh(x.requires_grad_()), F.gelu(x, approximate="tanh"))


@pytest.mark.parametrize("trains", [False, True])
def test_dropout_keeps_the_mean_and_can_be_turned_off(trains: bool) -> None:
    x = torch.ones(400, 500, requires_grad=trains)
    torch.manual_seed(0)
    dropped = apply_dropout(x, 0.2, True).detach()
    assert abs((dropped == 0).float().mean().item() - 0.2) < 0.004
    assert dropped.unique().tolist() == pytest.approx([0.0, 1.25], rel=1e-4)
    assert apply_dropout(x, 0.2, False) is x
    assert apply_dropout(x, 0.0, True) is x


def test_dropout_in_bf16_is_unbiased() -> None:
    """A scale of 10/9 is 1.1094 in bf16: multiplied by that, all would be 1.6 in a thousand too small."""
    torch.manual_seed(0)
    x = torch.rand(1_000_000).add_(1).bfloat16().requires_grad_()
    dropped = apply_dropout(x, 0.1, True)
    dropped.float().sum().backward()
    dropped, x_grad = dropped.detach(), x.grad
    keep_mask, x = dropped != 0, x.detach()
    assert dropped.dtype == torch.bfloat16
    assert abs(float(keep_mask.float().mean()) - 0.9) < 0.002
    assert float(dropped[keep_mask].double().sum() / x[keep_mask].double().sum()) == pytest.approx(10 / 9, rel=2e-4)
    assert torch.equal(x_grad != 0, keep_mask)


def test_dropout_passes_the_gradient_of_elements_that_stay() -> None:
    x = torch.randn(30, 7, requires_grad=True)
    torch.manual_seed(0)
    out = apply_dropout(x, 0.5, True)
    out.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad * x, out)
    assert x.grad.unique().tolist() == [0.0, 2.0]


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9999999])
def test_the_mask_keeps_the_expected_fraction(rate: float) -> None:
    torch.manual_seed(0)
    keep_mask, scale = draw_keep_mask((101, 37, 53), rate)
    exact = 1 / scale
    assert abs(exact - (1 - rate)) <= 2**-16
    deviation = (exact * (1 - exact) / keep_mask.numel()) ** 0.5
    assert abs(float(keep_mask.double().mean()) - exact) < 4 * deviation + 1e-12
    # neighbouring weights come from one random number: they must not go together
    flat = keep_mask.view(-1).double()
    lagged = [float(((flat[lag:] - exact) * (flat[:-lag] - exact)).mean()) for lag in (1, 2, 3, 4)]
    assert max(abs(value) for value in lagged) < 5 * exact * (1 - exact) / keep_mask.numel() ** 0.5 + 1e-12

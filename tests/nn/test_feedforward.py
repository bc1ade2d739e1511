"""A GELU between two products by our Triton kernels, against formulas: on a GPU by name, elsewhere interpreted."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.nn import activations, feedforward


def test_in_the_interpreter(in_the_interpreter: Callable[[str], None]) -> None:
    in_the_interpreter(__file__)


def run_feedforward(
    x: Tensor, up: torch.nn.Linear, down: torch.nn.Linear, tanh: bool, grad_out: Tensor
) -> list[Tensor]:
    """What a feed-forward branch gives, and its gradients: of x, and of what it learns."""
    out = feedforward.feedforward(x, up, down, activations.gelu_tanh if tanh else activations.gelu, down.bias)
    learnt = [weight for layer in (up, down) for weight in layer.parameters()]
    return [out.detach(), *torch.autograd.grad(out, [x, *learnt], grad_out)]


def run_reference(x: Tensor, up: torch.nn.Linear, down: torch.nn.Linear, tanh: bool, grad_out: Tensor) -> list[Tensor]:
    """The same in float64, by formulas that are nobody's kernels."""
    x, grad_out = x.detach().double().requires_grad_(), grad_out.double()
    up, down = (copy.deepcopy(layer).double() for layer in (up, down))
    raised = x @ up.weight.t() + up.bias
    if tanh:
        below = 0.5 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (raised + 0.044715 * raised**3)))
    else:
        below = 0.5 * (1 + torch.erf(raised / 2**0.5))
    out = (raised * below) @ down.weight.t() + (0 if down.bias is None else down.bias)
    learnt = [weight for layer in (up, down) for weight in layer.parameters()]
    return [out.detach(), *torch.autograd.grad(out, [x, *learnt], grad_out)]


@pytest.mark.interpreted
@pytest.mark.parametrize("tanh", [False, True])
def test_a_gelu_and_the_gradient_of_its_bias(tanh: bool) -> None:
    from etude.nn.triton.gelu import COLUMNS, ROWS, TILES, gelu_biased

    torch.manual_seed(1)
    count, width = ROWS * TILES + 3, COLUMNS + 40  # more than one program both ways, the last of them not full
    x = torch.cat([torch.randn(count, width - 40), torch.linspace(-12, 12, 40 * count).view(count, 40)], 1)
    bias, grad_out = torch.randn(width, requires_grad=True), torch.randn(count, width)
    x.requires_grad_()
    exact = x.detach().double().requires_grad_()
    actual = gelu_biased(x, bias, tanh)
    reference = torch.nn.functional.gelu(exact, approximate="tanh" if tanh else "none")
    torch.testing.assert_close(actual.double(), reference, rtol=1e-6, atol=1e-6)
    grad_x, grad_bias = torch.autograd.grad(actual, (x, bias), grad_out)
    (exact_grad,) = torch.autograd.grad(reference, exact, grad_out.double())
    torch.testing.assert_close(grad_x.double(), exact_grad, rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(grad_bias.double(), exact_grad.sum(0), rtol=1e-5, atol=1e-4)


@pytest.mark.interpreted
@pytest.mark.parametrize("tanh", [False, True])
# tiles of 16 rows: a part of one; one; groups of 2, the last less
@pytest.mark.parametrize(("tokens", "bias"), [(1, False), (16, True), (71, True), (80, False)])
def test_a_gelu_derivative_within_the_product(
    tokens: int, tanh: bool, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32: the interpreter multiplies the bits of bf16 as if they were whole numbers."""
    from etude.nn.triton import gelu_linear

    for name, value in {"ROWS": 16, "COLUMNS": 32, "DEPTH": 16, "GROUP": 2}.items():
        monkeypatch.setattr(gelu_linear, name, value)
    monkeypatch.setattr(feedforward, "gelu_linear_kernels", lambda *_: gelu_linear)
    calls: list[bool] = []
    back = gelu_linear.gelu_linear_backward

    def counted(grad: Tensor, raised: Tensor, weight: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
        calls.append(tanh)
        return back(grad, raised, weight, tanh)

    monkeypatch.setattr(gelu_linear, "gelu_linear_backward", counted)
    torch.manual_seed(1)
    up, down = torch.nn.Linear(24, 96), torch.nn.Linear(96, 48, bias=bias)
    x, grad_out = torch.randn(tokens, 24, requires_grad=True), torch.randn(tokens, 48)
    with torch.no_grad():
        up.weight.mul_(4)  # into both tails
    actual, repeated = (run_feedforward(x, up, down, tanh, grad_out) for _ in range(2))
    assert calls == [tanh, tanh]
    for left, repeat, right in zip(actual, repeated, run_reference(x, up, down, tanh, grad_out), strict=True):
        torch.testing.assert_close(left.double(), right, rtol=1e-5, atol=2e-5)
        assert torch.equal(left, repeat)


@pytest.mark.interpreted
def test_shapes_that_do_not_fit_the_tiles_take_the_plain_path(monkeypatch: pytest.MonkeyPatch) -> None:
    from etude.nn.triton import gelu_linear

    monkeypatch.setattr(feedforward, "gelu_linear_kernels", lambda *_: gelu_linear)
    monkeypatch.setattr(gelu_linear, "gelu_linear", None)  # cannot be called
    torch.manual_seed(1)
    for tokens, inner, width, bias in [(5, 96, 64, True), (5, 128, 48, True), (5, 128, 64, False), (0, 128, 64, True)]:
        up, down = torch.nn.Linear(24, inner, bias=bias), torch.nn.Linear(inner, width)
        x = torch.randn(tokens, 24)
        expected = down(torch.nn.functional.gelu(up(x)))
        torch.testing.assert_close(feedforward.feedforward(x, up, down, activations.gelu, down.bias), expected)
    assert gelu_linear.supports_shape(768, 3072) and not gelu_linear.supports_shape(768, 3000)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_a_gelu_on_a_gpu(name: activations.Activation) -> None:
    """Value and gradients in bf16, against float64, and the same to the bit again."""
    torch.manual_seed(1)
    projection = torch.nn.Linear(32, 640, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(301, 32, device="cuda", dtype=torch.bfloat16)
    grad_out = torch.randn(301, 640, device="cuda", dtype=torch.bfloat16)

    def results(x: Tensor, projection: torch.nn.Linear) -> list[Tensor]:
        out = feedforward.linear_activation(x, projection, activations.ACTIVATIONS[name])
        return [
            out.detach().double(),
            *torch.autograd.grad(out, [projection.weight, projection.bias], grad_out.to(out.dtype)),
        ]

    assert feedforward.gelu_kernels(x.device, x.dtype) is not None
    actual, repeated = (results(x, projection) for _ in range(2))
    reference = results(x.double(), projection.double())
    for left, repeat, right in zip(actual, repeated, reference, strict=True):
        assert torch.equal(left, repeat)
        assert float((left.double() - right).abs().max() / right.abs().max()) < 2e-2


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["eager", "compiled", "recorded"])
@pytest.mark.parametrize("tanh", [False, True])
def test_a_gelu_derivative_within_the_product_on_a_gpu(tanh: bool, way: str) -> None:
    """In bf16 from float32 masters, against float64; the same to the bit again, compiled, and from a recording."""
    torch.manual_seed(1)
    up, down = (torch.nn.Linear(*shape, device="cuda") for shape in ((192, 640), (640, 192)))
    x = torch.randn(1100, 192, device="cuda", requires_grad=True)  # 9 tiles of rows: a group of 8, and a part of one
    grad_out = torch.randn(1100, 192, device="cuda", dtype=torch.bfloat16)
    if feedforward.gelu_linear_kernels(x.device, torch.bfloat16) is None:
        pytest.skip("the kernel needs a Hopper card")
    compiled = torch.compile(feedforward.feedforward, fullgraph=True, dynamic=False)

    def results(through: Any = feedforward.feedforward) -> list[Tensor]:
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):  # a recording must not meet older copies
            out = through(x, up, down, activations.gelu_tanh if tanh else activations.gelu, down.bias)
        return [out.detach(), *torch.autograd.grad(out, [x, *up.parameters(), *down.parameters()], grad_out)]

    if way == "eager":
        actual, repeated = results(), results()
    elif way == "compiled":
        actual, repeated = results(compiled), results(compiled)
    else:
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            results()
        torch.cuda.current_stream().wait_stream(aside)
        recording = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recording):
            actual = results()
        with torch.no_grad():
            x.copy_(torch.randn_like(x))  # numbers that were not there when it was recorded
        recording.replay()
        repeated = results()
    for left, repeat, right in zip(actual, repeated, run_reference(x, up, down, tanh, grad_out), strict=True):
        assert torch.equal(left, repeat)
        assert float((left.double() - right).abs().max() / right.abs().max()) < 2e-2

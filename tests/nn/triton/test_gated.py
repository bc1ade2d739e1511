"""A gated activation by our Triton kernels, against float64: on a GPU by name, elsewhere interpreted."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from etude.nn import feedforward
from etude.nn.activations import ACTIVATIONS, Activation
from tests.nn.triton.launches import compile_launches

GATED: tuple[Activation, ...] = ("gelu", "gelu_tanh", "silu")


def test_in_the_interpreter(in_the_interpreter: Callable[[str], None]) -> None:
    in_the_interpreter(__file__)


def check_gate(device: str, name: Activation, count: int, width: int, dtype: torch.dtype) -> None:
    from etude.nn.triton.gated import KINDS, gated_activation

    torch.manual_seed(1)
    x = torch.randn(count, 2 * width, device=device) * 3  # into both tails
    x = x.to(dtype).requires_grad_()
    grad_out = torch.randn(count, width, device=device).to(dtype)
    exact = x.detach().double().requires_grad_()
    gate, up = exact.chunk(2, dim=-1)
    expected = ACTIVATIONS[name](gate) * up
    actual = gated_activation(x, KINDS.index(name))
    (grad,) = torch.autograd.grad(actual, x, grad_out)
    (exact_grad,) = torch.autograd.grad(expected, exact, grad_out.double())
    error = 1e-5 if dtype == torch.float32 else 8e-3  # half a unit in the last place of bf16
    torch.testing.assert_close(actual.double(), expected, rtol=error, atol=5e-6)
    torch.testing.assert_close(grad.double(), exact_grad, rtol=error, atol=5e-6)


@pytest.mark.interpreted
@pytest.mark.parametrize("name", GATED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("count", "width"), [(33, 136), (1, 24)], ids=["more-than-a-program", "less-than-one"])
def test_a_gate(name: Activation, dtype: torch.dtype, count: int, width: int) -> None:
    check_gate("cpu", name, count, width, dtype)


@pytest.mark.interpreted
@pytest.mark.parametrize("name", GATED)
def test_one_product_is_two(name: Activation, monkeypatch: pytest.MonkeyPatch) -> None:
    """States and gradients of gate and up by one product of both are those of two."""
    from etude.nn.triton import gated

    torch.manual_seed(1)
    gate, up = (nn.Linear(24, 40, bias=False) for _ in range(2))
    x, grad_out = torch.randn(13, 24, requires_grad=True), torch.randn(13, 40)

    def run() -> list[Tensor]:
        out = feedforward.gated_activation(x, gate, up, ACTIVATIONS[name])
        return [out.detach(), *torch.autograd.grad(out, [x, gate.weight, up.weight], grad_out)]

    apart = run()
    monkeypatch.setattr(feedforward, "gated_kernels", lambda *_: gated)
    for left, right in zip(run(), apart, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("case", ["bias", "relu"])
def test_a_gate_of_another_kind_takes_two_products(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = SimpleNamespace(KINDS=GATED)  # cannot be called
    monkeypatch.setattr(feedforward, "gated_kernels", lambda *_: kernels)
    gate, up = (nn.Linear(8, 8, bias=case == "bias") for _ in range(2))
    activation = ACTIVATIONS["relu" if case == "relu" else "gelu"]
    x = torch.randn(3, 8)
    assert torch.equal(feedforward.gated_activation(x, gate, up, activation), activation(gate(x)) * up(x))


def test_the_kernels_serve_a_gpu_that_trains_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    from etude.nn.triton import availability

    module = SimpleNamespace()
    monkeypatch.setattr(feedforward, "kernel_module", lambda _: module)
    monkeypatch.setattr(availability, "supports_flash", lambda _: True)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    cuda, half, shape = torch.device("cuda", 0), torch.bfloat16, torch.Size((8, 768))
    assert feedforward.gated_kernels(cuda, half, shape) is module
    with torch.no_grad():
        assert feedforward.gated_kernels(cuda, half, shape) is None
    refused: tuple[Any, ...] = (
        (torch.device("cpu"), half, shape),
        (cuda, torch.float32, shape),
        (cuda, half, torch.Size((0, 768))),
    )
    for arguments in refused:
        assert feedforward.gated_kernels(*arguments) is None
    monkeypatch.setattr(feedforward, "JOINS_GATE_AND_UP", False)
    assert feedforward.gated_kernels(cuda, half, shape) is None


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_the_kernels_compile_for_a_gpu(monkeypatch: pytest.MonkeyPatch, compiled_kernels: Path) -> None:
    from etude.nn.triton import gated

    variants = compile_launches(gated, ["_forward", "_backward"], monkeypatch, compiled_kernels)
    monkeypatch.setattr(gated, "wrap_triton", lambda kernel: kernel)
    x, grad = torch.zeros(5, 1536, dtype=torch.bfloat16), torch.zeros(5, 768, dtype=torch.bfloat16)
    for kind in range(len(gated.KINDS)):
        gated.gated_activation._init_fn(x, kind)
        gated.gated_activation_backward._init_fn(grad, x, kind)
    assert len(variants["_forward"]) == len(variants["_backward"]) == 3


@pytest.mark.gpu
@pytest.mark.parametrize("name", GATED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gate_on_a_gpu(name: Activation, dtype: torch.dtype) -> None:
    check_gate("cuda", name, 1001, 776, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("name", GATED)
def test_one_product_is_two_on_a_gpu(name: Activation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled, in bf16 from float32 masters: as near to float64 as two products."""
    from etude.nn.attention.dispatch import load_kernels

    load_kernels(torch.device("cuda", 0))
    torch.manual_seed(1)
    gate, up = (nn.Linear(192, 640, bias=False, device="cuda") for _ in range(2))
    x = torch.randn(1100, 192, device="cuda", requires_grad=True)
    grad_out = torch.randn(1100, 640, device="cuda", dtype=torch.bfloat16)
    ran: list[bool] = []
    choose = feedforward.gated_kernels

    def noted(*values: Any) -> Any:
        ran.append(choose(*values) is not None)
        return choose(*values)

    monkeypatch.setattr(feedforward, "gated_kernels", noted)

    def run(joins: bool) -> list[Tensor]:
        monkeypatch.setattr(feedforward, "JOINS_GATE_AND_UP", joins)
        torch._dynamo.reset()
        compiled = torch.compile(feedforward.gated_activation, fullgraph=True, dynamic=False)
        with torch.autocast("cuda", torch.bfloat16):
            out = compiled(x, gate, up, ACTIVATIONS[name])
        return [out.detach(), *torch.autograd.grad(out, [x, gate.weight, up.weight], grad_out)]

    joined, apart = run(True), run(False)
    assert ran == [True, False]
    wide = [part.detach().double().requires_grad_() for part in (x, gate.weight, up.weight)]
    out = ACTIVATIONS[name](wide[0] @ wide[1].t()) * (wide[0] @ wide[2].t())
    exact = [out.detach(), *torch.autograd.grad(out, wide, grad_out.double())]
    for left, right, expected in zip(joined, apart, exact, strict=True):
        errors = [float((part.double() - expected).norm() / expected.norm()) for part in (left, right)]
        assert errors[0] < max(1e-2, 1.2 * errors[1])

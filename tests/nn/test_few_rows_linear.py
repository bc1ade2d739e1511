"""Branches by linear layers on few rows are the branches as they are written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from etude.models import encoder_decoder, transformer
from etude.nn import few_rows_linear
from etude.nn.activations import ACTIVATIONS, Activation
from etude.nn.attention.kv_cache import KVCache
from etude.nn.attention.static_step import StaticStep
from etude.nn.norm import Norm, NormKind
from etude.nn.packed import pack


def multiply(
    x: Tensor, weight: Tensor, bias: Tensor | None, norm: NormKind | None, norm_weight: Tensor | None,
    norm_bias: Tensor | None, epsilon: float, moments: Any, activation: str | None, plus: Tensor | None,
    times: Tensor | None, measured: bool = False,
) -> tuple[Tensor, Any]:  # fmt: skip
    """What the kernel computes, in float64; rows are their own moments."""
    assert moments is None or moments is x
    y = x.double()
    if norm is not None:
        y = y - y.mean(-1, keepdim=True) if norm == "layer" else y
        y = y * (y.square().mean(-1, keepdim=True) + epsilon).rsqrt()
        assert norm_weight is not None
        y = y * norm_weight + (0.0 if norm_bias is None else norm_bias)
    y = F.linear(y.to(weight.dtype).double(), weight.double(), None if bias is None else bias.double())
    y = y if activation is None else ACTIVATIONS[activation](y)
    y = y if plus is None else y + plus
    y = (y if times is None else y * times).to(weight.dtype)
    return y, y if measured else None


def check_linear(device: str, dtype: torch.dtype, rows: int, inputs: int, outputs: int) -> None:
    """All kinds of norms, activations and what is combined, each with and without a bias."""
    torch.manual_seed(rows)
    kinds: list[tuple[NormKind | None, Activation | None, str | None, bool]] = [
        (None, None, "plus", True), ("layer", "gelu", None, True), ("rms", "silu", "times", False),
        ("layer", "gelu_tanh", None, False), (None, "relu", None, True), ("rms", "relu_squared", None, True),
    ]  # fmt: skip
    x, other = torch.randn(rows, inputs) + 0.5, torch.randn(rows, outputs)
    for kind, activation, combined, bias in kinds:
        projection = torch.nn.Linear(inputs, outputs, bias=bias)
        norm = None if kind is None else Norm(inputs, bias=bias, kind=kind)
        for parameter in [] if norm is None else list(norm.parameters()):
            torch.nn.init.normal_(parameter)
        parts = [part.to(device, dtype) for part in (x, other)]
        weights = [part.to(device, dtype) for part in (projection, norm) if part is not None]
        arguments: dict[str, Any] = {} if combined is None else {combined: parts[1]}
        with torch.no_grad():
            assert few_rows_linear.fits(parts[0], *weights)
            if combined == "plus":
                result = few_rows_linear.add_linear(parts[1], parts[0], projection)
            else:
                result = few_rows_linear.linear(parts[0], projection, norm=norm, activation=activation, **arguments)
            settings: tuple[Any, ...] = (None, None, None, 0.0)
            if norm is not None:
                settings = norm.kind, norm.weight, norm.bias, norm.epsilon
            expected, _ = multiply(
                parts[0], projection.weight, projection.bias, *settings, None, activation, arguments.get("plus"),
                arguments.get("times"),
            )  # fmt: skip
        _assert_near(result, expected, inputs)


def _assert_near(result: Tensor, expected: Tensor, inputs: int) -> None:
    tolerance = 1e-4 if result.dtype == torch.float32 else 2e-2
    torch.testing.assert_close(
        result.float().cpu(), expected.float().cpu(), rtol=tolerance, atol=tolerance * inputs**0.5 / 4
    )


def check_moments(device: str, dtype: torch.dtype, rows: int, width: int, outputs: int) -> None:
    """A sum leaves the moments of its rows to the norm of the next layer; a mean that is large beside the deviation."""
    torch.manual_seed(rows)
    inner, stream = torch.randn(rows, width).to(device, dtype), (torch.randn(rows, width) + 6.0).to(device, dtype)
    down, up = (torch.nn.Linear(width, size).to(device, dtype) for size in (width, outputs))
    kinds: list[NormKind] = ["layer", "rms"]
    for kind in kinds:
        norm = Norm(width, kind=kind)
        for parameter in norm.parameters():
            torch.nn.init.normal_(parameter)
        norm.to(device, dtype)
        with torch.no_grad():
            total = few_rows_linear.add_linear(few_rows_linear.StepStream(stream), inner, down)
            assert isinstance(total, few_rows_linear.StepStream) and total.moments is not None
            result = few_rows_linear.linear(total, up, norm=norm)
            settings = norm.kind, norm.weight, norm.bias, norm.epsilon
            expected, _ = multiply(total.rows, up.weight, up.bias, *settings, None, None, None, None)
            plain = few_rows_linear.add_linear(stream, inner, down)
        torch.testing.assert_close(total.rows, plain, rtol=0, atol=0)
        _assert_near(result, expected, width)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The kernel in plain torch, and the rows of its calls."""
    rows: list[int] = []

    def count(x: Tensor, *arguments: Any) -> tuple[Tensor, Any]:
        rows.append(len(x))
        return multiply(x, *arguments)

    kernel = SimpleNamespace(MAX_ROWS=8, MAX_NORM_ROWS=3, multiply=count)
    monkeypatch.setattr(few_rows_linear, "_find_kernel", lambda device, dtype: kernel)
    return rows


MODELS: dict[str, dict[str, object]] = {
    "gpt2": {"norm": "pre", "activation": "gelu_tanh"},
    "gpt1": {"norm": "post", "activation": "gelu"},
    "modern": {"norm": "pre", "norm_kind": "rms", "gated": True, "activation": "silu", "bias": False,
               "positions": "rotary"},
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_step_of_generation(name: str, calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    settings = {"layers": 2, "width": 16, "heads": 2, "vocab": 11, "context": 16, "direction": "causal"}
    model = transformer.build(transformer.Settings(**settings, **MODELS[name])).eval()  # type: ignore[arg-type]
    prompts = [[5, 6, 7, 8, 2, 1, 3], [8, 9, 4]]

    def step() -> Tensor:
        cache = KVCache()
        model(cache.pack(prompts), cache=cache)
        static = StaticStep(cache, 64, torch.device("cpu"))
        cache.move(*zip(*static.buffers, strict=True))
        static.fill(np.array([3, 4]), cache.lengths)
        last: Tensor = model(static.pack(), cache=static).last
        return last

    with torch.no_grad():
        few = step()
        assert set(calls) == {2}, "the prompts, ten tokens, are read as they always are"
        assert len(calls) == 2 * (5 if name == "modern" else 4)
        monkeypatch.setattr(few_rows_linear, "_find_kernel", lambda device, dtype: None)
        torch.testing.assert_close(few, step(), rtol=1e-5, atol=1e-5)
        del calls[:]
    step()
    assert not calls


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_step_of_translation(norm: str, calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    settings = {"layers": 2, "width": 16, "heads": 2, "vocab": 11, "context": 16, "norm": norm, "activation": "relu"}
    model = encoder_decoder.build(encoder_decoder.Settings(**settings)).eval()  # type: ignore[arg-type]
    source = pack([[5, 6, 7, 8, 2, 1], [8, 9, 4]])

    def step() -> Tensor:
        return model.start_decoding(source, beams=2).step(torch.tensor([3, 3, 4, 4]))

    with torch.no_grad():
        few = step()
        assert set(calls) == {4} and len(calls) == 2 * 6
        monkeypatch.setattr(few_rows_linear, "_find_kernel", lambda device, dtype: None)
        torch.testing.assert_close(few, step(), rtol=1e-5, atol=1e-5)


def test_where_it_fits(calls: list[int]) -> None:
    layer = torch.nn.Linear(4, 4)
    with torch.no_grad():
        assert few_rows_linear.fits(torch.zeros(8, 4), layer, None)
        assert not few_rows_linear.fits(torch.zeros(9, 4), layer)
        assert not few_rows_linear.fits(torch.zeros(0, 4), layer)
        assert not few_rows_linear.fits(torch.zeros(8, 4, dtype=torch.bfloat16), layer), "mixed precision"
    assert not few_rows_linear.fits(torch.zeros(8, 4), layer), "with gradients"

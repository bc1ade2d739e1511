"""torch's own LSTM: its precision, and where its weights lie. That it equals ours: tests/nn/test_lstm.py."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.nn.torch_lstm import call_lstm, join_weights
from tests.nn.test_lstm import LENGTHS, build, gradients, make_layout


def test_weights_are_joined_in_one_buffer_with_their_gradients() -> None:
    layer, layout = build(None), make_layout(LENGTHS)
    weights = (layer.input.weight, layer.recurrent.weight, layer.input.bias, torch.zeros_like(layer.input.bias))
    joined = join_weights(weights)
    place = joined[0].data_ptr()
    for part, weight in zip(joined, weights, strict=True):
        assert torch.equal(part, weight) and part.data_ptr() == place
        place += part.nbytes
    assert joined[0].untyped_storage().nbytes() == place - joined[0].data_ptr()
    state = torch.zeros(1, 5, 8)
    batch, x = torch.tensor([5, 4, 4, 3, 3, 2, 2]), torch.randn(layout.total, 6)
    expected, actual = (
        torch.autograd.grad(call_lstm(True, batch, x, state, state, *given)[0].square().sum(), weights[:3])
        for given in (weights, joined)
    )
    for left, right in zip(actual, expected, strict=True):
        assert torch.equal(left, right)


@pytest.mark.gpu
def test_cudnn_finds_its_weights_in_one_buffer() -> None:
    layer, layout = build(None).cuda(), make_layout(LENGTHS).to("cuda")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gradients(layer, torch.randn(layout.total, 6, device="cuda"), layout, False, "torch")
    assert not [warning for warning in caught if "contiguous chunk" in str(warning.message)]


@pytest.mark.filterwarnings("ignore:LSTM with projections", "ignore:RNN module weights")
def test_torchs_own_path_is_float32_in_both_passes_and_leaves_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_float32_matmul_precision("highest")  # whatever ran before in this process
    layer, layout = build(None), make_layout(LENGTHS)
    x = torch.randn(layout.total, 6)
    switch, seen = torch.backends.cudnn.rnn, []
    assert switch.fp32_precision == "tf32"  # torch's first value; the rest would show nothing otherwise
    plain = torch.lstm

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            seen.append(("forward", switch.fp32_precision))
            return x.clone()

        @staticmethod
        def backward(ctx: Any, slope: Tensor) -> Tensor:
            seen.append(("backward", switch.fp32_precision))
            return slope

    monkeypatch.setattr(torch, "lstm", lambda x, *rest: plain(Watched.apply(x), *rest))
    exact = gradients(layer, x, layout, False, "torch")
    assert seen == [("forward", "ieee"), ("backward", "ieee")]
    assert switch.fp32_precision == "tf32"
    seen.clear()
    torch.set_float32_matmul_precision("high")  # less is asked for, everywhere
    try:
        direct = gradients(layer, x, layout, False, "torch")
    finally:
        torch.set_float32_matmul_precision("highest")
    assert seen == [("forward", "tf32"), ("backward", "tf32")]
    for left, right in zip(exact, direct, strict=True):
        assert torch.equal(left, right)


def test_the_switch_is_restored_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("out of memory")

    layer, layout = build(None), make_layout(LENGTHS)
    monkeypatch.setattr(torch, "lstm", fails)
    with pytest.raises(RuntimeError, match="out of memory"):
        layer(torch.randn(layout.total, 6), layout, path="torch")
    assert torch.backends.cudnn.rnn.fp32_precision == "tf32"

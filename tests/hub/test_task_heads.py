"""What the published class of a head has and ours has not, or the other way round."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from etude.hub.task_heads import _move_bias, make_idle_layers
from etude.tasks.published_head import pass_through_gelu


def test_a_bias_moves_into_the_norm_before_it_or_stays() -> None:
    torch.manual_seed(0)
    weight, bias, states = torch.randn(3, 8), torch.randn(3), torch.randn(5, 8)
    weights = {"head.weight": weight, "head.bias": bias, "norm.bias": torch.randn(8)}
    before = weights["norm.bias"].clone()
    assert _move_bias(weights, "head", "norm")
    moved = (states + weights["norm.bias"] - before) @ weight.t()
    torch.testing.assert_close(moved, states @ weight.t() + bias, rtol=1e-4, atol=1e-5)
    # rows that nearly depend on each other: the shift is so large that float32 rounds it away
    weight = torch.stack([weight[0], weight[0] * (1 + 1e-7), weight[1]])
    weights = {"head.weight": weight, "head.bias": torch.tensor([0.0, 5.0, 1.0]), "norm.bias": before}
    assert not _move_bias(weights, "head", "norm")


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_two_layers_with_a_gelu_do_what_one_does(approximate: str) -> None:
    torch.manual_seed(0)
    weight, bias, states = torch.randn(4, 8), torch.randn(4), 10 * torch.randn(50, 8)
    first, first_bias, last, last_bias = pass_through_gelu(weight, bias)
    assert first.shape == (8, 8) and last.shape == (4, 8)
    between = F.gelu(F.linear(states, first, first_bias), approximate=approximate)
    torch.testing.assert_close(F.linear(between, last, last_bias), F.linear(states, weight, bias))


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_layer_and_a_norm_that_change_nothing(has_bias: bool) -> None:
    torch.manual_seed(0)
    weight = torch.randn(16) + torch.tensor([4.0, -4.0] * 8)
    bias = torch.randn(16) if has_bias else None
    hidden = F.layer_norm(3 * torch.randn(50, 16), (16,), weight, bias, eps=1e-5)
    layers = make_idle_layers(weight, bias)
    assert layers is not None and len(layers) == (4 if has_bias else 2)
    dense = F.linear(hidden, layers["head.dense.weight"], layers.get("head.dense.bias"))
    result = F.layer_norm(dense, (16,), layers["head.norm.weight"], layers.get("head.norm.bias"), eps=1e-5)
    torch.testing.assert_close(result, hidden, rtol=1e-5, atol=1e-4)
    weight[3] = 1e-5
    assert make_idle_layers(weight, bias) is None

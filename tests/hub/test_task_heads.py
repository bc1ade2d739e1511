"""The bias of a head that its published class has no place for."""

from __future__ import annotations

import torch

from etude.hub.task_heads import _move_bias


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

"""The mix of layers against the formula, and against the derivatives of it."""

from __future__ import annotations

import pytest
import torch

from etude.nn.layer_mix import LayerMix


def test_it_starts_as_the_plain_mean() -> None:
    layers = [torch.randn(7, 5) for _ in range(3)]
    torch.testing.assert_close(LayerMix(3)(layers), torch.stack(layers).mean(0))


@pytest.mark.parametrize("norm", [False, True])
def test_formula_by_hand(norm: bool) -> None:
    layers = [torch.randn(4, 6, dtype=torch.float64) * (number + 1) + number for number in range(3)]
    mix = LayerMix(3, norm).double()
    with torch.no_grad():
        mix.weights.copy_(torch.tensor([0.3, -1.0, 2.0]))
        mix.gamma.fill_(1.7)
    raised = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64).exp()
    expected = torch.zeros(4, 6, dtype=torch.float64)
    for fraction, layer in zip(raised / raised.sum(), layers, strict=True):
        if norm:
            layer = (layer - layer.mean(-1, keepdim=True)) / (layer.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()
        expected += 1.7 * fraction * layer
    torch.testing.assert_close(mix(layers), expected)
    torch.testing.assert_close(mix.mixing_weights.sum(), torch.tensor(1.0, dtype=torch.float64))


def test_it_learns_which_layer_to_read() -> None:
    layers = [torch.randn(50, 4) for _ in range(3)]
    mix = LayerMix(3)
    optimizer = torch.optim.Adam(mix.parameters(), lr=0.2)
    for _ in range(150):
        loss = (mix(layers) - 2 * layers[1]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert mix.mixing_weights[1] > 0.9 and abs(float(mix.gamma.detach()) - 2) < 0.2


def test_half_precision_stays_half_and_sums_in_float32() -> None:
    layers = [torch.full((1, 2), value).bfloat16() for value in (256.0, 1.0, 1.0, 1.0)]
    result = LayerMix(4)(layers)
    assert result.dtype == torch.bfloat16
    assert result[0, 0] == torch.tensor(259 / 4).bfloat16()


def test_a_wrong_number_of_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="2 layers for a mix of 3"):
        LayerMix(3)([torch.zeros(1, 1)] * 2)
    with pytest.raises(ValueError, match="at least one layer"):
        LayerMix(0)


def test_the_released_norm_is_one_scalar_for_all_tokens() -> None:
    layers = [torch.randn(4, 6) * 3 + 1, torch.randn(4, 6) / 7]
    expected = sum((item - item.mean()) / item.var(correction=0).sqrt() for item in layers) / 2
    torch.testing.assert_close(LayerMix(2, "batch")(layers), expected)


def test_a_heavy_penalty_keeps_the_average() -> None:
    layers = [torch.randn(50, 4) for _ in range(3)]
    fractions = []
    for weight in (0.0, 10.0):
        mix = LayerMix(3)
        optimizer = torch.optim.Adam(mix.parameters(), lr=0.1)
        for _ in range(60):
            optimizer.zero_grad()
            ((mix(layers) - 2 * layers[1]).square().mean() + weight * mix.penalty).backward()
            optimizer.step()
        fractions.append(float(mix.mixing_weights.detach()[1]))
    assert fractions[0] > 0.7 and fractions[1] < 0.4

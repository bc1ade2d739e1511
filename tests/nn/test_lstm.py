"""The LSTM against torch's own, against a plain loop with clipping, and for leaks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from etude.nn.lstm import LSTM, LSTMState, Path
from etude.nn.packed import Layout

LENGTHS = [3, 7, 1, 0, 5, 7]  # ties, a single token, an empty sequence in the middle


def make_layout(lengths: list[int]) -> Layout:
    return Layout.from_bounds(np.concatenate([[0], np.cumsum(lengths)]), max(lengths, default=0))


def build(projection: int | None, clip: float | None = None, scale: float = 1.0) -> LSTM:
    torch.manual_seed(0)
    layer = LSTM(6, 8, projection=projection, cell_clip=clip, projection_clip=clip)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.4 * scale)
    return layer


def torch_twin(layer: LSTM) -> nn.LSTM:
    twin = nn.LSTM(6, 8, proj_size=layer.width if layer.project is not None else 0)
    with torch.no_grad():
        twin.weight_ih_l0.copy_(layer.input.weight)
        twin.weight_hh_l0.copy_(layer.recurrent.weight)
        twin.bias_ih_l0.copy_(layer.input.bias)
        twin.bias_hh_l0.zero_()
        if layer.project is not None:
            twin.weight_hr_l0.copy_(layer.project.weight)
    return twin


def plain_loop(layer: LSTM, x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One sequence, one token at a time, written from the equations."""
    outputs = []
    for token in x:
        gates = layer.input.weight @ token + layer.input.bias + layer.recurrent.weight @ hidden
        i, f, g, o = gates.split(layer.cells)
        cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
        if layer.cell_clip is not None:
            limit = torch.tensor(layer.cell_clip, dtype=cell.dtype)
            cell = torch.minimum(torch.maximum(cell, -limit), limit)
        hidden = torch.sigmoid(o) * torch.tanh(cell)
        if layer.project is not None:
            hidden = layer.project.weight @ hidden
            if layer.projection_clip is not None:
                limit = torch.tensor(layer.projection_clip, dtype=cell.dtype)
                hidden = torch.minimum(torch.maximum(hidden, -limit), limit)
        outputs.append(hidden)
    return (torch.stack(outputs) if outputs else x.new_zeros(0, layer.width)), hidden, cell


@pytest.mark.parametrize("projection", [None, 4])
@pytest.mark.parametrize("reverse", [False, True])
def test_equals_torch_without_clipping(projection: int | None, reverse: bool) -> None:
    layer, layout = build(projection), make_layout(LENGTHS)
    twin = torch_twin(layer)
    x = torch.randn(layout.total, 6)
    carry = LSTMState(torch.randn(len(LENGTHS), layer.width), torch.randn(len(LENGTHS), 8))
    outputs, final = layer(x, layout, carry, reverse=reverse)
    for number, length in enumerate(LENGTHS):
        start = int(layout.host[number])
        part = x[start : start + length]
        if length == 0:
            assert torch.equal(final.hidden[number], carry.hidden[number])
            assert torch.equal(final.cell[number], carry.cell[number])
            continue
        expected, (hidden, cell) = twin(
            (part.flip(0) if reverse else part)[:, None],
            (carry.hidden[None, number, None], carry.cell[None, number, None]),
        )
        expected = expected[:, 0].flip(0) if reverse else expected[:, 0]
        torch.testing.assert_close(outputs[start : start + length], expected, atol=1e-6, rtol=0)
        torch.testing.assert_close(final.hidden[number], hidden[0, 0], atol=1e-6, rtol=0)
        torch.testing.assert_close(final.cell[number], cell[0, 0], atol=1e-6, rtol=0)


@pytest.mark.parametrize("projection", [None, 4])
def test_clipping_equals_a_plain_loop_with_its_gradients(projection: int | None) -> None:
    clip = 0.3
    layer, layout = build(projection, clip, scale=3.0).double(), make_layout(LENGTHS)
    x = torch.randn(layout.total, 6, dtype=torch.float64, requires_grad=True)
    outputs, final = layer(x, layout)
    parameters = [x, *layer.parameters()]
    target = torch.randn_like(outputs)
    actual = torch.autograd.grad((outputs * target).sum() + final.cell.sum(), parameters)

    zero = torch.zeros(8, dtype=torch.float64)
    runs = [
        plain_loop(layer, x[a:b], zero[: layer.width], zero)
        for a, b in zip(layout.host[:-1], layout.host[1:], strict=True)
    ]
    wanted = torch.cat([run[0] for run in runs])
    torch.testing.assert_close(outputs, wanted, atol=1e-12, rtol=0)
    clipped = (final.cell.abs() == clip).double().mean()
    assert 0.05 < clipped < 0.95, "the test must reach both sides of the clip"
    expected = torch.autograd.grad((wanted * target).sum() + torch.stack([run[2] for run in runs]).sum(), parameters)
    for left, right in zip(actual, expected, strict=True):
        torch.testing.assert_close(left, right, atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("reverse", [False, True])
def test_no_token_sees_its_future_or_another_sequence(reverse: bool) -> None:
    layer, layout = build(4, 3.0), make_layout([4, 6, 3])
    x = torch.randn(layout.total, 6)
    before, _ = layer(x, layout, reverse=reverse)
    changed = 6  # the third token of the second sequence
    x[changed] += 1.0
    after, _ = layer(x, layout, reverse=reverse)
    moved = (before != after).any(dim=1).nonzero().flatten().tolist()
    assert moved == (list(range(4, changed + 1)) if reverse else list(range(changed, 10)))


def test_a_state_carried_between_parts_equals_one_run() -> None:
    layer = build(4, 3.0)
    x = torch.randn(11, 6)
    full, end = layer(x, make_layout([11]))
    first, state = layer(x[:5], make_layout([5]))
    second, final = layer(x[5:], make_layout([6]), state)
    torch.testing.assert_close(torch.cat([first, second]), full, atol=1e-6, rtol=0)
    torch.testing.assert_close(final.cell, end.cell, atol=1e-6, rtol=0)


def test_no_tokens_at_all() -> None:
    layer = build(4)
    outputs, final = layer(torch.zeros(0, 6), make_layout([0, 0]))
    assert outputs.shape == (0, 4)
    assert final.hidden.shape == (2, 4)


def test_first_values() -> None:
    layer = LSTM(6, 8, projection=4)
    bias = layer.input.bias.detach().view(4, 8)
    assert bias[1].eq(1).all() and bias[[0, 2, 3]].eq(0).all()
    assert layer.input.weight.abs().max() <= (6 / (6 + 32)) ** 0.5


def test_flops_by_hand() -> None:
    assert LSTM(6, 8, projection=4).flops(10) == 2 * 10 * (32 * 6 + 32 * 4 + 8 * 4)
    assert LSTM(6, 8).flops(1) == 2 * (32 * 6 + 32 * 8)


def gradients(layer: LSTM, x: Tensor, layout: Layout, reverse: bool, path: Path) -> list[Tensor]:
    """Outputs, last states, and the gradients of everything that they depend on."""
    carry = LSTMState(x.new_ones(len(layout.host) - 1, layer.width) / 3, x.new_ones(len(layout.host) - 1, 8) / 5)
    carry = LSTMState(*(item.requires_grad_() for item in carry))
    x = x.clone().requires_grad_()
    outputs, final = layer(x, layout, carry, reverse, path)
    total = outputs.square().sum() + final.hidden.sum() + 2 * final.cell.sum()
    return [outputs, *final, *torch.autograd.grad(total, [x, *carry, *layer.parameters()])]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("projection", [None, 4])
@pytest.mark.filterwarnings("ignore:LSTM with projections", "ignore:RNN module weights")
def test_torchs_own_path_has_the_same_meaning(projection: int | None, reverse: bool, device: str) -> None:
    layer, layout = build(projection).to(device), make_layout(LENGTHS).to(device)
    x = torch.randn(layout.total, 6, device=device)
    actual = gradients(layer, x, layout, reverse, "scan")
    for left, right in zip(actual, gradients(layer, x, layout, reverse, "torch"), strict=True):
        torch.testing.assert_close(left, right, atol=2e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="does not clip"):
        build(projection, 3.0).to(device)(x, layout, path="torch")


@pytest.mark.parametrize("projection", [None, 4])
def test_a_clip_that_never_happens_changes_no_bit(projection: int | None) -> None:
    layout, x = make_layout(LENGTHS), torch.randn(23, 6)
    free, held = build(projection), build(projection, 100.0)
    for left, right in zip(
        gradients(free, x, layout, False, "scan"), gradients(held, x, layout, False, "scan"), strict=True
    ):
        assert torch.equal(left, right)


def test_products_of_less_precision_stay_near() -> None:
    layer, layout = build(4, 3.0), make_layout(LENGTHS)
    x = torch.randn(layout.total, 6)
    exact = gradients(layer, x, layout, False, "scan")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = gradients(layer, x, layout, False, "scan")
    assert rough[2].dtype == torch.float32  # the carried cell
    for left, right in zip(exact, rough, strict=True):
        assert (left - right).norm() < 0.03 * left.norm() + 1e-3


@pytest.mark.parametrize("lengths", [[3, 3, 3, 3], [5], [1, 1]])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("projection", [None, 4])
def test_equal_lengths_give_the_same_bits_as_any_others(
    lengths: list[int], reverse: bool, projection: int | None
) -> None:
    equal = make_layout(lengths)
    layer, x = build(projection, 0.5), torch.randn(equal.total, 6)
    assert equal.equal
    found = gradients(layer, x, equal, reverse, "scan")
    expected = gradients(layer, x, replace(equal, equal=False), reverse, "scan")
    assert all(torch.equal(left, right) for left, right in zip(found, expected, strict=True))

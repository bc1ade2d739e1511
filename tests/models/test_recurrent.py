"""The two-way LSTM model: the right residual, no leaks, ELMo's layers, FLOPs by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from etude.models.recurrent import Recurrent, Settings, build
from etude.nn.packed import pack


@pytest.fixture
def model() -> Recurrent:
    torch.manual_seed(0)
    return build(Settings(layers=2, width=6, cells=10, vocab=30)).eval()


def test_layers_are_those_of_elmo(model: Recurrent) -> None:
    """Token vector twice; LSTM 1 of each way; LSTM 2 of each way plus its input, and nothing else is added."""
    packed = pack([[5, 6, 7], [8]])
    states = model(packed, layers=True)
    assert model.width == 12 and [tuple(layer.shape) for layer in states.layers] == [(4, 12)] * 3
    token = model.embedding.tokens.weight[packed.tokens]
    torch.testing.assert_close(states.layers[0], torch.cat([token, token], 1))
    for way, stack, reverse in ((0, model.forwards, False), (1, model.backwards, True)):
        first, _ = stack[0](token, packed.layout, reverse=reverse)
        second, _ = stack[1](first, packed.layout, reverse=reverse)
        part = slice(6 * way, 6 * way + 6)
        torch.testing.assert_close(states.layers[1][:, part], first)
        torch.testing.assert_close(states.layers[2][:, part], second + first)
    assert torch.equal(states.last, states.layers[2])


def test_neither_direction_sees_its_future_nor_another_sequence(model: Recurrent) -> None:
    sequences = [[5, 6, 7, 8], [9, 10, 11, 12, 13], [14, 15]]
    before = model(pack(sequences)).last
    sequences[1][2] = 20  # token 6 of the flat batch
    after = model(pack(sequences)).last
    moved = (before != after).view(-1, 2, 6).any(dim=2)  # (N, 2)
    assert moved[:, 0].nonzero().flatten().tolist() == [6, 7, 8]
    assert moved[:, 1].nonzero().flatten().tolist() == [4, 5, 6]


def test_reading_backwards_equals_reading_reversed_text(model: Recurrent) -> None:
    sequence = [5, 6, 7, 8, 9]
    reversed_states, end = model.read(pack([sequence[::-1]]), "backward")
    states, other_end = model.read(pack([sequence]), "backward", reverse=True)
    torch.testing.assert_close(states[-1], reversed_states[-1].flip(0))
    torch.testing.assert_close(end.cell, other_end.cell)
    assert end.hidden.shape == (1, 2, 6) and end.cell.shape == (1, 2, 10)


def test_states_do_not_depend_on_company(model: Recurrent) -> None:
    sequences = [[5, 6, 7], [8, 9, 10, 11], [12]]
    together = model(pack(sequences)).last
    alone = torch.cat([model(pack([sequence])).last for sequence in sequences])
    torch.testing.assert_close(together, alone, atol=1e-6, rtol=0)


def test_parameter_names_and_sharing(model: Recurrent) -> None:
    names = set(dict(model.named_parameters()))
    assert "embedding.tokens.weight" in names
    assert {f"{stack}.{layer}.project.weight" for stack in ("forwards", "backwards") for layer in (0, 1)} <= names
    assert len(names) == 1 + 2 * 2 * 4


def test_flops_by_hand(model: Recurrent) -> None:
    a_layer = 4 * 10 * 6 + 4 * 10 * 6 + 10 * 6  # gates from input, from state; projection
    assert model.flops(np.array([3, 4])) == 2 * 7 * 2 * 2 * a_layer


def test_a_projection_only_narrows() -> None:
    with pytest.raises(ValidationError, match="set cells to 12 or more"):
        Settings(width=12, cells=10)
    assert build(Settings(width=10, cells=10, vocab=5)).forwards[0].project is None

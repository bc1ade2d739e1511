"""Static vectors: first values as in word2vec, states that are looked up."""

from __future__ import annotations

import pytest
import torch

from etude.errors import UserError
from etude.models.static import Settings, build
from etude.nn.packed import pack


def test_first_values_are_those_of_word2vec() -> None:
    torch.manual_seed(0)
    model = build(Settings(width=50, vocab=1000))
    assert model.output.weight.eq(0).all()
    scaled = model.input.weight.detach() * 50
    assert scaled.abs().max() <= 0.5
    assert abs(scaled.mean()) < 0.01 and abs(scaled.std() - 12**-0.5) < 0.01


def test_states_are_vectors_whatever_stands_around() -> None:
    model = build(Settings(width=4, vocab=10))
    states = model(pack([[3, 4], [4, 9, 3]]), layers=True)
    assert torch.equal(states.last, model.input.weight[[3, 4, 4, 9, 3]])
    assert len(states.layers) == 1 and torch.equal(states.layers[0], states.last)
    assert (model.width, model.context, model.vocab) == (4, None, 10)


def test_a_vocabulary_is_needed() -> None:
    with pytest.raises(UserError, match="vocab"):
        build(Settings(width=4))

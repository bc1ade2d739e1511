"""The vector of a homonym moves with its context; its letters alone, and a static vector, do not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from etude.errors import UserError
from etude.inference.model import LoadedModel
from etude.models import recurrent, static
from etude.objectives import bilm, skipgram
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.world import World

LETTERS = {"filters": [(1, 8), (3, 12)], "embedding": 8, "highways": 1}


@pytest.fixture(scope="module")
def sentences() -> list[list[str]]:
    """Of the built-in world: the same homonym in its senses."""
    examples = World(seed=0).task("sense", "train", 60)
    bank = [one["text"].rstrip(".").split() for one in examples if one["word"] == "bank"]
    return [words for words in bank if "bank" in words][:4]


@pytest.fixture(scope="module")
def tokenizer(sentences: list[list[str]]) -> Tokenizer:
    return Tokenizer.train("word:30", [" ".join(words) for words in sentences])  # most names stay unknown


def biLM(tokenizer: Tokenizer, characters: dict | None) -> LoadedModel:
    torch.manual_seed(0)
    shape = recurrent.Settings(width=8, cells=12, vocab=tokenizer.vocab, characters=characters)
    model = recurrent.build(shape)
    return LoadedModel(model, bilm.build(bilm.Settings(), model, tokenizer.special), tokenizer)


def moves(model: LoadedModel, sentences: list[list[str]]) -> np.ndarray:
    """(layers,) how far the vectors of "bank" lie apart at least, in each layer."""
    states = model.states(sentences)
    assert [one.shape[1] for one in states] == [len(words) for words in sentences]  # no markers
    bank = np.stack([one[:, words.index("bank")] for one, words in zip(states, sentences, strict=True)])
    apart = np.linalg.norm(bank[:, None] - bank[None], axis=-1)  # (S, S, layers)
    return apart[np.triu_indices(len(sentences), 1)].min(0)


@pytest.mark.parametrize("characters", [None, LETTERS])
def test_context_moves_the_layers_and_not_the_word(tokenizer, sentences, characters) -> None:
    assert len(sentences) >= 3
    apart = moves(biLM(tokenizer, characters), sentences)
    assert apart[0] < 1e-6 and (apart[1:] > 1e-3).all()


def test_a_static_vector_stays(tokenizer, sentences) -> None:
    model = static.build(static.Settings(width=8, vocab=tokenizer.vocab))
    loaded = LoadedModel(model, skipgram.build(skipgram.Settings(), model, tokenizer.special), tokenizer)
    assert moves(loaded, sentences).tolist() == [0.0]


def test_unknown_words_differ_by_their_letters(tokenizer) -> None:
    words = [["Zanzibar"], ["Zarathustra"]]
    for characters, differ in ((None, False), (LETTERS, True)):
        one, other = biLM(tokenizer, characters).states(words)
        assert (np.abs(one - other).max() > 1e-4) == differ


def test_lists_that_are_no_words(tokenizer) -> None:
    model = biLM(tokenizer, LETTERS)
    with pytest.raises(UserError, match="nothing but words"):
        model.states([["bank", 7]])
    with pytest.raises(UserError, match="goes through encode"):
        model.states("the bank")
    with pytest.raises(UserError, match="the vocabulary has"):
        model.states([[10**6]])
    assert model.states([[], ["bank"]])[0].shape == (3, 0, 16)

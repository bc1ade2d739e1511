"""Static vectors: first values as in the programs, states that are looked up, and what stands for unknown words."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from etude.errors import UserError
from etude.models.static import Settings, Static, build
from etude.nn.packed import pack
from etude.text.tokenizer.char_ngrams import extract_ngrams, hash_ngram
from etude.text.tokenizer.open_vocabulary import OpenVocabularyTokenizer
from etude.text.tokenizer.special_tokens import TRAINED_SPECIALS
from etude.text.tokenizer.tokenizer import Tokenizer

WORDS = ["the", "king", "한국", "of"]


def tokenizer() -> Tokenizer:
    named = {word: number for number, word in enumerate([*TRAINED_SPECIALS, *WORDS])}
    model = {"type": "WordLevel", "vocab": named, "unk_token": "[UNK]"}
    steps = {"normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "WhitespaceSplit"}}
    return Tokenizer(json.dumps({"version": "1.0", **steps, "model": model}))


def model_of(**options: Any) -> Static:
    torch.manual_seed(0)
    return build(Settings(width=4, vocab=10, **options))


@pytest.mark.parametrize(
    ("init", "edge", "output"), [("word2vec", 0.5, 0.0), ("fasttext", 1.0, 0.0), ("glove", 0.5, 0.5)]
)
def test_first_values_are_those_of_the_programs(init: str, edge: float, output: float) -> None:
    torch.manual_seed(0)
    model = build(Settings(width=50, vocab=1000, init=init))
    for table, limit in ((model.input, edge), (model.output, output)):
        scaled = table.weight.detach() * 50
        assert scaled.abs().max() <= limit + 1e-6
        assert abs(scaled.mean()) < 0.02 and abs(scaled.std() - limit / math.sqrt(3)) < 0.01


def test_states_are_vectors_whatever_stands_around() -> None:
    model = model_of()
    states = model(pack([[3, 4], [4, 9, 3]]), layers=True)
    assert torch.equal(states.last, model.input.weight[[3, 4, 4, 9, 3]])
    assert len(states.layers) == 1 and torch.equal(states.layers[0], states.last)
    assert (model.width, model.context, model.vocab) == (4, None, 10)


def test_gloves_vector_is_the_sum_of_both_tables() -> None:
    model = model_of(init="glove", result="sum")
    assert torch.equal(model(pack([[6, 7]])).last, (model.input.weight + model.output.weight)[[6, 7]])


def test_a_word_of_sub_words_is_the_mean_of_its_rows() -> None:
    model = model_of(buckets=50, grams=(2, 3))
    used = model.attach_tokenizer(tokenizer())
    assert not isinstance(used, OpenVocabularyTokenizer), "unknown: rarest needs no letters"
    rows = [8, *(10 + hash_ngram(gram, 50) for gram in extract_ngrams("한국", 2, 3))]
    torch.testing.assert_close(model(pack([[0, 8]])).last, torch.stack([
        model.input.weight[0], model.input.weight[rows].mean(0)
    ]))  # fmt: skip
    with pytest.raises(ValueError, match="call attach_tokenizer or set_spellings"):
        model_of(buckets=50)(pack([[7]]))


def test_the_unknown_token_has_the_mean_of_the_rarest_words() -> None:
    for unknown, wanted in (("rarest", lambda t: t[[6, 7, 8, 9]].mean(0)), ("zero", lambda t: 0 * t[0]),
                            ("own", lambda t: t[1])):  # fmt: skip
        model = model_of(unknown=unknown)
        model.attach_tokenizer(tokenizer())
        torch.testing.assert_close(model(pack([[1, 7]])).last[0], wanted(model.input.weight))
        assert torch.equal(model(pack([[1, 7]])).last[1], model.input.weight[7])


def test_unknown_words_have_the_mean_of_their_n_grams() -> None:
    model = model_of(buckets=50, grams=(2, 3), unknown="subwords")
    used = model.attach_tokenizer(tokenizer())
    assert isinstance(used, OpenVocabularyTokenizer) and model.attach_tokenizer(tokenizer()) is used
    ids = used.encode("The KINGDOM 한국인 kingdom q").ids
    assert ids[0] >= 10 and len(set(ids.tolist())) == 5
    states = model(pack([ids])).last
    torch.testing.assert_close(states[0], model(pack([[6]])).last[0])  # known in lower case
    for place, word in ((1, "kingdom"), (2, "한국인"), (3, "kingdom"), (4, "q")):
        rows = [10 + hash_ngram(gram, 50) for gram in extract_ngrams(word, 2, 3)]
        torch.testing.assert_close(states[place], model.input.weight[rows].mean(0))
    states.sum().backward()
    assert float(model.input.weight.grad[10:].abs().sum()) > 0, "fine-tuning reaches the n-grams of unknown words"


def test_unknown_words_may_have_a_random_vector_of_their_own() -> None:
    model = model_of(unknown="random")
    used = model.attach_tokenizer(tokenizer())
    states = model(pack([used.encode("kingdom queen Kingdom king").ids])).last
    assert torch.equal(states[0], states[2]) and not torch.equal(states[0], states[1])
    assert float(states[:3].detach().abs().max()) <= math.sqrt(3 / 4)
    torch.testing.assert_close(states[3], model.input.weight[7])
    again = model_of(unknown="random")
    again_used = again.attach_tokenizer(tokenizer())
    assert torch.equal(again(pack([again_used.encode("kingdom").ids])).last[0], states[0])


def test_rows_behind_the_last_word_stand_for_no_word() -> None:
    """With model.vocab above the tokenizer's, the first unknown words of a call had the vectors of those rows."""
    for unknown in ("random", "rarest", "subwords"):
        options: dict[str, Any] = {"unknown": unknown, "buckets": 50 if unknown == "subwords" else 0}
        torch.manual_seed(0)
        padded = build(Settings(width=4, vocab=16, **options))
        used = padded.attach_tokenizer(tokenizer())
        words = ["kingdom", "queen", "한국인"]
        with torch.no_grad():
            before = padded(pack([used.encode(" ".join(words)).ids])).last
            padded.input.weight[10:16] += 1.0
            assert torch.equal(padded(pack([used.encode(" ".join(words)).ids])).last, before), unknown
            used.encode(" ".join(f"another{number}" for number in range(9)))
            alone = [padded(pack([used.encode(word).ids])).last[0] for word in words]
        torch.testing.assert_close(torch.stack(alone), before)


def test_counts_are_kept_with_the_vectors() -> None:
    model = model_of()
    assert model.set_counts(np.array([1, 2, 3])).tolist() == [1, 2, 3, *[0] * 7]
    assert model.state_dict()["counts"].tolist() == [1, 2, 3, *[0] * 7]


@pytest.mark.parametrize(
    ("options", "word"),
    [({"buckets": 5, "grams": (4, 3)}, "shortest"), ({"buckets": 5, "result": "sum"}, "GloVe"),
     ({"unknown": "subwords"}, "buckets")],
)  # fmt: skip
def test_what_is_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        Settings(width=4, **options)
    with pytest.raises(UserError, match="vocab"):
        build(Settings(width=4))

"""Beam search finds what the wide view finds, and is greedy with one beam."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from etude.errors import UserError
from etude.inference.beam_search import length_penalty, search
from etude.inference.generation import Sampling, generate
from etude.inference.model import LoadedModel
from tests.tiny_models import decoder, encoder

PROMPTS = ["the cat", "고양이", ""]


def few_words(**changes: Any) -> LoadedModel:
    """Only four letters and end-of-text can follow."""
    model = decoder(bias=True, **changes)
    tokenizer = model.tokenizer
    allowed = [*(tokenizer.encode(letter).ids[0] for letter in "abct"), tokenizer.special.end]
    with torch.no_grad():
        model.objective.head.bias.fill_(-1e4)
        model.objective.head.bias[allowed] = 0.0
    model.allowed = allowed  # type: ignore[attr-defined]
    return model


def likelihood(model: LoadedModel, ids: list[int], new: list[int]) -> float:
    scores = torch.from_numpy(model.logits([[*ids, *new[:-1]]])[0]).double().log_softmax(-1)
    return float(sum(scores[len(ids) - 1 + step, token] for step, token in enumerate(new)))


@pytest.mark.parametrize("penalty", [0.0, 0.6, 2.0])
def test_a_beam_that_holds_everything_finds_the_best(penalty: float) -> None:
    model = few_words()
    *letters, end = model.allowed  # type: ignore[attr-defined]
    for prompt in PROMPTS:
        ids = model.frame(model.tokenizer.encode(prompt).ids).tolist()
        every = [[*new, end] for size in range(3) for new in itertools.product(letters, repeat=size)]
        scores = {tuple(new): likelihood(model, ids, new) / length_penalty(len(new), penalty) for new in every}
        best = max(scores, key=scores.__getitem__)
        result = search(model, prompt, 3, beams=100, penalty=penalty)
        assert (*result[0].ids, end) == best and result[0].ended == "end"
        assert result[0].score == pytest.approx(scores[best], abs=1e-4)
        assert [item.score for item in result] == sorted((item.score for item in result), reverse=True)  # type: ignore[type-var]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_one_beam_is_greedy(prompt: str) -> None:
    model = decoder(context=16)
    (result,) = search(model, prompt, 25, beams=1)
    greedy = generate(model, [prompt], Sampling(tokens=25, temperature=0))[0]
    assert (result.ids, result.text, result.slides) == (greedy.ids, greedy.text, greedy.slides)
    assert result.slides > 0


@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_cache_changes_nothing(prompt: str) -> None:
    model = decoder(context=16)
    result = search(model, prompt, 14, stop=["a"])
    again = search(model, prompt, 14, stop=["a"], cached=False)
    assert [(item.ids, item.text, item.ended) for item in result] == [
        (item.ids, item.text, item.ended) for item in again
    ]
    assert len({item.ids for item in result}) == len(result)


def test_more_beams_are_not_worse_here_and_stop_strings_end() -> None:
    model = few_words()
    narrow, wide = search(model, "the", 6, beams=1, penalty=0.0), search(model, "the", 6, beams=30, penalty=0.0)
    assert narrow[0].score is not None and wide[0].score is not None
    assert wide[0].score >= narrow[0].score
    letter = wide[-1].text[-1]
    stopped = search(model, "the", 6, beams=30, stop=[letter])
    assert {item.ended for item in stopped} == {"end", "stop"}
    assert all(letter not in item.text for item in stopped)


def test_what_cannot_be_asked_is_said() -> None:
    for wrong in ({"beams": 0}, {"penalty": -1.0}, {"penalty": float("nan")}):
        with pytest.raises(UserError, match=next(iter(wrong))):
            decoder().search("the", **wrong)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="does not write on"):
        encoder().search("the")

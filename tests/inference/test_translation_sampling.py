"""Drawn translations: greedy at temperature 0, frequencies of the model's own probabilities, and independence."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from etude.errors import UserError
from etude.inference.translation import Search, TargetSampling, require_translator, translate
from etude.nn.packed import pack
from tests.inference.test_translation import START, TEXTS, log_probs, make


def test_temperature_0_and_one_token_are_greedy() -> None:
    loaded = make(3, context=12)
    greedy = [each[0].ids for each in translate(loaded, TEXTS, Search(beams=1))]
    for sampling in (TargetSampling(temperature=0), TargetSampling(top_k=1), TargetSampling(top_p=1e-9)):
        assert [each[0].ids for each in translate(loaded, TEXTS, sampling)] == greedy


@torch.no_grad()
def test_translations_come_as_often_as_the_model_says() -> None:
    loaded, count = make(1), 600
    drawn = translate(loaded, [TEXTS[0]], TargetSampling(samples=count))[0]
    counts = Counter(each.ids for each in drawn if each.finished)
    for ids, number in counts.most_common(3):
        [expected] = log_probs(loaded, TEXTS[0], [ids])
        assert next(each.log_prob for each in drawn if each.ids == ids) == pytest.approx(float(expected), abs=1e-4)
        share = math.exp(float(expected))
        assert abs(number - count * share) < 4 * math.sqrt(count * share * (1 - share)), (ids, number, count * share)
    assert len(counts) > 10


def test_a_draw_depends_on_seed_source_and_number_alone() -> None:
    loaded = make(3, context=12)
    sampling = TargetSampling(temperature=1.3, samples=3, seed=5)
    together = translate(loaded, [*TEXTS, ""], sampling)
    alone = [translate(loaded, [text], sampling)[0] for text in TEXTS]
    assert [[each.ids for each in some] for some in together[:3]] == [[each.ids for each in some] for some in alone]
    assert together[3][0].text == "" and len({each.ids for each in together[2]}) > 1
    fewer = translate(loaded, TEXTS, TargetSampling(temperature=1.3, samples=1, seed=5))
    assert [some[0].ids for some in fewer] == [some[0].ids for some in together[:3]]
    other = translate(loaded, TEXTS, TargetSampling(temperature=1.3, samples=3, seed=6))
    assert [[each.ids for each in some] for some in other] != [[each.ids for each in some] for some in together[:3]]


@torch.no_grad()
def test_top_k_writes_none_but_the_likeliest_tokens() -> None:
    loaded = make(1, context=8)
    model, objective = require_translator(loaded)
    drawn = translate(loaded, [TEXTS[2]], TargetSampling(temperature=2.0, top_k=2, samples=40))[0]
    source = pack([objective.frame(loaded.tokenizer.encode(TEXTS[2]).ids, None)])
    for each in drawn:
        states = model(pack([[START, *each.ids[:-1]]]), source=source).last
        logits = objective.decoder_logits(model, states)
        logits[:, 0] = -torch.inf  # padding is never written
        likeliest = logits.topk(2).indices.tolist()
        assert all(token in likeliest[place] for place, token in enumerate(each.ids))


def test_mistakes_are_named_and_the_python_interface_draws() -> None:
    loaded = make(1)
    wrong = [("temperature", -1.0, "below 0"), ("top_k", 0, "leaves no token"), ("top_p", 2.0, "not a share")]
    for name, value, message in wrong:
        with pytest.raises(UserError, match=message):
            loaded.translate(TEXTS, **{name: value})
    with pytest.raises(UserError, match="ask for one or more"):
        TargetSampling(samples=0)
    drawn = loaded.translate(TEXTS, temperature=1.0, best=6)
    assert [len(each) for each in drawn] == [6, 6, 6]

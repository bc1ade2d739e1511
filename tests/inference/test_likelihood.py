"""What an answer behind a text is worth: brute force says the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from etude.errors import UserError
from etude.inference.likelihood import AnswerScores, encode_answers, score_answers, score_by_rule
from etude.inference.model import LoadedModel

TEXTS = [
    "good film",
    "bad plot",
    "very good actor",
    "the end was bad",
    "영화 정말 좋다",
    "label: bad very good\n\nA. is what ?",
]


@pytest.fixture(scope="module", params=["bytebpe:300", "word:60"])
def gpt(request: pytest.FixtureRequest, small_gpt: Callable[..., LoadedModel]) -> LoadedModel:
    return small_gpt(request.param, TEXTS, scale=3)  # so that answers differ


def brute_force(gpt: LoadedModel, context: str, answer: str) -> tuple[float, int, bool]:
    """Nats and tokens of an answer, each token from a reading of its own; and whether it would be written."""
    ids = gpt.tokenizer.encode(context + answer).ids.tolist()
    before = gpt.tokenizer.encode(context).ids.tolist()
    first = next((n for n, (a, b) in enumerate(zip(before, ids, strict=False)) if a != b), min(len(before), len(ids)))
    total, likeliest = 0.0, True
    for place in range(first, len(ids)):
        scores = gpt.logits([gpt.objective.frame(np.array(ids[:place]), None)])[0][-1]
        total += float(F.cross_entropy(torch.from_numpy(scores)[None], torch.tensor([ids[place]])))
        likeliest = likeliest and int(scores.argmax()) == ids[place]
    return total, len(ids) - first, likeliest


def written(gpt: LoadedModel, context: str, tokens: int) -> str:
    return str(gpt.generate(context, tokens, temperature=0, past_end=True))[len(context) :]


def test_what_a_model_would_write_is_likeliest(gpt: LoadedModel) -> None:
    answer = written(gpt, "the end", 3)
    (answer_scores,) = score_answers(gpt, [encode_answers(gpt, "the end", [answer, answer + " film"])])
    assert answer_scores.likeliest[0] == brute_force(gpt, "the end", answer)[2]


@pytest.mark.parametrize("answers", [[" bad", " very good"], [" good", " bad"], ["\n\nA.", " the end was bad"]])
def test_an_answer_is_worth_what_its_tokens_are(gpt: LoadedModel, answers: list[str]) -> None:
    contexts = ["good film\nlabel:", "the end", "very good actor\nlabel: ", "영화 정말"]
    group = [encode_answers(gpt, context, answers) for context in contexts]
    for context, answer_scores in zip(contexts, score_answers(gpt, group), strict=True):
        bare = context.rstrip(" ")
        expected = [brute_force(gpt, bare, context[len(bare) :] + answer) for answer in answers]
        assert answer_scores.tokens.tolist() == [count for _, count, _ in expected]
        assert answer_scores.nats == pytest.approx([value for value, _, _ in expected], abs=1e-4)
        assert answer_scores.likeliest.tolist() == [likeliest for _, _, likeliest in expected]


def test_an_empty_context_is_end_of_text(gpt: LoadedModel) -> None:
    (answer_scores,) = score_answers(gpt, [encode_answers(gpt, "", ["bad", "good"])])
    ids = gpt.tokenizer.encode("bad").ids
    scores = gpt.logits([[gpt.tokenizer.special.end, *ids[:-1]]])[0]
    expected = F.cross_entropy(torch.from_numpy(scores), torch.from_numpy(ids).long(), reduction="sum")
    assert answer_scores.nats[0] == pytest.approx(float(expected), abs=1e-4)


def test_what_is_too_long_is_cut_at_its_beginning(gpt: LoadedModel) -> None:
    context, answers = "good film bad plot " * 60 + "label:", [" bad", " very good"]
    item = encode_answers(gpt, context, answers)
    assert item.cut
    for tokens, first, answer in zip(item.sequences, item.firsts, answers, strict=True):
        whole = gpt.tokenizer.encode(context + answer).ids
        assert len(tokens) == gpt.model.context + 1  # the last one is not read
        assert tokens.tolist() == whole[-len(tokens) :].tolist()
        assert len(tokens) - first == len(whole) - len(gpt.tokenizer.encode(context).ids)
    assert not encode_answers(gpt, "label:", answers).cut


def test_what_several_answers_read_is_read_once(gpt: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    options = [option for option in (" good", " bad", " film", " plot") if tokens_of(gpt, option) == 1]
    assert len(options) > 1
    read, packed = [], gpt.pack_batches

    def noting(ids: list[np.ndarray]) -> object:
        read.extend(ids)
        return packed(ids)

    monkeypatch.setattr(gpt, "pack_batches", noting)
    score_answers(gpt, [encode_answers(gpt, "the", options)])
    assert len(read) == 1


def tokens_of(gpt: LoadedModel, option: str) -> int:
    item = encode_answers(gpt, "the", [option])
    return len(item.sequences[0]) - item.firsts[0]


RATED = st.tuples(st.floats(0.1, 50), st.integers(1, 9), st.text(min_size=1, max_size=9))


@given(st.lists(RATED, min_size=2, max_size=5))
def test_rules_divide_by_what_they_say(answers: list[tuple[float, int, str]]) -> None:
    nats, tokens = np.array([item[0] for item in answers]), np.array([item[1] for item in answers])
    conditional, unconditional = (AnswerScores(value, tokens, tokens == 1) for value in (nats, nats * 2))
    result = score_by_rule(conditional, [word for _, _, word in answers], unconditional)
    assert result["sum"] == pytest.approx(-nats)
    assert result["tokens"] == pytest.approx([-n / t for n, t, _ in answers])
    assert result["characters"] == pytest.approx([-n / len(word) for n, _, word in answers])
    assert result["bytes"] == pytest.approx([-n / len(word.encode()) for n, _, word in answers])
    assert result["unconditional"] == pytest.approx(nats)


@pytest.mark.parametrize("answer", ["", "  "])
def test_an_answer_of_nothing_is_refused(gpt: LoadedModel, answer: str) -> None:
    with pytest.raises(UserError, match="leaves nothing of the answer"):
        encode_answers(gpt, "the end", [answer])


def test_an_answer_that_fills_the_context_is_refused(gpt: LoadedModel) -> None:
    with pytest.raises(UserError, match="leaves no room"):
        encode_answers(gpt, "the end", [" good film" * 100])

"""Every token is scored exactly once, with the context that is described."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.chance import Chance
from etude.errors import UserError
from etude.inference.model import LoadedModel
from etude.inference.perplexity import IdArray, perplexity, pseudo_perplexity, score_windows, windows
from etude.text.corpus.corpus import Corpus
from etude.text.tokenizer.tokenizer import Tokenizer
from tests.tiny_models import TEXTS, decoder, encoder

DECODER, ENCODER = decoder(context=8), encoder(context=16)


def brute_force(model: LoadedModel, ids: list[int], context: int, stride: int) -> list[float]:
    """Each token alone: its probability behind the tokens from the first window that reaches it."""
    result = []
    for place in range(1, len(ids)):
        start = next(at for at in range(0, len(ids), stride) if at + context >= place)
        scores = torch.from_numpy(model.logits([ids[start:place]])[0][-1])
        result.append(-float(scores.double().log_softmax(-1)[ids[place]]))
    return result


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_every_token_once_as_defined(data: st.DataObject) -> None:
    context = data.draw(st.integers(1, 8))
    stride = data.draw(st.integers(1, context))
    lengths = data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=3))
    draw = np.random.default_rng(1)
    pieces = [draw.integers(6, 300, length) for length in lengths]
    parts = list(score_windows(DECODER, map(IdArray, pieces), context, stride))
    nats, targets = torch.cat([nats for nats, _ in parts]) if parts else torch.zeros(0), [t for _, t in parts]
    expected = [value for piece in pieces for value in brute_force(DECODER, piece.tolist(), context, stride)]
    np.testing.assert_allclose(nats.numpy(), expected, rtol=1e-4, atol=1e-5)
    wanted = np.concatenate([piece[1:] for piece in pieces])
    assert np.array_equal(np.concatenate([*targets, np.zeros(0, np.int64)]), wanted)


def test_windows_see_at_least_what_is_promised() -> None:
    for window in list(windows(IdArray(np.arange(100)), 8, 3))[1:]:
        assert window.first + 1 >= 8 - 3 + 1


def test_a_text_is_scored_behind_end_of_text() -> None:
    text = TEXTS[0] + " 고양이"
    result = perplexity(DECODER, text, stride=3)
    ids = [DECODER.tokenizer.special.end, *DECODER.tokenizer.encode(text).ids.tolist()]
    nats = brute_force(DECODER, ids, 8, 3)  # type: ignore[arg-type]
    assert result.tokens == len(ids) - 1 == len(nats)
    assert result.nats == pytest.approx(sum(nats), rel=1e-5)
    assert result.words == 17 + 3 + 1 and result.bytes == len(text.encode()) and not result.unscored
    assert result.perplexity == pytest.approx(math.exp(sum(nats) / len(nats)), rel=1e-5)
    assert result.bits_per_byte == pytest.approx(sum(nats) / math.log(2) / len(text.encode()), rel=1e-5)
    assert result.nats_per_word == pytest.approx(result.nats / 21) and not result.pseudo


def test_a_long_text_without_a_space_is_one_unlikely_word() -> None:
    """Its nats are no exponent of a float: the verb ended in a traceback, behind all of its work."""
    result = perplexity(DECODER, "ab" * 1000)
    assert result.words == 1 and result.word_perplexity == math.inf
    assert math.isfinite(result.perplexity) and math.isfinite(result.bits_per_byte)


def corpus_of(model: LoadedModel) -> tuple[Corpus, list[list[int]]]:
    draw = np.random.default_rng(2)
    documents = [draw.integers(6, 300, size).tolist() for size in (5, 1, 23, 11)]
    return Corpus.from_documents([[document] for document in documents], model.tokenizer), documents


@pytest.mark.parametrize("documents", ["join", "split"])
def test_a_corpus_is_read_as_in_pretraining(documents: str) -> None:
    model = decoder(context=8, documents=documents)
    corpus, parts = corpus_of(model)
    end = model.tokenizer.special.end
    assert end is not None
    pieces = [[end, *part, end] for part in parts]
    if documents == "join":
        pieces = [[end, *(id for part in parts for id in (*part, end))]]
    nats = [value for piece in pieces for value in brute_force(model, piece, 8, 4)]
    result = perplexity(model, corpus)
    assert (result.stride, result.tokens) == (4, corpus.total + 4)
    assert result.nats == pytest.approx(sum(nats), rel=1e-5)
    assert result.words == corpus.total and result.bytes == corpus.bytes


@pytest.mark.parametrize("start", [False, True])
@pytest.mark.parametrize("documents", ["join", "split"])
def test_windows_side_by_side_are_the_loss_of_the_objective(documents: str, start: bool) -> None:
    """With a stride of the whole context, what training reports on a held-out part."""
    model = decoder(context=8, documents=documents, start=start)
    corpus, _ = corpus_of(model)
    rows = model.objective.rows(corpus, seed=0)
    batch = model.objective.batch([rows[number] for number in range(len(rows))], Chance(0, 0))
    loss = model.objective.metrics(model.model, batch)["loss"]
    result = perplexity(model, corpus, stride=8)
    assert result.tokens == loss.count
    assert result.nats_per_token == pytest.approx(loss.mean, rel=1e-5)
    assert result.bits_per_byte == pytest.approx(
        loss.mean * model.objective.tokens_per_byte(corpus) / math.log(2), rel=1e-5
    )


def test_memory_bounds_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = perplexity(DECODER, TEXTS[1], stride=2)
    monkeypatch.setattr("etude.inference.base.TOKENS", 20)
    monkeypatch.setattr("etude.nn.losses._LOGITS", 3 * 300)
    again = perplexity(DECODER, TEXTS[1], stride=2)
    assert again.nats == pytest.approx(whole.nats, rel=1e-6) and again.tokens == whole.tokens


def test_a_tokenizer_without_end_of_text_leaves_the_first_token() -> None:
    model = decoder(context=8)
    parts = model.tokenizer.content.replace('"[EOT]"', '"[NOT]"')
    bare = LoadedModel(model.model, model.objective, Tokenizer(parts))
    assert bare.tokenizer.special.end is None
    ids = bare.tokenizer.encode(TEXTS[0]).ids.tolist()
    result = perplexity(bare, TEXTS[0])
    assert result.unscored == 1 and result.tokens == len(ids) - 1
    assert result.nats == pytest.approx(sum(brute_force(bare, ids, 8, 4)), rel=1e-5)
    with pytest.raises(UserError, match="no end-of-text"):
        perplexity(bare, corpus_of(model)[0])


@pytest.mark.parametrize("markers", [True, False])
def test_pseudo_perplexity_masks_one_token_at_a_time(markers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etude.inference.perplexity.COPIES", 5)
    monkeypatch.setattr("etude.inference.base.TOKENS", 40)
    model = encoder(context=16, markers=markers)
    special, ids = model.tokenizer.special, model.tokenizer.encode(TEXTS[0]).ids.tolist()
    room, before = (14, [special.start]) if markers else (16, [])
    total = 0.0
    for start in range(0, len(ids), room):
        stretch = ids[start : start + room]
        for place, token in enumerate(stretch):
            asked = [*before, *stretch, *([special.separator] if markers else [])]
            asked[len(before) + place] = special.mask
            scores = torch.from_numpy(model.logits([asked])[0][len(before) + place])  # type: ignore[list-item]
            total -= float(scores.double().log_softmax(-1)[token])
    result = pseudo_perplexity(model, TEXTS[0])
    assert result.pseudo and result.tokens == len(ids)
    assert result.nats == pytest.approx(total, rel=1e-5)


def test_pseudo_perplexity_of_a_corpus_reads_its_documents() -> None:
    texts = ["the cat sat", "고양이가 앉았다"]
    encoded = [ENCODER.tokenizer.encode(text).ids.tolist() for text in texts]
    corpus = Corpus.from_documents([[ids] for ids in encoded], ENCODER.tokenizer)
    result = pseudo_perplexity(ENCODER, corpus)
    assert result.nats == pytest.approx(sum(pseudo_perplexity(ENCODER, text).nats for text in texts), rel=1e-5)


def test_unknown_tokens_are_counted() -> None:
    assert pseudo_perplexity(ENCODER, "the 漢 cat 漢").unknown == 2


def test_what_cannot_be_measured_is_said() -> None:
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (ENCODER, {}, "pseudo-perplexity"),
        (DECODER, {"stride": 9}, "take 1 to 8"),
        (DECODER, {"stride": 0}, "take 1 to 8"),
        (DECODER, {"context": 9}, "from 1 to 8"),
        (DECODER, {"source": ""}, "no tokens"),
        (DECODER, {"source": _other()}, "another tokenizer"),
    ]
    for model, asked, word in wrong:
        with pytest.raises(UserError, match=word):
            perplexity(model, **{"source": "the cat", **asked})
    with pytest.raises(UserError, match="use perplexity"):
        pseudo_perplexity(DECODER, "the cat")


def _other() -> Corpus:
    return Corpus.from_documents([[[7, 8]]], ENCODER.tokenizer)

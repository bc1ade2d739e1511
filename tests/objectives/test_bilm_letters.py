"""The biLM by letters: two marks a sentence, unknown words told apart, batches against the plain model."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from etude.chance import Chance
from etude.errors import UserError
from etude.models import recurrent
from etude.nn.packed import pack
from etude.objectives.bilm import BiLM, Settings, Stream, build
from etude.text.tokenizer.char_ids import SENTENCE_END, SENTENCE_START, words_to_char_ids
from etude.text.tokenizer.open_vocabulary import OpenVocabularyTokenizer
from tests.objectives.small_corpus import SPECIAL, VOCAB, small_corpus, tokenizer

LETTERS = {"filters": [(1, 4), (3, 5)], "embedding": 4, "highways": 1}


def text(lengths: list[list[int]], seed: int = 0) -> list[list[list[int]]]:
    chance = np.random.default_rng(seed)
    return [[chance.integers(6, VOCAB, size).tolist() for size in document] for document in lengths]


def system(objective: dict | None = None, **changes) -> tuple[recurrent.Recurrent, BiLM]:
    torch.manual_seed(1)
    shape = {"layers": 2, "width": 8, "cells": 12, "vocab": VOCAB, "dropout": 0.0, "characters": LETTERS} | changes
    model = recurrent.build(recurrent.Settings(**shape))
    return model, build(Settings(unroll=5, **(objective or {})), model, SPECIAL)


@given(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=1, max_size=4), st.data())
@settings(max_examples=60, deadline=None)
def test_the_stream_has_two_marks_a_sentence(lengths: list[list[int]], data: st.DataObject) -> None:
    documents = text(lengths)
    corpus = small_corpus(documents)
    stream = Stream(corpus, corpus.sentences, SPECIAL.end, SPECIAL.start)
    wanted = [id for document in documents for s in document for id in (SPECIAL.start, *s, SPECIAL.end)]
    assert stream.total == len(wanted)
    start = data.draw(st.integers(0, len(wanted) - 1))
    stop = data.draw(st.integers(start + 1, len(wanted)))
    assert stream.read(start, stop).tolist() == wanted[start:stop]
    marks = {SPECIAL.start: SENTENCE_START, SPECIAL.end: SENTENCE_END}
    assert stream.words(start, stop) == [marks.get(id, f"w{id}".encode()) for id in wanted[start:stop]]


def test_a_batch_gives_the_states_of_the_model_in_use() -> None:
    """Letters brought along by the batch, and letters asked from the speller by id, are the same words."""
    model, objective = system()
    model.attach_tokenizer(tokenizer())
    rows = objective.rows(small_corpus(text([[7, 6]])), seed=0)
    batch = objective.batch([rows[0], rows[1]], Chance(0, 0))
    assert len(batch.rows_of_letters) == len({*batch.tokens.tolist(), *batch.backward.tokens.tolist()})
    for way, (direction, packed) in enumerate((("forward", batch), ("backward", batch.backward))):
        vectors = objective._vectors(model, batch)[way]
        torch.testing.assert_close(vectors, model.embedding(packed.tokens))
        states, _ = model.read(packed, direction, vectors=vectors)
        plain, _ = model.read(packed, direction)
        torch.testing.assert_close(states[-1], plain[-1])


def test_the_loss_is_that_of_the_words_read_one_by_one() -> None:
    model, objective = system()
    model.attach_tokenizer(tokenizer())
    rows = objective.rows(small_corpus(text([[7, 6]])), seed=0)
    objective.set_lanes(1)
    batch = objective.batch([rows[0]], Chance(0, 0))
    terms = objective.loss(model, batch)
    for way, direction in enumerate(("forward", "backward")):
        tokens = (batch if way == 0 else batch.backward).tokens
        states, _ = model.read(pack([tokens.numpy()]), direction)
        logits = F.linear(states[-1], objective.output.weight, objective.output.bias)
        wanted = F.cross_entropy(logits, batch.targets[way], reduction="sum")
        torch.testing.assert_close(terms[direction].sum, wanted)


def test_the_letters_of_unknown_words_are_seen() -> None:
    """Two words of one id, [UNK], and a capital: three different inputs."""
    model, _ = system()
    speller = model.attach_tokenizer(tokenizer())
    assert isinstance(speller, OpenVocabularyTokenizer)
    ids = speller.encode("w7 zebra W7 zebu").ids
    assert ids[0] == 7 and len(set(ids.tolist())) == 4 and (ids[1:] >= VOCAB).all()
    assert speller.to_closed_vocabulary(ids).tolist() == [7, SPECIAL.unknown, SPECIAL.unknown, SPECIAL.unknown]
    assert speller.decode(ids) == "w7 zebra W7 zebu" and speller.token(ids[1]) == "zebra"
    assert np.array_equal(speller.char_ids(ids), words_to_char_ids(["w7", "zebra", "W7", "zebu"]))
    assert np.array_equal(
        speller.char_ids([SPECIAL.start, SPECIAL.end]), words_to_char_ids([SENTENCE_START, SENTENCE_END])
    )
    vectors = model.embedding(torch.from_numpy(ids).long())
    assert torch.pdist(vectors).min() > 1e-4
    assert speller.encode("zebra").ids[0] == ids[1]  # the same word, the same id
    assert np.array_equal(speller.encode_ids(["zebu W7"])[0], ids[[3, 2]])
    assert speller.encode_words(["zebu", "[EOT]", "w8 w9"]).tolist()[0] == ids[3]
    assert (speller.encode_words(["[EOT]", "w8 w9"]) >= VOCAB).all()  # no word of a text is a marker, none is cut
    again = copy.deepcopy(model)
    assert again.embedding.speller is speller and again.attach_tokenizer(tokenizer()) is speller


def test_the_embedding_layer_stands_twice_and_markers_frame_a_text() -> None:
    model, objective = system()
    model.attach_tokenizer(tokenizer())
    ids = objective.frame(np.array([7, 8, 9]), None)
    assert ids.tolist() == [SPECIAL.start, 7, 8, 9, SPECIAL.end]
    layers = model(pack([ids]), layers=True).layers
    assert [one.shape for one in layers] == [(5, 16)] * 3
    assert torch.equal(layers[0][:, :8], layers[0][:, 8:])


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_one_direction_alone(direction: str) -> None:
    model, objective = system(direction=direction)
    assert model.width == 8 and set(objective.state()) == {"hidden", "cell", "following"}
    rows = objective.rows(small_corpus(text([[20]])), seed=0)
    objective.set_lanes(1)
    terms = objective.loss(model, objective.batch([rows[0]], Chance(0, 0)))
    assert list(terms) == [direction] and terms[direction].weight == 1.0
    other = model.backwards if direction == "forward" else model.forwards
    assert len(other) == 0
    assert (objective.nats_per_token == "forward") == (direction == "forward")


def test_models_that_share_nothing_learn_nothing_from_each_other() -> None:
    """TagLM's pair: the gradient of the forward loss touches no parameter of the backward model."""
    for shared in (True, False):
        model, objective = system(shared=shared)
        rows = objective.rows(small_corpus(text([[20]])), seed=0)
        objective.set_lanes(1)
        terms = objective.loss(model, objective.batch([rows[0]], Chance(0, 0)))
        parts = {**dict(model.named_parameters()), **{f"objective.{n}": p for n, p in objective.named_parameters()}}
        grads = torch.autograd.grad(terms["forward"].sum, list(parts.values()), retain_graph=True, allow_unused=True)
        touched = {name for name, grad in zip(parts, grads, strict=True) if grad is not None}
        grads = torch.autograd.grad(terms["backward"].sum, list(parts.values()), allow_unused=True)
        other = {name for name, grad in zip(parts, grads, strict=True) if grad is not None}
        assert touched | other == set(parts)
        common = {name.split(".")[0] for name in touched & other}
        assert common == ({"embedding", "objective"} if shared else set())


def run(model: recurrent.Recurrent, objective: BiLM, rows, steps: int, micro: int, lanes: int = 4) -> Tensor:
    length = len(rows) // lanes
    sums = torch.zeros(steps, dtype=torch.float64)
    for step in range(steps):
        chosen = [rows[lane * length + step % length] for lane in range(lanes)]
        for slot, row in enumerate(chosen):
            row.slot = slot
        for start in range(0, lanes, micro):
            terms = objective.loss(model, objective.batch(chosen[start : start + micro], Chance(0, step)))
            sums[step] += sum(term.sum.detach() for term in terms.values())
    return sums


@pytest.mark.parametrize("softmax", ["full", "sampled", "adaptive"])
def test_micro_batches_change_nothing(softmax: str) -> None:
    cutoffs = {"cutoffs": [10, 20]} if softmax == "adaptive" else {}
    model, objective = system({"softmax": softmax, "candidates": 8, "division": 2.0, **cutoffs})
    rows = objective.rows(small_corpus(text([[30, 40], [50]])), seed=0)
    objective.set_lanes(4)
    whole = run(model, objective, rows, 4, micro=4)
    objective.set_lanes(4)
    torch.testing.assert_close(run(model, objective, rows, 4, micro=1), whole, rtol=1e-5, atol=0)


@pytest.mark.parametrize("letters", [True, False])
def test_candidates_are_drawn_by_how_often_words_and_marks_are_predicted(letters: bool) -> None:
    """Marks are no tokens of the corpus: they had the last ranks, and hardly ever competed with the true word."""
    changes = {} if letters else {"characters": None}
    _, objective = system({"softmax": "sampled", "candidates": 8}, **changes)
    corpus = small_corpus(text([[2, 3, 2, 1], [4, 2]]))
    rows = objective.rows(corpus, seed=0)
    order = rows[0].order
    assert order is not None
    stream = Stream(corpus, corpus.sentences, SPECIAL.end, SPECIAL.start if letters else None)
    counts = np.bincount(stream.read(0, stream.total), minlength=VOCAB)
    assert counts[SPECIAL.end] == counts.max() >= 6
    assert (np.diff(counts[order.words_by_rank]) <= 0).all()


def test_flops_count_each_word_once() -> None:
    model, objective = system()
    rows = objective.rows(small_corpus([[[7, 7, 7, 7, 7, 7, 7, 7]]]), seed=0)
    batch = objective.batch([rows[0]], Chance(0, 0))
    assert len(batch.rows_of_letters) == 3  # w7, <S>, </S>
    lstm = 4 * 12 * 8 + 4 * 12 * 8 + 12 * 8
    words = model.embedding.network.flops(3)
    assert objective.flops(model, batch) == 3 * (2 * 5 * 2 * (2 * lstm + 8 * VOCAB) + words)


def test_what_it_refuses() -> None:
    with pytest.raises(UserError, match="tied"):
        system({"tied": True})
    with pytest.raises(UserError, match="half of the 40 words"):
        system({"softmax": "sampled", "candidates": 30})
    with pytest.raises(UserError, match="softmax=sampled has none"):
        system({"softmax": "sampled", "candidates": 8, "cutoffs": [10, 20]})
    with pytest.raises(UserError, match="cutoffs"):
        system({"softmax": "adaptive", "cutoffs": [10, 90]})
    with pytest.raises(UserError, match="division"):
        system({"softmax": "adaptive", "cutoffs": [10, 20]})
    with pytest.raises(ValueError, match=r"characters\.project"):
        system(characters=LETTERS | {"project": 5})

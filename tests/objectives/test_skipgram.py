"""Skip-gram: pairs, chance and noise as word2vec has them; loss and update against a dense, slow reference."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_corpus import SPECIAL, VOCAB, small_corpus

from etude import chance as draw
from etude.chance import Chance
from etude.errors import UserError
from etude.models import recurrent, static
from etude.objectives.base import Row
from etude.objectives.skipgram import Frequencies, PairBatch, Settings, SkipGram, alias_table, build, pairs
from etude.text.corpus import Corpus

UNKNOWN = SPECIAL.unknown


def system(**options: Any) -> tuple[static.Static, SkipGram]:
    torch.manual_seed(0)
    model = static.build(static.Settings(width=7, vocab=VOCAB))
    return model, build(Settings(**options), model, SPECIAL)


def corpus_of(documents: int = 6, size: int = 30, seed: int = 0) -> Corpus:
    """Tokens 6..39 with falling frequency, a few unknown ones."""
    chance = np.random.default_rng(seed)
    found = []
    for _ in range(documents):
        tokens = np.minimum(6 + chance.geometric(0.15, size) - 1, VOCAB - 1)
        tokens[chance.random(size) < 0.05] = UNKNOWN
        found.append([tokens.tolist()])
    return small_corpus(found)


def batch_of(objective: SkipGram, rows: Any, numbers: list[int], step: int = 3) -> PairBatch:
    return objective.batch([rows[number] for number in numbers], Chance(11, step))


def slow_pairs(
    row: Row, objective: SkipGram, frequencies: Frequencies, chance: Chance
) -> list[tuple[int, int, list[int]]]:
    """The pairs of one row, token by token, and the noise of each."""
    options, found = objective.settings, []
    ends = {int(bound) for bound in row.bounds}
    kept: list[list[int]] = [[]]
    for place, token in enumerate(row.tokens.tolist()):
        if place in ends:
            kept.append([])
        if draw.uniform(chance.key("keep", row.index), np.array([place]))[0] < frequencies.kept[token]:
            kept[-1].append(place)
    for document in kept:
        for number, place in enumerate(document):
            reach = 1 + int(draw.below(chance.key("window", row.index), np.array([place]), options.window)[0])
            for other in document[max(0, number - reach) : number] + document[number + 1 : number + 1 + reach]:
                first = (place * options.row_tokens + other) * options.negatives
                index = np.arange(first, first + options.negatives)
                noise = frequencies.noise(np.uint64(chance.key("noise", row.index)).reshape(1), index)
                found.append((int(row.tokens[place]), int(row.tokens[other]), noise.tolist()))
    return found


def test_pairs_are_those_of_the_slow_way() -> None:
    _, objective = system(window=3, subsample=0.02, row_tokens=50)
    rows = objective.rows(corpus_of(), seed=0)
    numbers = [2, 0, 3, 1]
    batch = batch_of(objective, rows, numbers)
    wanted = [
        pair for number in numbers for pair in slow_pairs(rows[number], objective, rows.frequencies, Chance(11, 3))
    ]
    assert len(wanted) > 100
    found = zip(batch.centres.tolist(), batch.contexts.tolist(), batch.noise.tolist(), strict=True)
    assert list(found) == wanted
    assert batch.counts == {"loss": len(wanted)} and batch.size == 180


def test_rows_cover_the_corpus_and_end_sequences_at_documents() -> None:
    _, objective = system(row_tokens=50)
    corpus = corpus_of(documents=4, size=30)  # bounds at 30, 60, 90; rows 0-50, 50-100, 100-120
    rows = objective.rows(corpus, seed=0)
    assert len(rows) == 3 and rows.shuffle and rows.row_tokens == 50
    assert [rows[i].bounds.tolist() for i in range(3)] == [[0, 30, 50], [0, 10, 40, 50], [0, 20]]
    assert np.concatenate([rows[i].tokens for i in range(3)]).tolist() == corpus.tokens(0, corpus.total).tolist()
    later = rows[5]
    assert later.index == 5 and later.tokens.tolist() == rows[2].tokens.tolist()


def test_no_pair_crosses_a_document_or_a_row() -> None:
    """Each document has tokens of its own."""
    corpus = small_corpus([[[6 + number] * 9] for number in range(8)])
    _, objective = system(window=5, subsample=None, row_tokens=20)
    rows = objective.rows(corpus, seed=0)
    batch = batch_of(objective, rows, [0, 1, 2, 3])
    assert len(batch.centres) > 200
    assert torch.equal(batch.centres, batch.contexts)


def test_pairs_of_a_row_do_not_depend_on_its_company() -> None:
    _, objective = system(window=4, subsample=0.05, row_tokens=40)
    rows = objective.rows(corpus_of(), seed=0)
    whole = batch_of(objective, rows, [4, 1, 0, 3])
    for place, number in enumerate([4, 1, 0, 3]):
        alone = batch_of(objective, rows, [number])
        part = slice(whole.starts[place], whole.starts[place + 1])
        for name in ("centres", "contexts", "noise"):
            assert torch.equal(getattr(whole, name)[part], getattr(alone, name)), name
    assert whole.starts[-1] == len(whole.centres)


def test_other_steps_and_rows_draw_otherwise() -> None:
    _, objective = system(row_tokens=40)
    rows = objective.rows(corpus_of(), seed=0)
    first, again = batch_of(objective, rows, [0], step=1), batch_of(objective, rows, [0], step=1)
    assert torch.equal(first.noise, again.noise) and torch.equal(first.centres, again.centres)
    other = batch_of(objective, rows, [0], step=2)
    assert first.noise.shape != other.noise.shape or not torch.equal(first.noise, other.noise)
    later_epoch = batch_of(objective, rows, [len(rows)], step=1)
    assert first.noise.shape != later_epoch.noise.shape or not torch.equal(first.noise, later_epoch.noise)


@pytest.mark.parametrize("keep", ["code", "paper"])
def test_sub_sampling_rate(keep: str) -> None:
    counts = np.zeros(VOCAB, np.int64)
    counts[6:10] = [9000, 900, 90, 10]
    threshold = 0.01
    frequencies = Frequencies.of(counts, Settings(subsample=threshold, keep=keep), UNKNOWN)
    for token, count in zip(range(6, 10), [9000, 900, 90, 10], strict=True):
        ratio = threshold / (count / 10_000)
        wanted = min(1.0, math.sqrt(ratio) + (ratio if keep == "code" else 0))
        assert frequencies.kept[token] == pytest.approx(wanted, rel=1e-6)
    corpus = small_corpus([[[6] * 9000 + [7] * 900 + [8] * 90 + [9] * 10]])
    _, objective = system(window=1, subsample=threshold, keep=keep, row_tokens=10_000)
    batch = batch_of(objective, objective.rows(corpus, seed=0), [0])
    share = float((batch.centres == 6).sum()) / 2 / 9000  # window 1: two pairs a centre
    expected = float(frequencies.kept[6])
    assert abs(share - expected) < 4 * math.sqrt(expected / 9000)


def test_unknown_words_are_neither_text_nor_noise() -> None:
    _, objective = system(subsample=None, row_tokens=60)
    corpus = corpus_of()
    assert (corpus.tokens(0, corpus.total) == UNKNOWN).any()
    batch = batch_of(objective, objective.rows(corpus, seed=0), [0, 1, 2])
    for ids in (batch.centres, batch.contexts, batch.noise):
        assert (ids != UNKNOWN).all()
        assert (ids >= 6).all(), "special tokens are no words"


def test_windows_are_uniform() -> None:
    """With a fixed text of distinct places, distances 1..w appear in the ratio w : w-1 : ... : 1."""
    size, window = 4000, 4
    corpus = small_corpus([[[6 + place % 34 for place in range(size)]]])  # distance < 17 can be read off the ids
    _, objective = system(window=window, subsample=None, row_tokens=size)
    batch = batch_of(objective, objective.rows(corpus, seed=0), [0])
    distance = ((batch.contexts - batch.centres) % 34).numpy()
    distance = np.minimum(distance, 34 - distance)
    found = np.bincount(distance, minlength=window + 1)[1:] / (2 * size)
    expected = 1 - np.arange(window) / window
    assert np.abs(found - expected).max() < 4 * 0.5 / math.sqrt(size)


def test_noise_follows_counts_to_the_three_quarters() -> None:
    counts = np.zeros(VOCAB, np.int64)
    counts[6:] = 10_000 / np.arange(1, VOCAB - 5) ** 1.2
    frequencies = Frequencies.of(counts, Settings(), UNKNOWN)
    drawn = 200_000
    keys = np.full(drawn, Chance(0, 0).key("noise"), dtype=np.uint64)
    found = np.bincount(frequencies.noise(keys, np.arange(drawn)), minlength=VOCAB)
    expected = counts**0.75 / (counts**0.75).sum() * drawn
    assert found[:6].sum() == 0
    chi = ((found - expected)[6:] ** 2 / expected[6:]).sum()
    assert chi < 75  # 33 degrees of freedom: above 75 once in 10^5


@given(st.lists(st.one_of(st.just(0.0), st.floats(1e-9, 1e6)), min_size=1, max_size=60).filter(any))
@settings(max_examples=100, deadline=None)
def test_an_alias_table_holds_exactly_its_probabilities(weights: list[float]) -> None:
    probability = np.array(weights) / np.sum(weights)
    accept, alias = alias_table(probability)
    held = accept.copy()
    np.add.at(held, alias, 1 - accept)
    np.testing.assert_allclose(held / len(weights), probability, atol=1e-12)


@given(st.lists(st.integers(0, 2), max_size=12), st.integers(1, 4), st.data())
@settings(max_examples=60, deadline=None)
def test_pairs_by_brute_force(changes: list[int], window: int, data: st.DataObject) -> None:
    sequence = np.cumsum(changes).astype(np.int64)
    reach = np.array([data.draw(st.integers(1, window)) for _ in changes], dtype=np.int64)
    wanted = [
        (i, j)
        for i in range(len(sequence))
        for j in range(len(sequence))
        if i != j and abs(i - j) <= reach[i] and sequence[i] == sequence[j]
    ]
    assert list(zip(*(part.tolist() for part in pairs(sequence, reach, window)), strict=True)) == wanted


def slow_loss(batch: PairBatch, inputs: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    """The formula, pair by pair."""
    total = inputs.new_zeros(())
    for centre, context, noise in zip(
        batch.centres.tolist(), batch.contexts.tolist(), batch.noise.tolist(), strict=True
    ):
        total = total - torch.log(torch.sigmoid(outputs[context] @ inputs[centre]))
        for word in noise:
            if word != context:
                total = total - torch.log(torch.sigmoid(-(outputs[word] @ inputs[centre])))
    return total


def trained_a_little(model: static.Static) -> None:
    """Vectors far enough from 0 that no gradient is trivially right."""
    with torch.no_grad():
        model.input.weight.normal_(0, 0.5)
        model.output.weight.normal_(0, 0.5)


def test_loss_and_gradient_equal_the_formula() -> None:
    model, objective = system(window=2, row_tokens=30, negatives=4)
    trained_a_little(model)
    model.double()
    batch = batch_of(objective, objective.rows(corpus_of(), seed=0), [1, 3])
    assert (batch.noise == batch.contexts[:, None]).any(), "a skipped noise word must occur"
    term = objective.loss(model, batch)["loss"]
    inputs, outputs = (table.weight.detach().clone().requires_grad_() for table in (model.input, model.output))
    wanted = slow_loss(batch, inputs, outputs)
    torch.testing.assert_close(term.sum, wanted, rtol=1e-10, atol=0)
    assert term.count == len(batch.centres)
    for one, other in zip(
        torch.autograd.grad(term.sum, [model.input.weight, model.output.weight]),
        torch.autograd.grad(wanted, [inputs, outputs]),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


def test_update_is_a_step_down_the_same_gradient() -> None:
    model, objective = system(window=2, row_tokens=30, block=10_000)
    trained_a_little(model)
    batch = batch_of(objective, objective.rows(corpus_of(), seed=0), [1])
    term = objective.loss(model, batch)["loss"]
    gradients = torch.autograd.grad(term.sum, [model.input.weight, model.output.weight])
    before = [model.input.weight.detach().clone(), model.output.weight.detach().clone()]
    told = objective.update(model, batch, rate=0.1)["loss"]
    assert told.sum.dtype == torch.float64 and told.count == term.count
    torch.testing.assert_close(told.sum, term.sum.detach(), rtol=1e-6, atol=0)
    for old, new, gradient in zip(before, (model.input.weight, model.output.weight), gradients, strict=True):
        torch.testing.assert_close((old - new.detach()) / 0.1, gradient, rtol=1e-4, atol=1e-5)


def test_blocks_see_the_blocks_before_and_micro_batches_change_nothing() -> None:
    """One block of pairs at a time equals a plain loop over blocks; and any cut of the rows gives the same bits."""
    tables = []
    for groups in ([[0, 1, 2, 3]], [[0], [1, 2], [3]]):
        model, objective = system(window=2, row_tokens=30, block=16)
        trained_a_little(model)
        rows = objective.rows(corpus_of(), seed=0)
        for group in groups:
            objective.update(model, batch_of(objective, rows, group), rate=0.2)
        tables.append((model.input.weight.detach().clone(), model.output.weight.detach().clone()))
    assert torch.equal(tables[0][0], tables[1][0]) and torch.equal(tables[0][1], tables[1][1])

    model, objective = system(window=2, row_tokens=30, block=16)
    trained_a_little(model)
    for number in range(4):
        batch = batch_of(objective, rows, [number])
        for start in range(0, len(batch.centres), 16):
            block = slice(start, start + 16)
            part = replace(
                batch, centres=batch.centres[block], contexts=batch.contexts[block], noise=batch.noise[block]
            )
            sgd = torch.optim.SGD(model.parameters(), lr=0.2)
            sgd.zero_grad()
            objective.loss(model, part)["loss"].sum.backward()
            sgd.step()
    torch.testing.assert_close(model.input.weight.detach(), tables[0][0], rtol=1e-4, atol=1e-5)


def test_words_of_the_same_company_become_neighbours() -> None:
    """Two halves of the vocabulary that never meet: cosine within a half is above that across."""
    chance = np.random.default_rng(0)
    documents = [[(6 + 17 * (number % 2) + chance.integers(0, 17, 40)).tolist()] for number in range(60)]
    model, objective = system(window=4, subsample=None, row_tokens=200)
    rows = objective.rows(small_corpus(documents), seed=0)
    start = objective.loss(model, batch_of(objective, rows, [0], 0))["loss"]
    # output vectors are 0, so every score is; one noise word in 34 is the context and is not counted
    assert float(start.sum.detach()) / start.count == pytest.approx((1 + 5 * 33 / 34) * math.log(2), rel=0.01)
    losses = []
    for step in range(15):
        term = objective.update(model, batch_of(objective, rows, list(range(len(rows))), step), rate=0.05)["loss"]
        losses.append(float(term.sum) / term.count)
    assert losses[-1] < losses[0] < 4.0
    vectors = torch.nn.functional.normalize(model.input.weight.detach()[6:], dim=1)
    cosine = vectors @ vectors.T
    within = (cosine[:17, :17].sum() - 17) / (17 * 16)
    assert within > cosine[:17, 17:].mean() + 0.5


def test_flops_by_hand() -> None:
    model, objective = system(window=1, negatives=3, subsample=None)
    corpus = small_corpus([[[6, 7, 8]]])
    batch = batch_of(objective, objective.rows(corpus, seed=0), [0])
    assert batch.counts["loss"] == 4
    assert objective.flops(model, batch) == 4 * 4 * 7 * 2 * 3


def test_a_single_word_gives_no_pair_and_no_error() -> None:
    model, objective = system()
    batch = batch_of(objective, objective.rows(small_corpus([[[6]]]), seed=0), [0])
    assert batch.counts == {"loss": 0}
    assert float(objective.loss(model, batch)["loss"].sum.detach()) == 0.0
    assert float(objective.update(model, batch, 0.1)["loss"].sum) == 0.0


def test_a_held_out_part_has_the_chance_of_the_training_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, objective = system()
    train, valid = corpus_of(seed=0), small_corpus([[[6, 7, 39]]])
    valid.part, valid._folder = "valid", tmp_path
    monkeypatch.setattr(Corpus, "open", lambda folder: {tmp_path: train}[folder])
    rows = objective.rows(valid, seed=0)
    assert rows[0].tokens.tolist() == [6, 7, 39]
    wanted = objective.rows(train, seed=0).frequencies
    for name in ("kept", "accept", "alias"):
        np.testing.assert_array_equal(getattr(rows.frequencies, name), getattr(wanted, name))


@pytest.mark.gpu
def test_a_gpu_does_the_same() -> None:
    tables = []
    for device in ("cpu", "cuda"):
        model, objective = system(window=2, row_tokens=30, block=16)
        trained_a_little(model)
        model.to(device)
        batch = batch_of(objective, objective.rows(corpus_of(), seed=0), [0, 1, 2]).to(device)
        total = objective.update(model, batch, rate=0.2)["loss"].sum
        tables.append((float(total), model.input.weight.detach().cpu(), model.output.weight.detach().cpu()))
    assert tables[0][0] == pytest.approx(tables[1][0], rel=1e-4)
    for one, other in zip(tables[0][1:], tables[1][1:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


def test_what_it_refuses() -> None:
    _, objective = system()
    with pytest.raises(UserError, match="no known words"):
        objective.rows(small_corpus([[[UNKNOWN, UNKNOWN]]]), seed=0)
    other = recurrent.build(recurrent.Settings(width=4, cells=4, vocab=VOCAB))
    with pytest.raises(UserError, match="static"):
        build(Settings(), other, SPECIAL)

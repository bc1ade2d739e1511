"""Wrapped pieces against a plain list of them; the losses of towers against their definition; a whole run."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from etude.chance import Chance
from etude.errors import UserError
from etude.models import transformer, two_tower
from etude.nn import char_cnn
from etude.nn.packed import pack
from etude.nn.softmax import AdaptiveSoftmax
from etude.objectives import cloze
from etude.objectives.base import IGNORE, join
from etude.objectives.cloze import Cloze, ClozeBatch, Settings, boundary_of
from etude.objectives.rows import boundaries as wrapped
from etude.objectives.rows.boundaries import Stream, WrappedRows
from etude.recipes.schema import Recipe
from etude.recipes.size import measure_recipe, synthetic_corpus
from etude.text.corpus.corpus import Corpus
from etude.text.tokenizer.char_ids import SENTENCE_END
from etude.text.tokenizer.special_tokens import Specials
from etude.train.loop import Loop
from tests.objectives.small_corpus import SPECIAL, VOCAB, small_corpus, tokenizer

END = SPECIAL.end


def documents(count: int = 30, seed: int = 0, longest: int = 25) -> list[list[list[int]]]:
    draw = np.random.default_rng(seed)
    sizes = draw.integers(1, longest, count)
    return [[draw.integers(6, VOCAB, size).tolist()] for size in sizes]


def pieces(given: list[list[list[int]]], length: int) -> list[list[int]]:
    """All wrapped pieces in order, the plain way."""
    found = []
    for (text,) in given:
        for start in range(0, len(text), length - 2):
            found.append([END, *text[start : start + length - 2], END])
    return found


def model_of(**changes: Any) -> two_tower.TwoTower:
    sizes: dict[str, Any] = {"layers": 1, "width": 16, "heads": 2, "vocab": VOCAB, "context": 12}
    torch.manual_seed(0)
    return two_tower.TwoTower(two_tower.Settings(**sizes | changes))


def objective_of(model: two_tower.TwoTower, **changes: Any) -> Cloze:
    return cloze.build(Settings(**changes), model, SPECIAL)


# --- rows -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [1, 3, 1024])
@pytest.mark.parametrize("length", [3, 5, 12])
def test_the_stream_is_all_pieces_end_to_end(length: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrapped, "BLOCK", block)
    given = documents()
    flat = np.concatenate(pieces(given, length))
    begins = np.concatenate([[True] + [False] * (len(one) - 1) for one in pieces(given, length)])
    stream = Stream(small_corpus(given), length, END)
    assert stream.total == len(flat)
    text = np.concatenate([one for (one,) in given])
    draw = np.random.default_rng(1)
    for _ in range(40):
        start, size = int(draw.integers(-50, 2 * len(flat))), int(draw.integers(1, 2 * len(flat)))
        tokens, places, starts = stream.read(start, size)
        index = np.arange(start, start + size) % len(flat)
        assert tokens.tolist() == flat[index].tolist()
        assert starts.tolist() == begins[index].tolist()
        assert tokens[places >= 0].tolist() == text[places[places >= 0]].tolist()
        assert ((places < 0) == (tokens == END)).all()


@pytest.mark.parametrize("row_tokens", [12, 36, 1200])
def test_every_token_is_in_exactly_one_row_of_an_epoch(row_tokens: int) -> None:
    given = documents()
    corpus = small_corpus(given)
    rows = WrappedRows(Stream(corpus, 12, END), seed=5, row_tokens=row_tokens)
    for epoch in range(3):
        seen = np.zeros(corpus.total, int)
        for number in range(len(rows)):
            row = rows[epoch * len(rows) + number]
            assert len(row.tokens) == row_tokens == row.bounds[-1] and row.bounds[0] == 0
            assert (np.diff(row.bounds) > 0).all() and np.diff(row.bounds).max() <= 12
            assert len(row.bounds) - 1 <= rows.most
            _, places, _ = rows.stream.read(_start(rows, epoch, number), row_tokens)
            inside = places[: row.counted]
            np.add.at(seen, inside[inside >= 0], 1)
            assert ((places >= 0) == row.inside).all()
        assert (seen == 1).all()


def _start(rows: WrappedRows, epoch: int, number: int) -> int:
    from etude.chance import fold

    cut = fold(5, epoch, "cut") % rows.stream.total if epoch else 0
    return cut + number * rows.size


def test_epochs_begin_elsewhere() -> None:
    rows = WrappedRows(Stream(small_corpus(documents()), 12, END), seed=5, row_tokens=36)
    assert rows[0].tokens.tolist() != rows[len(rows)].tokens.tolist() != rows[2 * len(rows)].tokens.tolist()
    assert rows[7].tokens.tolist() == rows[7].tokens.tolist()


def test_the_limit_of_sequences_holds_at_every_place() -> None:
    """Where short documents stand among long ones, and around the end of the text."""
    draw = np.random.default_rng(3)
    for trial in range(6):
        given = [[[7] * int(size)] for size in draw.choice([1, 1, 2, 3, 40], draw.integers(1, 30))]
        stream = Stream(small_corpus(given), 8, END)
        for row_tokens in (8, 24, 64):
            limit, most = stream.most_sequences(row_tokens), 0
            for start in range(stream.total):
                begins = stream.read(start, row_tokens)[2]
                begins[0] = True
                most = max(most, int(begins.sum()))
            assert most <= limit <= max(3 * most, most + 3), (trial, row_tokens)


# --- batches ----------------------------------------------------------------------------------------


def batch_of(objective: Cloze, given: list[list[list[int]]] | None = None, count: int = 2) -> ClozeBatch:
    rows = objective.rows(small_corpus(given or documents()), seed=0)
    return objective.batch([rows[number] for number in range(count)], Chance(0, 0))


def test_targets_are_the_tokens_themselves_and_their_neighbours() -> None:
    objective = objective_of(model_of(), predict="cloze+bilm")
    batch = batch_of(objective)
    assert batch.targets is not None
    own, following, preceding = batch.targets
    assert torch.equal(own, batch.tokens)
    bounds = batch.layout.host.tolist()
    for start, stop in pairwise(bounds):
        text = batch.tokens[start:stop].tolist()
        if text:
            assert following[start:stop].tolist() == [*text[1:], IGNORE]
            assert preceding[start:stop].tolist() == [IGNORE, *text[:-1]]
    sequences = sum(size > 0 for size in np.diff(bounds))
    assert batch.counts == {
        "cloze": batch.size,
        "forward": batch.size - sequences,
        "backward": batch.size - sequences,
    }


def test_boundaries_may_be_left_out_of_the_loss() -> None:
    batch = batch_of(objective_of(model_of(), boundaries=False))
    assert batch.targets is not None
    assert ((batch.targets[0] == IGNORE) == (batch.tokens == END)).all()
    assert batch.counts["cloze"] == int((batch.tokens != END).sum())


def test_the_last_row_of_an_epoch_counts_nothing_twice() -> None:
    objective = objective_of(model_of(), row_tokens=96)
    rows = objective.rows(small_corpus(documents()), seed=0)
    last = objective.batch([rows[len(rows) - 1]], Chance(0, 0))
    assert last.counts["cloze"] == rows.stream.total - 96 * (len(rows) - 1) < 96


def test_shapes_are_those_of_the_number_of_rows() -> None:
    objective = objective_of(model_of())
    rows = objective.rows(small_corpus(documents()), seed=0)
    shapes = {tuple(objective.batch([rows[n], rows[n + 1]], Chance(0, n)).layout.bounds.shape) for n in range(3)}
    assert len(shapes) == 1


# --- losses -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("predict", ["cloze", "bilm", "cloze+bilm"])
@pytest.mark.parametrize("softmax", ["tied", "full", "adaptive"])
def test_losses_are_sums_of_cross_entropies_and_metrics_say_the_same(predict: Any, softmax: str) -> None:
    model = model_of(combiner="none" if predict == "bilm" else "attention")
    changes: dict[str, Any] = {"softmax": "full", "tied": softmax == "tied"}
    if softmax == "adaptive":
        changes = {"softmax": "adaptive", "cutoffs": [10, 25], "division": 2.0}
    objective = objective_of(model, predict=predict, boundaries=False, **changes)
    batch = batch_of(objective)
    states = model(batch)
    assert batch.targets is not None
    sources = {"cloze": states.last, "forward": states.forward_top, "backward": states.backward_top}
    terms, stats = objective.loss(model, batch), objective.metrics(model, batch)
    assert list(terms) == list(cloze.TERMS[predict])
    for name, targets in zip(terms, batch.targets, strict=True):
        logits = objective.output.logits(sources[name], states.table)
        expected = torch.nn.functional.cross_entropy(logits, targets, ignore_index=IGNORE, reduction="sum")
        assert terms[name].weight == pytest.approx(1 / len(terms))
        assert float(terms[name].sum.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
        assert float(torch.as_tensor(stats[name].sum).detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
        if name == "cloze":
            right = ((logits.argmax(-1) == targets) & (targets != IGNORE)).sum()
            assert int(stats["accuracy"].sum) == int(right)
            assert stats["text"].count == batch.counts["cloze"]
            assert float(stats["text"].sum) == pytest.approx(float(expected.detach()), rel=1e-5)
    total = sum(term.weight * term.sum / term.count for term in terms.values())
    total.backward()
    assert all(one.grad is not None for one in [*model.parameters(), *objective.parameters()])


def test_the_adaptive_softmax_starts_as_the_released_code_draws_it() -> None:
    """Matrices uniform by Glorot's rule. There the head has no bias: it starts at 0, and all words are as likely."""
    output = objective_of(model_of(width=64), softmax="adaptive", cutoffs=[10, 25]).output
    assert isinstance(output, AdaptiveSoftmax)
    matrices = [parameter.detach() for parameter in output.parameters() if parameter.dim() > 1]
    assert len(matrices) == 5  # the head, and two for each of two clusters
    for matrix in matrices:
        bound = math.sqrt(6 / sum(matrix.shape))
        assert 0.9 * bound < matrix.abs().max() <= bound
    assert not output.layer.head.bias.any()


def test_logits_of_a_bilm_are_those_of_the_forward_tower() -> None:
    model = model_of(combiner="none")
    objective, states = objective_of(model, predict="bilm"), model(pack([[END, 7, 8, END]]))
    expected = objective.output.logits(states.forward_top, states.table)
    torch.testing.assert_close(objective.logits(model, states), expected)
    assert objective.nats_per_token == "forward" and objective_of(model_of()).nats_per_token is None


def test_bits_per_byte_count_the_closing_boundary_of_every_piece() -> None:
    given = documents()
    objective = objective_of(model_of(combiner="none"), predict="bilm")
    corpus = small_corpus(given)
    predicted = sum(len(one) - 1 for one in pieces(given, 12))
    assert objective.tokens_per_byte(corpus) == pytest.approx(predicted / corpus.bytes)


@pytest.mark.parametrize("predict", ["cloze", "bilm", "cloze+bilm"])
def test_flops_are_three_times_model_and_output(predict: Any) -> None:
    model = model_of(combiner="none" if predict == "bilm" else "attention")
    objective = objective_of(model, predict=predict)
    batch = batch_of(objective)
    output = sum(2 * count * 16 * VOCAB for count in batch.counts.values())
    assert objective.flops(model, batch) == 3 * (model.flops(batch.layout.lengths) + output)


def test_a_batch_is_learnt_by_heart() -> None:
    model = model_of(width=32)
    objective = objective_of(model)
    batch = batch_of(objective, documents(12), count=1)
    optimizer = torch.optim.Adam([*model.parameters(), *objective.parameters()], lr=1e-2)
    losses = []
    for _ in range(40):
        loss = objective.loss(model, batch)["cloze"].sum / batch.counts["cloze"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[0] > 3 > 0.3 > losses[-1]


# --- letters ----------------------------------------------------------------------------------------

LETTERS = char_cnn.Settings(filters=[(1, 4), (2, 8)], embedding=4, highways=1)


def lettered() -> tuple[two_tower.TwoTower, Cloze, Corpus]:
    model = model_of(characters=LETTERS)
    objective = objective_of(model, softmax="adaptive", cutoffs=[10, 25], division=2.0)
    return model, objective, small_corpus(documents())


def test_letters_of_every_token_and_marks_at_boundaries() -> None:
    _, objective, corpus = lettered()
    rows = objective.rows(corpus, seed=0)
    row = rows[len(rows) - 1]  # around the end of the text
    words = [f"w{token}".encode() if token != END else SENTENCE_END for token in row.tokens.tolist()]
    assert row.words == words


def test_words_by_their_letters_give_the_same_in_training_and_in_use() -> None:

    model, objective, corpus = lettered()
    rows = objective.rows(corpus, seed=0)
    batch = objective.batch([rows[0]], Chance(0, 0))
    trained = objective._read(model, batch).last
    model.attach_tokenizer(corpus.tokenizer)
    torch.testing.assert_close(model(batch).last, trained)
    loss = objective.loss(model, batch)["cloze"]
    loss.sum.backward()
    assert all(one.grad is not None for one in model.parameters())
    unique = len(batch.rows_of_letters) if batch.rows_of_letters is not None else 0
    assert model.flops(batch.layout.lengths, unique) < model.flops(batch.layout.lengths)


# --- what cannot be -----------------------------------------------------------------------------------


def test_impossible_objectives_are_told() -> None:
    with pytest.raises(UserError, match="combiner=none"):
        objective_of(model_of(), predict="bilm")
    with pytest.raises(UserError, match="predict=bilm"):
        objective_of(model_of(combiner="none"))
    with pytest.raises(UserError, match="reads letters"):
        objective_of(model_of(characters=LETTERS))
    with pytest.raises(UserError, match="vocabulary of 40"):
        objective_of(model_of(), softmax="adaptive", cutoffs=[50])
    with pytest.raises(UserError, match="softmax=full has none"):
        objective_of(model_of(), softmax="full", cutoffs=[5, 10])
    with pytest.raises(UserError, match="division"):
        objective_of(model_of(), softmax="adaptive", cutoffs=[5, 10, 20])
    with pytest.raises(UserError, match="boundary"):
        boundary_of(Specials())
    another = transformer.build(transformer.Settings(vocab=VOCAB, layers=1, width=8, heads=1, context=16))
    with pytest.raises(UserError, match=r"not transformer\. Set model\.kind: two_tower"):
        cloze.build(Settings(), another, SPECIAL)
    with pytest.raises(ValueError, match="segments"):
        model_of(characters=LETTERS, segments=2)


def test_the_separator_serves_where_there_is_no_end() -> None:
    assert boundary_of(Specials(separator=3)) == 3 and boundary_of(Specials(separator=3, end=5)) == 5


def test_one_text_is_framed_as_a_piece() -> None:
    objective = objective_of(model_of())
    assert objective.frame(np.array([7, 8]), 12).tolist() == [END, 7, 8, END]
    assert objective.frame(np.arange(7, 30), 12).tolist() == [END, *range(7, 17), END]


# --- through the loop -------------------------------------------------------------------------------


@pytest.mark.parametrize("predict", ["cloze", "bilm", "cloze+bilm"])
def test_a_recipe_trains_and_its_cost_is_told(predict: str, tmp_path: Path) -> None:
    changes = [f"objective.predict={predict}", f"model.combiner={'none' if predict == 'bilm' else 'attention'}"]
    small = ["model.width=16", "model.heads=2", "model.layers=1", "tokenizer=word:60", "train.steps=4"]
    recipe = Recipe.load("two-tower-toy", [*small, *changes]).resolve()
    assert measure_recipe(recipe).flops_per_token > 0
    corpus = synthetic_corpus(400, words=54)
    torch.manual_seed(0)
    model = recipe.build_model()
    objective = recipe.build_objective(model, corpus.tokenizer.special)
    rows = objective.rows(corpus, 0)
    outcome = Loop(tmp_path, model, objective, rows, recipe.train, total=4, valid_rows=rows).run()
    assert outcome.finished and np.isfinite(outcome.valid["loss"]) and outcome.state.flops > 0


def test_join_pads_to_the_limit_of_the_corpus() -> None:
    rows = WrappedRows(Stream(small_corpus(documents()), 12, END), seed=0, row_tokens=36)
    fields = join([rows[0]], rows[0].most, 12)
    assert len(fields["layout"].host) == rows.most + 1
    assert tokenizer().special.end == END

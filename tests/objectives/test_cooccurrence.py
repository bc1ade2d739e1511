"""GloVe: loss and gradient against the dense table, AdaGrad step by step as the released program makes it."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from etude.chance import Chance
from etude.errors import UserError
from etude.models import recurrent, static
from etude.objectives import cooccurrence
from etude.objectives.cooccurrence import Cooccurrence, EntryBatch, Settings, build
from etude.objectives.word_vectors.kernels import glove_plain
from etude.text.corpus.corpus import Corpus
from tests.objectives.small_corpus import SPECIAL, VOCAB, small_corpus
from tests.objectives.word_vectors.word_windows import corpus_of


def system(width: int = 6, **options: Any) -> tuple[static.Static, Cooccurrence]:
    torch.manual_seed(0)
    model = static.build(static.Settings(width=width, vocab=VOCAB, init="glove", result="sum"))
    with torch.no_grad():
        model.input.weight.normal_(0, 0.5)
        model.output.weight.normal_(0, 0.5)
    return model, build(Settings(**{"window": 4, "x_max": 3, "row_tokens": 50, **options}), model, SPECIAL)


def batch_of(objective: Cooccurrence, rows: Any, numbers: list[int] | None = None) -> EntryBatch:
    return objective.batch([rows[number] for number in numbers or range(len(rows))], Chance(0, 0))


def dense(corpus: Any, window: int) -> Tensor:
    """(V, V) float64: the whole table of co-occurrences, word by word."""
    table = torch.zeros(VOCAB, VOCAB, dtype=torch.float64)
    starts = list(corpus.documents)
    for first, last in pairwise(starts):
        words = [int(word) for word in corpus.tokens(first, last) if word != SPECIAL.unknown]
        for place, word in enumerate(words):
            for distance in range(1, min(window, place) + 1):
                table[words[place - distance], word] += 1 / distance
                table[word, words[place - distance]] += 1 / distance
    return table


def test_loss_and_gradient_equal_the_dense_formula() -> None:
    model, objective = system()
    model.double()
    objective.double()
    corpus = corpus_of()
    batch = batch_of(objective, objective.rows(corpus, seed=0))
    term = objective.loss(model, batch)["loss"]
    counts = dense(corpus, 4)
    product = model.input.weight @ model.output.weight.T + objective.word_bias[:, None] + objective.context_bias
    weights = (counts / 3).clamp(max=1) ** 0.75
    wanted = (weights * (product - counts.clamp(min=1e-9).log()).square())[counts > 0].sum()
    assert term.count == int((counts > 0).sum()) > 200
    torch.testing.assert_close(term.sum, wanted, rtol=1e-6, atol=0)  # logarithms are kept in float32
    parameters = [*model.parameters(), *objective.parameters()]
    for one, other in zip(
        torch.autograd.grad(term.sum, parameters, retain_graph=True),
        torch.autograd.grad(wanted, parameters),
        strict=True,
    ):
        assert float(one.abs().max()) > 0.1
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def slow_training(model: Any, objective: Any, batch: EntryBatch, rate: float, code: bool) -> tuple[list[Tensor], float]:
    """Entry by entry in float64, as GloVe's program does it."""
    words, contexts = (table.weight.detach().double().clone() for table in (model.input, model.output))
    b, c = (bias.detach().double().clone() for bias in (objective.word_bias, objective.context_bias))
    squares = [torch.ones_like(one) for one in (words, contexts, b, c)]
    total = 0.0
    for row, column, log, weight in zip(
        batch.tokens.tolist(), batch.columns.tolist(), batch.logs.tolist(), batch.weights.tolist(), strict=True
    ):
        for i, j in [(row, column), (column, row)][: 1 + (row != column)]:
            error = float(words[i] @ contexts[j] + b[i] + c[j]) - log
            total += weight * error * error
            slope = weight * error
            steps = [slope * contexts[j], slope * words[i], torch.tensor(slope), torch.tensor(slope)]
            for number, (table, place) in enumerate(((words, i), (contexts, j), (b, i), (c, j))):
                step = steps[number].clamp(-100, 100) * (rate if code and number < 2 else 1.0)
                table[place] -= (1.0 if code else rate) * step / squares[number][place].sqrt()
                squares[number][place] += step * step
    return [words, contexts, b, c, *squares], total


@pytest.mark.parametrize("adagrad", ["code", "paper"])
@pytest.mark.parametrize("compiled", [True, False])
def test_updates_are_those_of_the_released_program(
    adagrad: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiled:
        pytest.importorskip("numba")
    else:
        monkeypatch.setattr(cooccurrence, "inner_loops", lambda of: glove_plain)
    model, objective = system(adagrad=adagrad)
    batch = batch_of(objective, objective.rows(corpus_of(), seed=0))
    wanted, total = slow_training(model, objective, batch, 0.05, adagrad == "code")
    told = objective.update(model, batch, 0.05)["loss"]
    assert float(told.sum) == pytest.approx(total, rel=1e-4) and told.count == batch.counts["loss"]
    found = [*model.parameters(), *objective.parameters(), *objective.squares]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.detach().double(), other, rtol=1e-3, atol=1e-4)
    assert float((wanted[0] - system()[0].input.weight.detach()).abs().max()) > 0.1


def test_a_large_gradient_is_cut() -> None:
    model, objective = system(width=2, clip=0.01)
    batch = batch_of(objective, objective.rows(small_corpus([[[6, 7]]]), seed=0))
    before = model.input.weight.detach().clone()
    objective.update(model, batch, 0.5)
    assert float((model.input.weight.detach() - before).abs().max()) <= 0.5 * 0.01 * (1 + 1e-5)


def test_blocks_go_down_the_same_way() -> None:
    losses = {}
    for engine, block in (("sequential", 1), ("batched", 64)):
        model, objective = system(engine=engine, block=block)
        rows = objective.rows(corpus_of(documents=20), seed=0)
        for _ in range(6):
            told = objective.update(model, batch_of(objective, rows), 0.05)["loss"]
        losses[engine, block] = float(told.sum) / told.count
    start = float(objective.loss(*(system()[0], batch_of(objective, rows)))["loss"].sum.detach()) / told.count
    assert all(loss < 0.6 * start for loss in losses.values())
    assert losses["batched", 64] == pytest.approx(losses["sequential", 1], rel=0.15)


def test_threads_learn_the_same_thing() -> None:
    pytest.importorskip("numba")
    losses = []
    for threads in (1, 3):
        model, objective = system(threads=threads)
        rows = objective.rows(corpus_of(documents=20), seed=0)
        for _ in range(6):
            told = objective.update(model, batch_of(objective, rows), 0.05)["loss"]
        losses.append(float(told.sum) / told.count)
    assert losses[0] == pytest.approx(losses[1], rel=0.05)


def test_a_checkpoint_holds_the_squares() -> None:
    """Two passes equal one, a state carried over, and another, bit for bit."""
    tables = []
    for cut in (False, True):
        model, objective = system()
        rows = objective.rows(corpus_of(), seed=0)
        objective.update(model, batch_of(objective, rows), 0.05)
        if cut:
            other, again = system()
            other.load_state_dict(model.state_dict())
            again.load_state_dict(objective.state_dict())
            again.restore({name: one.clone() for name, one in objective.state().items()})
            model, objective = other, again
        objective.update(model, batch_of(objective, rows), 0.05)
        tables.append([one.detach().clone() for one in (*model.parameters(), *objective.parameters())])
    assert all(torch.equal(one, other) for one, other in zip(*tables, strict=True))
    with pytest.raises(ValueError, match="squares"):
        objective.restore({"squares.0": torch.ones(2)})


def test_rows_and_sizes() -> None:
    model, objective = system()
    rows = objective.rows(corpus_of(), seed=0)
    assert rows.row_tokens == 50 and len(rows) == math.ceil(len(rows.entries) / 50)
    assert rows[len(rows) + 1].tokens.tolist() == rows[1].tokens.tolist() and rows[len(rows) + 1].index == len(rows) + 1
    batch = batch_of(objective, rows)
    assert batch.size == len(rows.entries)
    same = int((batch.tokens == batch.columns).sum())
    assert batch.counts["loss"] == 2 * batch.size - same
    assert objective.flops(model, batch) == 6 * 6 * batch.counts["loss"]
    _, other = system(symmetric=False)
    batch = batch_of(other, other.rows(corpus_of(), seed=0))
    assert batch.counts["loss"] == batch.size


def test_held_out_counts_are_on_the_scale_of_the_training_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, objective = system()
    train, valid = corpus_of(documents=6), corpus_of(documents=2)
    valid.split, valid._folder, valid.fingerprint = "valid", tmp_path, "held out"
    monkeypatch.setattr(Corpus, "open", lambda folder, *_: {str(tmp_path): train}[str(folder)])
    rows = objective.rows(valid, seed=0)
    np.testing.assert_allclose(rows[0].counts, 3 * np.asarray(rows.entries.counts[:50]))


def test_what_is_refused() -> None:
    _, objective = system()
    with pytest.raises(UserError, match="No two known words"):
        objective.rows(small_corpus([[[6, SPECIAL.unknown]]]), seed=0)
    with pytest.raises(UserError, match="static"):
        build(Settings(), recurrent.build(recurrent.Settings(width=4, cells=4, vocab=VOCAB)), SPECIAL)
    with pytest.raises(UserError, match="buckets"):
        build(Settings(), static.build(static.Settings(width=4, vocab=VOCAB, buckets=9)), SPECIAL)
    model, objective = system()
    batch = batch_of(objective, objective.rows(corpus_of(), seed=0))
    with torch.no_grad():
        model.output.weight[:] = float("nan")
    with pytest.raises(UserError, match=r"Lower train\.lr"):
        objective.update(model, batch, rate=0.1)


@pytest.mark.gpu
def test_a_gpu_does_the_same() -> None:
    tables = []
    for device in ("cpu", "cuda"):
        model, objective = system(engine="batched", block=32)
        batch = batch_of(objective, objective.rows(corpus_of(), seed=0))
        model.to(device), objective.to(device)
        total = objective.update(model, batch.to(device), 0.05)["loss"].sum
        tables.append((float(total), *(one.detach().cpu().numpy() for one in model.parameters())))
    for one, other in zip(*tables, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)

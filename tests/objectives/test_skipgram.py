"""Skip-gram and CBOW: loss and updates against dense, slow references, for both outputs, with and without sub-words."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from etude.chance import Chance
from etude.errors import UserError
from etude.models.static import Static
from etude.objectives import cbow, skipgram
from etude.objectives.word_vectors import windows
from etude.objectives.word_vectors.kernels import windows_plain as plain
from tests.objectives.small_corpus import small_corpus
from tests.objectives.word_vectors.word_windows import batch_of, corpus_of, slow_windows, system

BOTH = pytest.mark.parametrize("module", [skipgram, cbow])
OUTPUTS = pytest.mark.parametrize("output", ["negative", "hierarchical"])
BUCKETS = pytest.mark.parametrize("buckets", [0, 23])


def predictions(module: Any, rows: Any, numbers: list[int], objective: Any) -> list[tuple[list[int], int, list[int]]]:
    """(words whose mean predicts, word to predict, its noise), in the order in which they are learnt."""
    found = []
    for number in numbers:
        for place, around, noise in slow_windows(rows[number], objective.settings, objective.text, Chance(11, 3)):
            others = [slot for slot in range(len(around)) if slot != place]
            if module is skipgram:
                found += [([around[place]], around[slot], noise[slot]) for slot in others]
            elif others:
                found.append(([around[slot] for slot in others], around[place], noise[0]))
    return found


def vector(model: Static, table: Tensor, words: list[int]) -> Tensor:
    """The mean of all rows of some words."""
    if model.subword_rows is None:
        return table[words].mean(0)
    bounds, rows = model.subword_rows
    return torch.cat([table[rows[bounds[word] : bounds[word + 1]]] for word in words]).mean(0)


def slow_loss(model: Static, text: Any, tables: list[Tensor], prediction: tuple[list[int], int, list[int]]) -> Tensor:
    """The formula."""
    words, target, noise = prediction
    hidden = vector(model, tables[0], words)
    total = hidden.new_zeros(())
    if len(text.paths.bounds):
        for step in range(text.paths.bounds[target], text.paths.bounds[target + 1]):
            score = tables[1][text.paths.nodes[step]] @ hidden
            total = total - torch.log(torch.sigmoid(score if text.paths.labels[step] else -score))
        return total
    total = total - torch.log(torch.sigmoid(tables[1][target] @ hidden))
    for word in noise:
        if word != target:
            total = total - torch.log(torch.sigmoid(-(tables[1][word] @ hidden)))
    return total


def copies(model: Static) -> list[Tensor]:
    return [table.weight.detach().clone().requires_grad_() for table in (model.input, model.output)]


@BOTH
@OUTPUTS
@BUCKETS
def test_loss_and_gradient_equal_the_formula(module: Any, output: str, buckets: int) -> None:
    model, objective = system(module, buckets, window=2, row_tokens=30, negatives=4, output=output, block=9)
    model.double()
    rows = objective.rows(corpus_of(), seed=0)
    batch = batch_of(objective, rows, [1, 3])
    wanted = predictions(module, rows, [1, 3], objective)
    assert output == "hierarchical" or any(target in noise for _, target, noise in wanted), "a skipped word must occur"
    term = objective.loss(model, batch)["loss"]
    tables = copies(model)
    total = sum((slow_loss(model, objective.text, tables, one) for one in wanted), torch.zeros(()))
    torch.testing.assert_close(term.sum, total, rtol=1e-10, atol=0)
    assert term.count == batch.counts["loss"] == len(wanted)
    gradients = torch.autograd.grad(term.sum, [model.input.weight, model.output.weight])
    for one, other in zip(gradients, torch.autograd.grad(total, tables), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


@BOTH
@OUTPUTS
@BUCKETS
@pytest.mark.parametrize("compiled", [True, False])
def test_updates_one_after_the_other_are_sgd(
    module: Any, output: str, buckets: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prediction by prediction, by autograd: a mean's gradient is added whole to its parts, as the programs do."""
    if compiled:
        pytest.importorskip("numba")
    else:
        monkeypatch.setattr(windows, "inner_loops", lambda of: plain)
    model, objective = system(module, buckets, window=3, row_tokens=30, output=output)
    rows = objective.rows(corpus_of(), seed=0)
    batch, rate = batch_of(objective, rows, [0, 2]), 0.02
    tables, total = copies(model), 0.0
    for prediction in predictions(module, rows, [0, 2], objective):
        loss = slow_loss(model, objective.text, tables, prediction)
        total += float(loss.detach())
        slopes = torch.autograd.grad(loss, tables)
        parts = len(prediction[0]) if model.subword_rows is None else sum(
            int(np.diff(model.subword_rows[0])[word]) for word in prediction[0]
        )  # fmt: skip
        with torch.no_grad():
            tables[0] -= rate * parts * slopes[0]
            tables[1] -= rate * slopes[1]
    told = objective.update(model, batch, rate)["loss"]
    assert told.sum.dtype == torch.float64 and told.count == batch.counts["loss"]
    assert float(told.sum) == pytest.approx(total, rel=2e-3)
    # the sigmoid is a table of 1000 cells: its error, times a few updates of a row
    for one, other in zip((model.input.weight, model.output.weight), tables, strict=True):
        moved = (one.detach() - copies(system(module, buckets)[0])[0 if one is model.input.weight else 1]).abs().max()
        assert moved > 0.01
        torch.testing.assert_close(one.detach(), other.detach(), rtol=0, atol=1.5e-3)


@BOTH
@OUTPUTS
@BUCKETS
def test_compiled_and_plain_differ_by_rounding(
    module: Any, output: str, buckets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba")
    found = []
    for loops in (windows.inner_loops("windows"), plain):
        monkeypatch.setattr(windows, "inner_loops", lambda of, loops=loops: loops)
        model, objective = system(module, buckets, window=4, row_tokens=40, output=output)
        rows = objective.rows(corpus_of(), seed=0)
        term = objective.update(model, batch_of(objective, rows, [0, 1, 2, 3]), 0.05)["loss"]
        found.append((float(term.sum), model.input.weight.detach(), model.output.weight.detach()))
    assert found[0][0] == pytest.approx(found[1][0], rel=3e-4)
    for one, other in zip(found[0][1:], found[1][1:], strict=True):
        # a score at the edge of a cell of the sigmoid's table may fall to either side of it
        torch.testing.assert_close(one, other, rtol=0, atol=5e-4)
        assert float((one - other).abs().median()) < 1e-6


@BOTH
def test_micro_batches_change_nothing_one_after_the_other(module: Any) -> None:
    tables = []
    for groups in ([[0, 1, 2, 3]], [[0], [1, 2], [3]]):
        model, objective = system(module, window=2, row_tokens=30)
        rows = objective.rows(corpus_of(), seed=0)
        for group in groups:
            objective.update(model, batch_of(objective, rows, group), rate=0.2)
        tables.append((model.input.weight.detach().clone(), model.output.weight.detach().clone()))
    assert torch.equal(tables[0][0], tables[1][0]) and torch.equal(tables[0][1], tables[1][1])


@BOTH
@OUTPUTS
@BUCKETS
def test_a_block_is_a_step_down_the_gradient(module: Any, output: str, buckets: int) -> None:
    """Batched, all in one block; CBOW shares the gradient of a mean out, to be one."""
    options = {"divide": True} if module is cbow else {}
    model, objective = system(
        module, buckets, window=2, row_tokens=30, engine="batched", block=10_000, calm=1e9, output=output, **options
    )
    batch = batch_of(objective, objective.rows(corpus_of(), seed=0), [1, 2])
    term = objective.loss(model, batch)["loss"]
    gradients = torch.autograd.grad(term.sum, [model.input.weight, model.output.weight])
    before = copies(model)
    told = objective.update(model, batch, rate=0.1)["loss"]
    torch.testing.assert_close(told.sum, term.sum.detach(), rtol=1e-6, atol=0)
    for number, (old, table, gradient) in enumerate(zip(before, (model.input, model.output), gradients, strict=True)):
        step = (old - table.weight).detach() / 0.1
        if buckets and module is skipgram and number == 0:  # undivided: each row has its word's whole gradient
            assert torch.equal(step.abs() > 1e-6, gradient.abs() > 1e-6)
            continue
        torch.testing.assert_close(step, gradient, rtol=1e-4, atol=2e-5)


@BOTH
def test_small_blocks_come_near_one_after_the_other(module: Any) -> None:
    tables = []
    for engine in ("sequential", "batched"):
        model, objective = system(module, window=2, row_tokens=30, engine=engine, block=1)
        rows = objective.rows(corpus_of(), seed=0)
        objective.update(model, batch_of(objective, rows, [0, 1, 2]), rate=0.01)
        tables.append(model.output.weight.detach())
    moved = tables[0] - copies(system(module)[0])[1].detach()
    assert float((tables[0] - tables[1]).norm() / moved.norm()) < 0.05


def test_a_row_met_often_in_a_block_takes_a_mean_step() -> None:
    from etude.objectives.word_vectors.batched_update import add_rows

    table = torch.zeros(3, 2)
    add_rows(table, torch.tensor([0, 1, 1, 1, 1]), torch.tensor([[1.0, 2], [4, 0], [4, 0], [8, 0], [8, 4]]), calm=2)
    assert table.tolist() == [[1, 2], [2 * 6, 2 * 1], [0, 0]]


@BOTH
def test_threads_learn_the_same_thing(module: Any) -> None:
    """Hogwild: not the same bits, but the same loss to a little."""
    pytest.importorskip("numba")
    losses = []
    for threads in (1, 3):
        model, objective = system(module, window=4, subsample=None, row_tokens=50, threads=threads)
        rows = objective.rows(corpus_of(documents=40), seed=0)
        numbers = list(range(len(rows)))
        for step in range(4):
            told = objective.update(model, batch_of(objective, rows, numbers, step), rate=0.05)["loss"]
        losses.append(float(told.sum) / told.count)
    assert losses[0] == pytest.approx(losses[1], rel=0.03)


@BOTH
@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_words_of_the_same_company_become_neighbours(module: Any, engine: str) -> None:
    """Two halves of the vocabulary that never meet: cosine within a half is above that across."""
    chance = np.random.default_rng(0)
    documents = [[(6 + 17 * (number % 2) + chance.integers(0, 17, 40)).tolist()] for number in range(60)]
    model, objective = system(module, window=4, subsample=None, row_tokens=200, engine=engine, block=64, calm=1e9)
    model.reset()
    rows = objective.rows(small_corpus(documents), seed=0)
    start = objective.loss(model, batch_of(objective, rows, [0], 0))["loss"]
    # output vectors are 0, so every score is; one noise word in 34 is the target and is not counted
    assert float(start.sum.detach()) / start.count == pytest.approx((1 + 5 * 33 / 34) * math.log(2), rel=0.01)
    losses = []
    for step in range(25):
        batch = batch_of(objective, rows, list(range(len(rows))), step)
        term = objective.update(model, batch, rate=0.05 if module is skipgram else 0.1)["loss"]
        losses.append(float(term.sum) / term.count)
    assert losses[-1] < losses[0] - 0.1 and losses[0] < 4.2
    vectors = torch.nn.functional.normalize(model.input.weight.detach()[6:], dim=1)
    cosine = vectors @ vectors.T
    within = (cosine[:17, :17].sum() - 17) / (17 * 16)
    assert within > cosine[:17, 17:].mean() + 0.3


def test_flops_by_hand() -> None:
    corpus = small_corpus([[[6, 7, 8]]])
    model, objective = system(skipgram, window=1, negatives=3, subsample=None)
    batch = batch_of(objective, objective.rows(corpus, seed=0), [0])
    assert batch.counts["loss"] == 4 and objective.flops(model, batch) == 4 * 4 * 7 * 2 * 3
    model, objective = system(cbow, window=1, negatives=3, subsample=None)
    batch = batch_of(objective, objective.rows(corpus, seed=0), [0])
    assert batch.counts["loss"] == 3 and objective.flops(model, batch) == 3 * 4 * 7 * 2 * 3


def test_the_engine_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """auto takes what serves; what was asked for by name and cannot be is refused, with what to do."""
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    monkeypatch.setattr(windows.importlib.util, "find_spec", lambda name: object())

    def engine(module: Any, device: torch.device, buckets: int = 0, **options: Any) -> str:
        model, objective = system(module, buckets, **options)
        return objective.engine(model, device)

    assert engine(skipgram, cpu) == engine(cbow, cpu, 23) == "sequential"
    assert engine(skipgram, cuda) == engine(skipgram, cuda, 23) == engine(cbow, cuda) == "hogwild"
    assert engine(cbow, cuda, 23) == engine(skipgram, cuda, output="hierarchical") == "batched"
    assert engine(skipgram, cpu, engine="batched") == engine(skipgram, cuda, engine="batched") == "batched"
    for message, module, device, buckets, options in (
        ("objective.threads=0", skipgram, cpu, 0, {}),
        ("objective.output=negative", cbow, cuda, 0, {"output": "hierarchical"}),
        ("model.buckets=0", cbow, cuda, 23, {}),
    ):
        with pytest.raises(UserError, match=message):
            engine(module, device, buckets, engine="hogwild", **options)
    with pytest.raises(UserError, match=r"train\.device=cpu"):
        engine(skipgram, cuda, engine="sequential")
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert engine(skipgram, cuda) == "batched"
    monkeypatch.undo()
    monkeypatch.setattr(windows.importlib.util, "find_spec", lambda name: None)
    assert engine(skipgram, cuda) == "batched"
    with pytest.raises(UserError, match="needs Triton"):
        engine(skipgram, cuda, engine="hogwild")


def test_divergence_is_told() -> None:
    model, objective = system(skipgram, row_tokens=30)
    batch = batch_of(objective, objective.rows(corpus_of(), seed=0), [0])
    with torch.no_grad():
        model.output.weight[:] = float("nan")
    with pytest.raises(UserError, match=r"Lower train\.lr"):
        objective.update(model, batch, rate=0.1)


@pytest.mark.gpu
@BOTH
@OUTPUTS
@BUCKETS
def test_a_gpu_does_the_same(module: Any, output: str, buckets: int) -> None:
    tables = []
    for device in ("cpu", "cuda"):
        model, objective = system(
            module, buckets, window=2, row_tokens=30, block=16, engine="batched", calm=4.0, output=output
        )
        rows = objective.rows(corpus_of(), seed=0)
        model.to(device)
        total = objective.update(model, batch_of(objective, rows, [0, 1, 2]).to(device), rate=0.2)["loss"].sum
        tables.append((float(total), model.input.weight.detach().cpu(), model.output.weight.detach().cpu()))
    assert tables[0][0] == pytest.approx(tables[1][0], rel=1e-4)
    for one, other in zip(tables[0][1:], tables[1][1:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
@BOTH
@BUCKETS
def test_one_program_of_a_gpu_learns_one_after_another(module: Any, buckets: int) -> None:
    """As the sequential loop does, but for that one's table of the sigmoid."""
    if module is cbow and buckets:
        pytest.skip("there is no such kernel")
    tables = []
    for device, engine in (("cpu", "sequential"), ("cuda", "hogwild")):
        model, objective = system(module, buckets, window=2, row_tokens=30, engine=engine, programs=1)
        rows = objective.rows(corpus_of(), seed=0)
        model.to(device)
        total = objective.update(model, batch_of(objective, rows, [0, 1, 2]).to(device), rate=0.2)["loss"].sum
        tables.append((float(total), model.input.weight.detach().cpu(), model.output.weight.detach().cpu()))
    assert tables[0][0] == pytest.approx(tables[1][0], rel=1e-3)
    for one, other in zip(tables[0][1:], tables[1][1:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)

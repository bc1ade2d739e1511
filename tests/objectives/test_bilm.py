"""The biLM: its stream and rows, carried states that equal one long run, exact round trips, any micro-batch."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from etude.chance import Chance
from etude.errors import UserError
from etude.models import recurrent, static
from etude.nn.packed import pack
from etude.objectives.base import Row
from etude.objectives.bilm import BiLM, LaneBatch, Settings, Stream, build
from tests.device_waits import RefuseWaits
from tests.objectives.small_corpus import SPECIAL, VOCAB, small_corpus

END = SPECIAL.end


def text(lengths: list[list[int]], seed: int = 0) -> list[list[list[int]]]:
    """Documents of sentences of so many tokens."""
    chance = np.random.default_rng(seed)
    return [[chance.integers(6, VOCAB, size).tolist() for size in document] for document in lengths]


def flat(documents: list[list[list[int]]], marker: str = "sentence") -> list[int]:
    """The stream written down directly."""
    stream = [END]
    for document in documents:
        for sentence in document:
            stream += sentence + ([END] if marker == "sentence" else [])
        stream += [END] if marker == "document" else []
    return stream


def system(unroll: int = 5, tied: bool = False, dropout: float = 0.0) -> tuple[recurrent.Recurrent, BiLM]:
    torch.manual_seed(1)
    model = recurrent.build(recurrent.Settings(layers=2, width=8, cells=12, vocab=VOCAB, dropout=dropout))
    return model, build(Settings(unroll=unroll, tied=tied), model, SPECIAL)


def rows_of(rows: Any, step: int, lanes: int) -> list[Row]:
    """What the loader does: lane j reads the j-th part of the rows."""
    length = len(rows) // lanes
    found = [rows[lane * length + step % length] for lane in range(lanes)]
    for slot, row in enumerate(found):
        row.slot = slot
    return found


@given(
    st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), min_size=1, max_size=4),
    st.sampled_from(["sentence", "document"]),
    st.data(),
)
@settings(max_examples=60, deadline=None)
def test_the_stream_is_the_text_with_markers(lengths: list[list[int]], marker: str, data: st.DataObject) -> None:
    documents = text(lengths)
    corpus = small_corpus(documents)
    stream = Stream(corpus, corpus.sentences if marker == "sentence" else corpus.documents, END)
    wanted = flat(documents, marker)
    assert stream.total == len(wanted)
    start = data.draw(st.integers(0, len(wanted) - 2))
    stop = data.draw(st.integers(start + 2, len(wanted)))
    assert stream.read(start, stop).tolist() == wanted[start:stop]


def test_rows_of_both_directions_cover_the_text_once() -> None:
    documents = text([[4, 3], [6], [2, 2, 5]])
    _, objective = system(unroll=4)
    rows = objective.rows(small_corpus(documents), seed=0)
    stream = flat(documents)
    assert not rows.shuffle and rows.row_tokens == 4 and len(rows) == (len(stream) - 1) // 4
    batch = objective.batch([rows[i] for i in range(len(rows))], Chance(0, 0))
    used = 4 * len(rows)
    assert batch.tokens.tolist() == stream[:used] and batch.targets[0].tolist() == stream[1 : used + 1]
    back = stream[::-1]
    assert batch.backward.tokens.tolist() == back[:used] and batch.targets[1].tolist() == back[1 : used + 1]
    assert batch.counts == {"forward": used, "backward": used} and batch.size == used


def run(model: recurrent.Recurrent, objective: BiLM, rows: Any, lanes: int, steps: int, micro: int) -> Tensor:
    """(steps, 2) the summed losses of both directions."""
    sums = torch.zeros(steps, 2, dtype=torch.float64)
    for step in range(steps):
        for start in range(0, lanes, micro):
            batch = objective.batch(rows_of(rows, step, lanes)[start : start + micro], Chance(0, step))
            terms = objective.loss(model, batch)
            sums[step] += torch.stack([terms["forward"].sum, terms["backward"].sum]).detach()
    return sums


@pytest.mark.parametrize("tied", [False, True])
def test_chunks_with_a_carried_state_equal_one_long_run(tied: bool) -> None:
    """Both directions: the model over the whole lane at once gives the sum of the chunks' losses."""
    documents = text([[9, 7, 12], [11, 3], [8, 8, 8]])
    model, objective = system(unroll=5, tied=tied)
    rows = objective.rows(small_corpus(documents), seed=0)
    lanes = 2
    objective.set_lanes(lanes)
    length = len(rows) // lanes
    sums = run(model, objective, rows, lanes, length, micro=lanes).sum(0)
    table = model.embedding.tokens.weight if tied else objective.output.weight
    stream = flat(documents)
    for way, (direction, tokens) in enumerate((("forward", stream), ("backward", stream[::-1]))):
        total = 0.0
        for lane in range(lanes):
            start, size = lane * length * 5, length * 5
            states, _ = model.read(pack([tokens[start : start + size]]), direction)
            logits = F.linear(states[-1], table, objective.output.bias)
            targets = torch.tensor(tokens[start + 1 : start + size + 1])
            total += float(F.cross_entropy(logits, targets, reduction="sum").detach())
        assert abs(float(sums[way]) - total) < 1e-4 * total


def test_the_state_matters() -> None:
    """The test above could not pass with states thrown away."""
    model, objective = system()
    rows = objective.rows(small_corpus(text([[30]])), seed=0)
    objective.set_lanes(1)
    carried = run(model, objective, rows, 1, 4, 1)
    for step in range(1, 4):
        objective.set_lanes(1)
        batch = objective.batch(rows_of(rows, step, 1), Chance(0, step))
        assert abs(float(objective.loss(model, batch)["forward"].sum.detach()) - float(carried[step, 0])) > 1e-3


@pytest.mark.parametrize("micro", [1, 2])
def test_micro_batches_change_nothing(micro: int) -> None:
    documents = text([[9, 7, 12], [11, 3], [8, 8, 8]])
    model, objective = system()
    rows = objective.rows(small_corpus(documents), seed=0)
    objective.set_lanes(3)
    whole = run(model, objective, rows, 3, 6, micro=3)
    state = objective.state()
    objective.set_lanes(3)
    parts = run(model, objective, rows, 3, 6, micro=micro)
    torch.testing.assert_close(parts, whole, rtol=1e-6, atol=0)
    for name, tensor in objective.state().items():
        torch.testing.assert_close(tensor, state[name], rtol=1e-5, atol=1e-6)


def test_state_round_trip_is_exact() -> None:
    model, objective = system(dropout=0.2)
    rows = objective.rows(small_corpus(text([[40], [40]])), seed=0)
    objective.set_lanes(2)
    torch.manual_seed(5)
    run(model, objective, rows, 2, 3, micro=2)
    saved = objective.state()
    assert set(saved) == {"hidden", "cell", "following"} and all(len(tensor) == 2 for tensor in saved.values())
    kept = {name: tensor.clone() for name, tensor in saved.items()}

    def go_on(objective: BiLM) -> float:
        torch.manual_seed(6)
        batch = objective.batch(rows_of(rows, 3, 2), Chance(0, 3))
        return float(objective.loss(model, batch)["backward"].sum.detach().double())

    wanted = go_on(objective)
    assert all(torch.equal(saved[name], kept[name]) for name in saved), "a saved state must not move with training"
    _, other = system(dropout=0.2)
    other.load_state_dict(objective.state_dict())
    other.set_lanes(2)
    other.restore(saved)
    assert all(torch.equal(tensor, saved[name]) for name, tensor in other.state().items())
    assert go_on(other) == wanted
    assert all(torch.equal(tensor, objective.state()[name]) for name, tensor in other.state().items())


def test_the_same_batch_twice_gives_the_same_loss() -> None:
    model, objective = system()
    rows = objective.rows(small_corpus(text([[40]])), seed=0)
    objective.set_lanes(1)
    for step in range(3):
        batch = objective.batch(rows_of(rows, step, 1), Chance(0, step))
        once, twice = (objective.loss(model, batch)["forward"].sum for _ in range(2))
        assert torch.equal(once, twice)


def test_a_lane_starts_anew_at_the_end_of_its_text() -> None:
    model, objective = system()
    rows = objective.rows(small_corpus(text([[25], [24]])), seed=0)
    objective.set_lanes(2)
    length = len(rows) // 2
    sums = run(model, objective, rows, 2, 2 * length, micro=2)
    assert torch.equal(sums[:length], sums[length:])


def test_gradients_stop_at_the_start_of_a_row() -> None:
    model, objective = system()
    rows = objective.rows(small_corpus(text([[40]])), seed=0)
    objective.set_lanes(1)
    for step in range(2):
        batch = objective.batch(rows_of(rows, step, 1), Chance(0, step))
        loss = sum(term.sum for term in objective.loss(model, batch).values())
    loss.backward()  # would need the first step's graph, were the state not detached
    assert all(not tensor.requires_grad for tensor in objective.state().values())
    assert model.forwards[0].recurrent.weight.grad.abs().sum() > 0


def test_flops_by_hand() -> None:
    model, objective = system(unroll=5)
    rows = objective.rows(small_corpus(text([[40]])), seed=0)
    batch = objective.batch([rows[0], rows[1]], Chance(0, 0))
    lstm = 4 * 12 * 8 + 4 * 12 * 8 + 12 * 8
    assert objective.flops(model, batch) == 3 * 2 * 10 * 2 * (2 * lstm + 8 * VOCAB)


def test_it_learns_both_ways() -> None:
    """A text that repeats is known by heart soon, forwards and backwards."""
    model, objective = system(unroll=6)
    rows = objective.rows(small_corpus([[[6, 9, 7, 11, 8, 13, 12]] * 12]), seed=0)
    objective.set_lanes(2)
    optimizer = torch.optim.Adam([*model.parameters(), *objective.parameters()], lr=0.02)
    first: dict[str, float] = {}
    for step in range(80):
        terms = objective.loss(model, objective.batch(rows_of(rows, step, 2), Chance(0, step)))
        last = {name: float(term.sum.detach()) / term.count for name, term in terms.items()}
        first = first or last
        optimizer.zero_grad()
        sum(term.weight * term.sum / term.count for term in terms.values()).backward()
        optimizer.step()
    assert all(value > 3.0 for value in first.values()) and all(value < 0.3 for value in last.values())


def test_what_it_refuses() -> None:
    _, objective = system(unroll=50)
    with pytest.raises(UserError, match="unroll=50"):
        objective.rows(small_corpus(text([[9]])), seed=0)
    with pytest.raises(UserError, match="recurrent"):
        build(Settings(), static.build(static.Settings(width=4, vocab=9)), SPECIAL)
    objective.set_lanes(2)
    wrong = objective.state() | {"hidden": torch.zeros(2, 2, 3, 8)}
    with pytest.raises(ValueError, match="carried hidden"):
        objective.restore(wrong)


def test_in_use_it_scores_what_follows() -> None:
    model, objective = system()
    model.eval()
    ids = objective.frame(np.array([7, 8, 9]), None)
    assert ids.tolist() == [END, 7, 8, 9, END]
    scores = objective.logits(model, model(pack([ids])))
    states, _ = model.read(pack([ids]), "forward")
    torch.testing.assert_close(scores, F.linear(states[-1], objective.output.weight, objective.output.bias))
    changed = ids.copy()
    changed[3] = 20
    assert torch.equal(scores[:3], objective.logits(model, model(pack([changed])))[:3])


def test_states_stay_wide_under_mixed_precision() -> None:
    model, objective = system()
    rows = objective.rows(small_corpus(text([[40], [40]])), seed=0)
    objective.set_lanes(2)
    exact = run(model, objective, rows, 2, 3, micro=2)
    objective.set_lanes(2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = run(model, objective, rows, 2, 3, micro=2)
    torch.testing.assert_close(mixed, exact, rtol=1e-2, atol=0)
    assert objective.state()["cell"].dtype == torch.float32 and not torch.equal(mixed, exact)


@pytest.mark.gpu
def test_a_gpu_does_the_same() -> None:
    model, objective = system()
    rows = objective.rows(small_corpus(text([[40], [40]])), seed=0)
    objective.set_lanes(2)
    wanted, state = run(model, objective, rows, 2, 4, micro=1), objective.state()
    model.cuda()
    objective.cuda()
    objective.set_lanes(2)
    for step in range(4):
        batch = objective.batch(rows_of(rows, step, 2), Chance(0, step)).to("cuda")
        terms = objective.loss(model, batch)
        found = torch.stack([term.sum.detach().double().cpu() for term in terms.values()])
        torch.testing.assert_close(found, wanted[step], rtol=1e-3, atol=0)
    for name, tensor in objective.state().items():
        torch.testing.assert_close(tensor.cpu(), state[name], rtol=0, atol=1e-2)
    objective.restore({name: tensor.cuda() for name, tensor in state.items()})
    assert torch.equal(objective.state()["cell"].cpu(), state["cell"])


def test_a_batch_moves_as_a_whole() -> None:
    _, objective = system()
    rows = objective.rows(small_corpus(text([[40]])), seed=0)
    moved = objective.batch([rows[0]], Chance(0, 0)).to("meta")
    assert isinstance(moved, LaneBatch)
    assert moved.tokens.is_meta and moved.targets.is_meta and moved.backward.tokens.is_meta


@pytest.mark.parametrize("softmax", ["full", "sampled"])
def test_a_step_has_nothing_that_a_gpu_is_waited_for(softmax: Literal["full", "sampled"]) -> None:
    """The first step starts all lanes anew, the later ones go on."""
    model, _ = system()
    objective = build(Settings(unroll=5, softmax=softmax, candidates=8), model, SPECIAL)
    objective.set_lanes(4)
    rows = objective.rows(small_corpus(text([[6, 5, 4]] * 20)), seed=0)
    for step in range(3):
        batch = objective.batch(rows_of(rows, step, 4), Chance(0, step))
        with RefuseWaits():
            torch.stack([term.sum for term in objective.loss(model, batch).values()]).sum().backward()


@pytest.mark.gpu
def test_a_step_on_a_gpu_is_that_of_a_cpu_and_waits_for_nothing() -> None:
    """Three steps of carried states: the losses of a CPU; the last two copy nothing that the GPU is waited for."""
    documents, lanes = text([[6, 5, 4]] * 20), 4
    losses: dict[str, list[float]] = {}
    for device in ("cpu", "cuda"):
        model, objective = system()
        model.to(device)
        objective.to(device)
        objective.set_lanes(lanes)
        rows, sums = objective.rows(small_corpus(documents), seed=0), []
        for step in range(3):
            batch = objective.batch(rows_of(rows, step, lanes), Chance(0, step)).clone(pinned=device == "cuda")
            batch = batch.to(device)
            if step and device == "cuda":  # the first one compiles
                torch.cuda.set_sync_debug_mode("error")
            try:
                terms = objective.loss(model, batch)
                total = torch.stack([term.sum for term in terms.values()]).sum()
                total.backward()
            finally:
                torch.cuda.set_sync_debug_mode("default")
            sums.append(total.detach())
        losses[device] = [float(total) for total in sums]
    assert losses["cuda"] == pytest.approx(losses["cpu"], rel=1e-4)

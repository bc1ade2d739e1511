"""Steps from static memory are the ordinary steps, bit for bit; on a GPU also those of a CUDA graph."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from etude.chance import Chance
from etude.errors import UserError
from etude.nn.cuda_graphs import CudaGraphs
from etude.nn.packed import pack
from etude.objectives.base import Batch
from etude.pretraining import bench
from etude.pretraining.loop import build_rows
from etude.pretraining.setup import resolve_recipe
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.text.corpus.corpus import Corpus
from etude.train import recorded_step
from etude.train.loop import Loop
from etude.train.recorded_step import StepRecorder, Sums
from etude.train.static_batch import NotRecordable, allocate_batch, copy_batch, hide_host_values, signature
from tests.device_waits import RefuseWaits, let_meta_stand_in
from tests.half_precision import may_lack_bf16

TINY = {
    "bert-toy": {"model.layers": 1, "model.width": 32, "model.heads": 2, "model.context": 32},
    "electra-toy": {"model.layers": 1, "model.width": 64, "model.heads": 2, "model.embedding_width": 32},
    "gpt2-toy": {"model.layers": 1, "model.width": 32, "model.heads": 2, "model.context": 32},
    "two-tower-toy": {"model.layers": 1, "model.width": 32, "model.heads": 2},
}
STEPS = 9


class Replay:
    """A graph of a CPU: it runs the function again, over the same memory, and keeps its results in place."""

    hides_host: ClassVar[bool] = False

    def __init__(self) -> None:
        self.sums: Sums = {}
        self.replays = 0

    def warm_up(self, function: Callable[[], Sums]) -> Sums:
        return function()

    def record(self, function: Callable[[], Sums]) -> None:
        self.function = function

    def replay(self) -> Sums:
        self.replays += 1
        for name, value in self.function().items():
            with torch.inference_mode(False):  # the memory of a graph knows no modes
                result = self.sums.setdefault(name, torch.empty_like(value))
            result.copy_(value)
        return self.sums


class StaticLoop(Loop):
    """On a CPU a loop drops unused slots of a batch; here shapes are static, as on a GPU."""

    records_steps = True

    def _to_device(self, batch: Batch) -> Batch:
        return batch.to(self.device)


@cache
def resolved(name: str, **changes: Any) -> tuple[Recipe, Corpus]:
    usual = {"train.precision": "float32", "train.device": "cpu", "train.steps": STEPS, "train.batch_tokens": 512}
    usual |= {"train.workers": 0, "train.log_every": 2, "train.eval_every": 4, "train.eval_tokens": 256}
    usual |= {"train.clip": 0.5, "model.dropout": 0.1, "model.vocab": 200, "train.save_every": 5, "train.warmup": 0.3}
    recipe = Recipe.load(name, {**usual, **TINY[name], **{key.replace("__", "."): v for key, v in changes.items()}})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "DOCUMENTS", 60)
        corpus = bench.random_corpus(recipe)
    return resolve_recipe(recipe, corpus, ()), corpus


def build(folder: Path, name: str, recorded: bool, device: str = "cpu", **changes: Any) -> StaticLoop:
    recipe, corpus = resolved(name, **changes)
    model, objective = build_learner(recipe, corpus.tokenizer)
    rows = build_rows(recipe, corpus, objective)
    loop = StaticLoop(
        folder, model, objective, rows, recipe.train, total=STEPS, valid_rows=rows, device=torch.device(device)
    )
    if recorded and device == "cpu":
        assert loop.optimizer is not None
        loop.recorder = StepRecorder(loop._take_step, loop.optimizer, loop.device, Replay)
    elif not recorded:
        loop.recorder = None
    return loop


def obstacle(loop: Loop) -> str | None:
    """Say why a loop records no steps; None if it does."""
    return "no recorder" if loop.recorder is None else loop.recorder.obstacle


def weights(loop: Loop) -> dict[str, Tensor]:
    states = {} if loop.optimizer is None else loop.optimizer.state
    return {name: value.detach().cpu().clone() for name, value in loop.learner.state_dict().items()} | {
        f"{key}/{name}": value.detach().cpu().clone()
        for name, parameter in loop.named
        for key, value in states[parameter].items()
    }


def lines(loop: Loop) -> list[dict[str, Any]]:
    text = (loop.folder / "metrics.jsonl").read_text()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in text.splitlines()]


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        ("bert-toy", "adam"),
        ("electra-toy", "adam"),
        ("gpt2-toy", "adamw"),
        ("gpt2-toy", "muon"),
        ("two-tower-toy", "adam"),
    ],
)
@may_lack_bf16
def test_steps_from_static_memory_are_the_ordinary_ones(tmp_path: Path, name: str, optimizer: str) -> None:
    ordinary = build(tmp_path / "a", name, recorded=False, train__optimizer=optimizer)
    recorded = build(tmp_path / "b", name, recorded=True, train__optimizer=optimizer)
    ordinary.run()
    recorded.run()
    assert recorded.recorder is not None and obstacle(recorded) is None, obstacle(recorded)
    graphs = [recording.graph for recording in recorded.recorder.recordings.values()]
    assert sum(graph.replays for graph in graphs if isinstance(graph, Replay)) == STEPS - recorded_step.WARM_UP
    expected = weights(ordinary)
    for key, value in weights(recorded).items():
        assert torch.equal(value, expected[key]), key
    assert lines(recorded) == lines(ordinary)


@pytest.mark.parametrize("name", ["electra-toy", "encoder-modern-toy", "gpt3-toy", "two-tower-toy"])
def test_a_step_on_a_gpu_reads_nothing_of_the_host(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it is not recorded; and nothing of it waits."""
    let_meta_stand_in(monkeypatch)
    loaded = Recipe.load(name, {"train.device": "cpu", "model.vocab": 200})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "DOCUMENTS", 60)
        corpus = bench.random_corpus(loaded)
    recipe = resolve_recipe(loaded, corpus, ())
    model, objective = build_learner(recipe, corpus.tokenizer)
    batch = objective.batch([objective.rows(corpus, 0)[0]], Chance(0, 0)).to("meta")
    hide_host_values(batch)
    model.to("meta")
    objective.to("meta")
    with RefuseWaits():
        torch.stack([term.sum for term in objective.loss(model, batch).values()]).sum().backward()


def test_a_resumed_run_records_again_and_is_the_same(tmp_path: Path) -> None:
    whole = build(tmp_path / "a", "electra-toy", recorded=False)
    whole.run()
    first = build(tmp_path / "b", "electra-toy", recorded=True)
    plain_advance = first.advance

    def advance(step: Any) -> None:
        plain_advance(step)
        first.interrupted = first.state.step == 6  # after the first replays, and between two checkpoints

    first.advance = advance  # type: ignore[method-assign]
    assert not first.run().finished
    second = build(tmp_path / "b", "electra-toy", recorded=True)
    assert second.run().finished and second.state.step == STEPS
    expected = weights(whole)
    for key, value in weights(second).items():
        assert torch.equal(value, expected[key]), key
    assert lines(second) == lines(whole)


def test_a_step_that_cannot_be_recorded_says_why_and_is_taken(tmp_path: Path) -> None:
    class Refusing(Replay):
        def record(self, function: Callable[[], Sums]) -> None:
            raise RuntimeError("operation not permitted when stream is capturing\nmore of it")

    ordinary, recorded = (build(tmp_path / name, "gpt2-toy", recorded=False) for name in "ab")
    assert recorded.optimizer is not None
    messages: list[str] = []
    recorded.recorder = StepRecorder(
        recorded._take_step, recorded.optimizer, recorded.device, Refusing, report=messages.append
    )
    ordinary.run()
    recorded.run()
    assert "operation not permitted" in (obstacle(recorded) or "") and not recorded.recorder.recordings
    assert len(messages) == 1 and "operation not permitted" in messages[0] and "more of it" not in messages[0]
    expected = weights(ordinary)
    assert all(torch.equal(value, expected[key]) for key, value in weights(recorded).items())


def test_other_shapes_are_taken_the_ordinary_way_until_they_come_again(tmp_path: Path) -> None:
    changes = {"train__batch_ramp": {"from_tokens": 256, "over_tokens": 1024, "stages": 1}}
    ordinary = build(tmp_path / "a", "gpt2-toy", recorded=False, **_hashable(changes))
    recorded = build(tmp_path / "b", "gpt2-toy", recorded=True, **_hashable(changes))
    ordinary.run()
    recorded.run()
    assert recorded.recorder is not None and len(recorded.recorder.recordings) == 2
    expected = weights(ordinary)
    assert all(torch.equal(value, expected[key]) for key, value in weights(recorded).items())


def _hashable(changes: dict[str, dict[str, int]]) -> dict[str, Any]:
    return {f"{group}__{key}": value for group, values in changes.items() for key, value in values.items()}


def test_shapes_that_always_change_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_step, "MAX_UNRECORDED", 3)
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([{"params": [parameter], "scale": 1.0}], lr=0.5)
    messages: list[str] = []
    recorder = StepRecorder(
        lambda *_: {"loss ": torch.zeros(())}, optimizer, torch.device("cpu"), Replay, messages.append
    )
    taken = [recorder.run(batch_of(length), {"loss": 1.0}, 0.1, length) for length in range(1, 9)]
    assert taken[0] is not None and taken[1:] == [None] * 7  # the first at once; of the others none came again
    assert messages and "change from step to step" in messages[0]
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)


# Biases of joint projections: how many parts they have, and which of them are not of keys. A bias of keys shifts all
# scores of a query alike: its gradient is rounding alone, whose sign Adam follows.
KEY_BIASES = {"qkv.bias": (3, [0, 2]), "combiner.keys.bias": (2, [1])}
TOWERS = ("model.forwards.", "model.backwards.")  # a slot beside their keys has no such bias


def split_key_bias(name: str, value: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return what of a tensor is no bias of keys, and that bias if it has no gradient."""
    for ending, (parts, others) in KEY_BIASES.items():
        if name.endswith(ending) and value.dim() and not name.rpartition("/")[2].startswith(TOWERS):
            split = value.float().unflatten(0, (parts, -1))
            return split[others], split[[part for part in range(parts) if part not in others]]
    return value.float(), None


@pytest.mark.parametrize("name", TINY)
def test_biases_of_keys_have_no_gradient(tmp_path: Path, name: str) -> None:
    loop = build(tmp_path, name, recorded=False)
    loop.run()
    checked = 0
    for key, value in weights(loop).items():
        others, keys = split_key_bias(key, value)
        if key.startswith("exp_avg_sq/") and keys is not None:
            assert keys.sum() < 1e-9 * others.sum(), key
            checked += 1
    assert checked


def batch_of(length: int) -> Batch:
    packed = pack([list(range(length)), [1, 2]], longest=16)
    return Batch(**vars(packed), rows=np.arange(2), slots=np.arange(2), counts={"loss": length})


def test_a_static_batch_takes_over_another(tmp_path: Path) -> None:
    first, second = batch_of(4), batch_of(4)
    second.tokens += 5
    second.layout.host[1] = second.layout.bounds[1] = 3
    static = allocate_batch(first, torch.device("cpu"))
    address = static.tokens.data_ptr()
    static.layout.cache["plan"] = 1
    copy_batch(second, static)
    assert static.tokens.data_ptr() == address != first.tokens.data_ptr()
    assert torch.equal(static.tokens, second.tokens) and torch.equal(static.layout.bounds, second.layout.bounds)
    assert static.layout.host[1] == 3 and not static.layout.cache
    assert not torch.equal(first.tokens, second.tokens)


def test_values_of_the_host_refuse_to_be_recorded() -> None:
    batch = allocate_batch(batch_of(4), torch.device("cpu"))
    hide_host_values(batch)
    assert batch.size == 6  # part of the shapes
    count = batch.counts["loss"]  # a loss term may name it, and nothing may be computed from it
    reads: list[Callable[[], object]] = [lambda: batch.layout.lengths, lambda: batch.layout.host[:-1]]
    reads += [lambda: batch.slots[0], lambda: torch.ones(2) / count, lambda: torch.ones(2) * count]
    reads += [lambda: max(1, count), lambda: float(count), lambda: count == 4, lambda: count // 2, lambda: -count]
    reads += [lambda: batch.slots.max(), lambda: batch.layout.host.astype(int), lambda: batch.slots == 1]
    for read in reads:
        with pytest.raises(NotRecordable, match="on the host"):
            read()
    copy_batch(batch_of(4), batch)
    assert batch.layout.lengths.tolist() == [4, 2] and batch.counts == {"loss": 4}


def test_a_signature_is_shapes_and_plain_values() -> None:
    assert signature(batch_of(4)) == signature(batch_of(4)) != signature(batch_of(5))
    longer = batch_of(4)
    longer.layout.longest = 32
    assert signature(longer) != signature(batch_of(4))


# --- on a GPU ---------------------------------------------------------------------------------------

GPU = {"train__precision": "bf16", "train__device": "cuda", "train__deterministic": False}


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", ["adam", "muon"])
@pytest.mark.parametrize("name", TINY)
def test_a_recorded_step_is_the_step_as_it_is_written(tmp_path: Path, name: str, optimizer: str) -> None:
    """Against the same function that is never recorded: the same kernels, so but for atomic sums the same bits."""
    expected = build(tmp_path / "a", name, recorded=True, device="cuda", train__optimizer=optimizer, **GPU)
    assert expected.recorder is not None
    expected.recorder.warm_up = STEPS + 1
    recorded = build(tmp_path / "b", name, recorded=True, device="cuda", train__optimizer=optimizer, **GPU)
    expected.run()
    recorded.run()
    assert obstacle(expected) is None, obstacle(expected)
    assert recorded.recorder is not None and obstacle(recorded) is None, obstacle(recorded)
    assert [r.is_recorded for r in expected.recorder.recordings.values()] == [False]
    assert [r.is_recorded for r in recorded.recorder.recordings.values()] == [True]
    theirs = weights(expected)
    for key, value in weights(recorded).items():
        mine, other = split_key_bias(key, value)[0], split_key_bias(key, theirs[key])[0]
        torch.testing.assert_close(mine, other, rtol=2e-2, atol=2e-3, msg=key)
    for mine, other in zip(lines(recorded), lines(expected), strict=True):
        assert mine["loss"] == pytest.approx(other["loss"], rel=2e-3)


@pytest.mark.gpu
def test_dropout_is_drawn_anew_in_every_replay() -> None:
    device = torch.device("cuda")
    drawn = torch.zeros(4096, device=device)
    graph = CudaGraphs(device)()

    def draw() -> Sums:
        drawn.copy_(torch.nn.functional.dropout(torch.ones_like(drawn), 0.5))
        return {}

    torch.manual_seed(0)
    graph.warm_up(draw)
    eager = drawn.clone()
    graph.record(draw)
    replays = []
    for seed in (0, 1, 0):
        torch.manual_seed(seed)
        graph.replay()
        replays.append(drawn.clone())
    assert torch.equal(replays[0], eager) and torch.equal(replays[0], replays[2])
    assert not torch.equal(replays[0], replays[1])


@pytest.mark.gpu
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_failed_recording_leaves_a_run_that_goes_on(tmp_path: Path, dropout: float) -> None:
    """Dropout too: the generator of random numbers must not go on believing in the recording."""
    loop = build(tmp_path, "gpt2-toy", recorded=True, device="cuda", **GPU, model__dropout=dropout)
    plain = loop.objective.loss

    def waits(*given: Any) -> Any:
        terms = plain(*given)
        float(next(iter(terms.values())).sum)  # waits for the GPU, which a recording cannot
        return terms

    loop.objective.loss = waits  # type: ignore[method-assign]
    stream = torch.cuda.current_stream()
    assert loop.run().finished and obstacle(loop)
    assert torch.cuda.current_stream() == stream


@pytest.mark.gpu
def test_a_non_finite_step_of_a_recording_is_found_and_leaves_the_weights(tmp_path: Path) -> None:
    # a line of the log would raise the error at once
    loop = build(tmp_path, "gpt2-toy", recorded=True, device="cuda", train__log_every=100, **GPU)
    steps = loop.loader.steps(0, STEPS)
    for _ in range(recorded_step.WARM_UP + 2):
        loop.advance(next(steps))
    assert obstacle(loop) is None, obstacle(loop)
    with torch.no_grad():
        loop.named[-1][1].view(-1)[0] = float("nan")
    before = weights(loop)
    loop.advance(next(steps))
    loop.advance(next(steps))
    assert all(torch.equal(v.nan_to_num(), before[k].nan_to_num()) for k, v in weights(loop).items())
    assert loop.bad_step is not None and int(loop.bad_step[1]) == recorded_step.WARM_UP + 2
    with pytest.raises(UserError, match=f"step {recorded_step.WARM_UP + 3}"):
        loop.save()

"""Order is a function of (seed, step): no state, any grouping, any depth."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from etude.chance import Chance
from etude.errors import UserError
from etude.objectives.base import Batch, Objective, Row, Term, join
from etude.train.loader import Loader, split_into_micro_batches
from etude.train.workers import default_workers


class Numbers:
    """Rows whose tokens are their own number."""

    row_tokens = 4

    def __init__(self, size: int, shuffle: bool = True) -> None:
        self.size, self.shuffle = size, shuffle

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Row:
        return Row(index, np.full(4, index % self.size, dtype=np.int32), np.array([0, 4], dtype=np.int32))


class Plain(Objective):
    def batch(self, rows: list[Row], chance: Chance) -> Batch:  # type: ignore[override]
        return Batch(**join(rows, 1, 4), counts={"tokens": 4 * len(rows)})

    def rows(self, corpus: object, seed: int) -> Numbers:
        raise AssertionError("a loader is given its rows")

    def loss(self, model: object, batch: object) -> dict[str, Term]:  # type: ignore[override]
        raise AssertionError("a loader builds batches, and trains on none")

    def flops(self, model: object, batch: object) -> int:  # type: ignore[override]
        return 0


def test_an_objective_without_all_of_its_parts_is_not_built() -> None:
    class Half(Plain):
        loss = Objective.loss

    with pytest.raises(TypeError, match="loss"):
        Half()
    with pytest.raises(TypeError, match="learns by gradients"):
        Plain().update(nn.Identity(), None, 0.1)


def loader(size: int, batch: int, **changes: object) -> Loader:
    settings = {"seed": 1, "batch_rows": lambda _: batch, "rows_before": lambda k: k * batch, "micro_tokens": None}
    rows = Numbers(size, shuffle=bool(changes.pop("shuffle", True)))
    return Loader(Plain(), rows, **(settings | changes))  # type: ignore[arg-type]


@settings(max_examples=40, deadline=None)
@given(size=st.integers(1, 60), batch=st.integers(1, 17))
def test_every_row_comes_once_an_epoch(size: int, batch: int) -> None:
    numbers = np.concatenate([loader(size, batch).row_numbers(k) for k in range(2 * size)])
    for epoch in range(len(numbers) // size):
        part = numbers[epoch * size : (epoch + 1) * size]
        assert sorted(part % size) == list(range(size))
        assert (part // size == epoch).all()


def test_epochs_differ_and_seeds_differ() -> None:
    one = loader(500, 500)
    assert not np.array_equal(one.row_numbers(0), one.row_numbers(1) - 500)
    assert not np.array_equal(one.row_numbers(0), loader(500, 500, seed=2).row_numbers(0))


def test_ranks_and_micro_batches_share_the_same_rows() -> None:
    whole = loader(100, 12).step(5)
    parts = [loader(100, 12, rank=rank, ranks=3, micro_tokens=8).step(5) for rank in range(3)]
    assert [len(part.batches) for part in parts] == [2, 2, 2]
    together = np.concatenate([batch.rows for part in parts for batch in part.batches])
    assert np.array_equal(together, whole.batches[0].rows)
    slots = np.concatenate([batch.slots for part in parts for batch in part.batches])
    assert np.array_equal(slots, np.arange(12))
    assert sum(part.counts["tokens"] for part in parts) == whole.counts["tokens"]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_workers_change_nothing(workers: int) -> None:
    steps = list(loader(50, 6, workers=workers).steps(3, 20))
    assert [step.number for step in steps] == list(range(3, 20))
    expected = [loader(50, 6, workers=0).step(k).batches[0].tokens for k in range(3, 20)]
    assert all(bool((step.batches[0].tokens == tokens).all()) for step, tokens in zip(steps, expected, strict=True))


def test_a_billion_steps_ahead_is_as_near_as_the_first() -> None:
    """And a trillion, which no machine counts up to: nothing before a step is computed."""
    far = loader(10_000_019, 256)
    for step in (10**9, 10**12):
        assert len(far.step(step).batches[0].rows) == 256
        assert len(set(far.row_numbers(step).tolist())) == 256


def test_lanes_go_on_where_they_stopped() -> None:
    lanes = loader(23, 4, shuffle=False)
    first, second = lanes.row_numbers(0), lanes.row_numbers(1)
    assert np.array_equal(second, first + 1)
    assert np.array_equal(lanes.row_numbers(5), first)  # 23 // 4 = 5 rows a lane, then from the start


def test_what_cannot_be_shared_is_refused() -> None:
    with pytest.raises(UserError, match="cannot be divided among 2"):
        loader(10, 3, ranks=2)
    with pytest.raises(UserError, match="fewer than the 30 lanes"):
        loader(10, 30, shuffle=False)
    ramp = {"shuffle": False, "sizes": [2, 4]}
    assert loader(23, 4, **ramp).batch_rows(0) == 4
    with pytest.raises(UserError, match=r"Remove train\.batch_ramp"):
        loader(23, 4, ranks=2, **ramp)
    with pytest.raises(UserError, match="fewer than the 30 lanes"):  # that a ramp comes to, thousands of steps later
        loader(10, 4, shuffle=False, sizes=[4, 30])


def test_split_keeps_whole_rows_in_order() -> None:
    rows = [Numbers(9)[i] for i in range(9)]
    groups = split_into_micro_batches(rows, 8)
    assert [len(group) for group in groups] == [2, 2, 2, 2, 1]
    assert [row.index for group in groups for row in group] == list(range(9))
    assert [len(group) for group in split_into_micro_batches(rows, 1)] == [
        1
    ] * 9  # a row larger than the limit stands alone


class Deadly(Numbers):
    def __getitem__(self, index: int) -> Row:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


def test_processes_build_what_is_built_here() -> None:
    here = list(loader(40, 6).steps(3, 12))
    there = list(loader(40, 6, workers=2, processes=True).steps(3, 12))
    assert [step.number for step in there] == list(range(3, 12))
    for one, other in zip(here, there, strict=True):
        assert one.counts == other.counts
        for mine, theirs in zip(one.batches, other.batches, strict=True):
            assert torch.equal(mine.tokens, theirs.tokens)
            assert torch.equal(mine.layout.bounds, theirs.layout.bounds)
            assert np.array_equal(mine.rows, theirs.rows)
            theirs.tokens.add_(1)  # memory of its own


def test_a_step_larger_than_a_slot_goes_through_the_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etude.train.workers.SLOT_BYTES", 4096)  # a step of 2,000 rows has 64 kB of ids alone
    there = list(loader(4000, 2000, workers=2, processes=True).steps(0, 6))
    for number, step in enumerate(there):
        assert torch.equal(step.batches[0].tokens, loader(4000, 2000).step(number).batches[0].tokens)


def test_processes_leave_cores_to_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, ranks, wanted in ((1, 1, 1), (4, 1, 2), (16, 1, 8), (16, 4, 2), (64, 1, 8), (8, 8, 1)):
        monkeypatch.setattr("etude.train.workers.count_cores", lambda cores=cores: cores)
        assert default_workers(ranks) == wanted


def test_a_bad_row_in_a_process_is_told_as_it_is() -> None:
    class Bad(Numbers):
        def __getitem__(self, index: int) -> Row:
            raise UserError("line 7 is empty")

    broken = loader(40, 6, workers=2, processes=True)
    broken.rows = Bad(40)
    with pytest.raises(UserError, match="line 7 is empty"):
        next(broken.steps(0, 5))


def test_a_killed_process_ends_in_a_message_and_not_in_waiting() -> None:
    broken = loader(40, 6, workers=1, processes=True)
    broken.rows = Deadly(40)
    with pytest.raises(UserError, match=r"train\.workers"):
        next(broken.steps(0, 5))


def test_processes_end_with_their_parent() -> None:
    """SIGKILL of the parent leaves nobody behind."""
    program = """
import sys, time
sys.path.insert(0, sys.argv[1])
from test_loader import loader
steps = loader(40, 6, workers=2, processes=True).steps(0, 100)
next(steps)
import multiprocessing
print(*[child.pid for child in multiprocessing.active_children()], flush=True)
time.sleep(60)
"""
    folder = str(Path(__file__).parent)
    parent = subprocess.Popen([sys.executable, "-c", program, folder], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    children = [int(number) for number in parent.stdout.readline().split()]
    parent.kill()
    parent.wait()
    assert len(children) == 2
    until = time.monotonic() + 120
    while any(_alive(child) for child in children):
        assert time.monotonic() < until, "a worker outlived its parent"
        time.sleep(0.1)


def _alive(process: int) -> bool:
    """Running, and not merely waiting to be collected."""
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False

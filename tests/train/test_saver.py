"""When a run is saved: every so many steps, or by a clock; the best weights in memory or in a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from etude.train import checkpoint, saver
from etude.train.run_state import TrainState
from etude.train.saver import BestWeights, Saver, SaveTimer


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def weights(value: float) -> dict[str, Tensor]:
    return {"a": torch.full((4,), value), "count": torch.tensor(int(value))}


def write(saving: Saver, state: TrainState, value: float) -> None:
    saving.write({"weights": weights(value)}, vars(state))


def test_a_pre_training_saves_every_so_many_steps_at_the_best_and_at_the_end(tmp_path: Path) -> None:
    saving = Saver(tmp_path, every=10, keep=2)
    due = [step for step in range(31) if saving.is_due(TrainState(step=step, best_step=13), finished=False)]
    assert due == [10, 13, 20, 30]
    assert saving.is_due(TrainState(step=31), finished=True)
    assert not any(Saver(tmp_path, every=0, keep=2).is_due(TrainState(step=step), finished=False) for step in range(9))


def test_a_transfer_saves_neither_at_the_best_nor_at_the_end(tmp_path: Path) -> None:
    saving = Saver(tmp_path, every=10, keep=1)
    saving.end_with_best()
    saving.hold_best(13, weights(1))
    due = [step for step in range(31) if saving.is_due(TrainState(step=step, best_step=13), finished=False)]
    assert due == [10, 20, 30], "as it was asked to"
    assert not saving.is_due(TrainState(step=31), finished=True)


def test_a_transfer_that_was_asked_for_nothing_saves_by_the_clock(tmp_path: Path) -> None:
    clock = Clock()
    saving = Saver(tmp_path, every=0, keep=1)
    saving.end_with_best()
    saving.timer = SaveTimer(60, clock)
    due = []
    for step in range(1, 40):
        clock.now += 5
        if saving.is_due(TrainState(step=step), finished=False):
            due.append(step)
            write(saving, TrainState(step=step), step)
    assert due == [12, 24, 36] and checkpoint.list_steps(tmp_path) == [36]


def test_slow_writing_makes_checkpoints_rarer() -> None:
    clock = Clock(100.0)
    timer = SaveTimer(60, clock)
    assert not timer.is_due()
    clock.now = 160.0
    assert timer.is_due()
    timer.restart(cost=10)
    clock.now += 199
    assert not timer.is_due(), "ten seconds are 5 % of 200"
    clock.now += 1
    assert timer.is_due()


def test_best_weights_are_a_copy(tmp_path: Path) -> None:
    best, own = BestWeights(), weights(1)
    best.hold(5, own)
    address = best.tensors["a"].data_ptr()
    own["a"].zero_()
    assert best.step == 5 and best.tensors["a"].tolist() == [1.0] * 4
    best.hold(9, own)
    assert best.tensors["a"].data_ptr() == address and best.tensors["a"].tolist() == [0.0] * 4, "memory is used again"


def test_large_best_weights_get_a_checkpoint_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saving = Saver(tmp_path, every=0, keep=1)
    saving.end_with_best()
    saving.best = BestWeights(limit=23)  # of 24
    saving.hold_best(4, weights(4))
    state = TrainState(step=4, best_step=4)
    assert not saving.holds(4) and saving.is_due(state, finished=False)
    write(saving, state, 4)
    write(saving, TrainState(step=6, best_step=4), 6)
    write(saving, TrainState(step=8, best_step=4), 8)
    assert checkpoint.list_steps(tmp_path) == [4, 8]
    tensors, source = saving.read_weights(4)
    assert tensors["a"].tolist() == [4.0] * 4 and "checkpoint 4" in source


def test_a_checkpoint_holds_best_weights_from_before_it(tmp_path: Path) -> None:
    saving = Saver(tmp_path, every=0, keep=1)
    saving.end_with_best()
    saving.hold_best(4, weights(4))
    write(saving, TrainState(step=4, best_step=4), 4)
    assert checkpoint.load(tmp_path, 4)[0].keys() == {"weights"}, "they are its own"
    write(saving, TrainState(step=6, best_step=4), 6)
    assert checkpoint.list_steps(tmp_path) == [6]

    resumed = Saver(tmp_path, every=0, keep=1)
    resumed.end_with_best()
    last = resumed.read()
    assert last is not None and last[0].keys() == {"weights"} and last[0]["weights"]["a"].tolist() == [6.0] * 4
    assert resumed.saved_step == 6 and resumed.read_weights(4)[0]["a"].tolist() == [4.0] * 4
    write(resumed, TrainState(step=8, best_step=4), 8)
    assert checkpoint.load(tmp_path, 8)[0][saver.BEST]["a"].tolist() == [4.0] * 4, "and so on after the next kill"


def test_best_weights_are_read_from_the_last_checkpoint_where_they_are_its_own(tmp_path: Path) -> None:
    first = Saver(tmp_path, every=0, keep=1)
    write(first, TrainState(step=6, best_step=6), 6)
    resumed = Saver(tmp_path, every=0, keep=1)
    resumed.end_with_best()
    assert resumed.read() is not None and resumed.holds(6)
    assert Saver(tmp_path / "none", every=0, keep=1).read() is None


def test_best_weights_of_an_earlier_version_stay_in_their_checkpoint(tmp_path: Path) -> None:
    """Runs begun before best weights were held have a checkpoint of the best step beside the last."""
    for step in (4, 6):
        checkpoint.save(tmp_path, step, {"weights": weights(step)}, vars(TrainState(step=step, best_step=4)))
    saving = Saver(tmp_path, every=0, keep=1)
    saving.end_with_best()
    assert saving.read() is not None and not saving.holds(4)
    write(saving, TrainState(step=8, best_step=4), 8)
    assert checkpoint.list_steps(tmp_path) == [4, 8]
    assert saving.read_weights(4)[0]["a"].tolist() == [4.0] * 4

"""Checkpoints in shards are written while training goes on; what goes wrong there is raised at the next step."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from etude.errors import WriteError
from etude.train import checkpoint, sharded_checkpoint
from etude.train.parallel import Ranks
from etude.train.shard_writer import ShardWriter, copy_to_host

STATE = {"step": 1, "best_step": None}


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.FileStore(str(tmp_path / "store"), 1))
    yield
    dist.destroy_process_group()


def make_shards() -> DTensor:
    mesh = init_device_mesh("cpu", (1,))
    return distribute_tensor(torch.arange(6.0).reshape(3, 2), mesh, [Shard(0)])


def test_training_goes_on_while_it_is_written(alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, may_write = make_shards(), threading.Event()
    save = sharded_checkpoint.save

    def save_late(*arguments: object) -> None:
        assert may_write.wait(300)
        save(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(sharded_checkpoint, "save", save_late)
    writer, counts = ShardWriter(tmp_path / "checkpoints", 1, Ranks()), {"mlm": 8.0}
    state_now = STATE | {"counts": counts}
    writer.save(1, {"weights": {"table": weights}}, {"carried": {"state": torch.ones(2)}}, state_now)
    assert checkpoint.list_steps(tmp_path / "checkpoints") == []
    weights.to_local().fill_(-1.0)  # as the next step does
    counts["mlm"] = 16.0
    may_write.set()
    writer.wait()
    groups, state = checkpoint.load(tmp_path / "checkpoints", 1)
    assert state == STATE | {"counts": {"mlm": 8.0}} and torch.equal(
        groups["weights"]["table"], torch.arange(6.0).reshape(3, 2)
    )
    assert torch.equal(groups["carried"]["state"], torch.ones(2))
    writer.save(2, {"weights": {"table": weights}}, {}, STATE | {"step": 2})
    writer.wait()
    assert checkpoint.list_steps(tmp_path / "checkpoints") == [2]  # one is kept


def test_an_error_of_the_thread_is_raised_once(alone: None, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.write_text("a file where a folder is needed", encoding="utf-8")
    writer = ShardWriter(folder, 1, Ranks())
    writer.save(1, {"weights": {"table": make_shards()}}, {}, STATE)
    assert writer.thread is not None
    writer.thread.join()
    with pytest.raises(WriteError, match="A file is where a folder is needed"):
        writer.raise_error()
    writer.raise_error()
    folder.unlink()
    writer.save(1, {"weights": {"table": make_shards()}}, {}, STATE)
    writer.wait()
    assert checkpoint.list_steps(folder) == [1]


def test_a_copy_is_apart_and_keeps_its_place(alone: None) -> None:
    shards = make_shards()
    copy = copy_to_host({"table": shards})["table"]
    assert isinstance(copy, DTensor) and copy.placements == shards.placements and copy.shape == shards.shape
    assert copy.to_local().data_ptr() != shards.to_local().data_ptr()

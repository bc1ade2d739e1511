"""The real sharded step of one rank among any number, without a GPU and without memory: what a plan is checked by.

torch's fake process group answers every collective at once, and fake tensors have shapes but no values. So the model is
sharded over 1,024 ranks and takes a forward and a backward pass here, while torch's tracker adds up what is allocated
and a dispatch mode what is sent. The step is that of a CPU: attention keeps what its CPU path keeps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from etude.errors import UserError
from etude.models.base import Model
from etude.nn.losses import use_large_blocks
from etude.objectives.base import Batch, Objective
from etude.train import optim, recomputation, sharding
from etude.train.cluster_plan import Mesh, Traffic
from etude.train.learner import Learner, total_loss
from etude.train.parallel import Ranks
from etude.train.settings import Settings


@dataclass(frozen=True)
class FakeStep:
    """What one rank held and sent in a step of one micro-batch, in bytes."""

    weights: int
    gradients: int
    optimizer: int
    peak: int  # all of it at its highest point, within the forward and the backward pass
    traffic: Traffic


class TrafficCounter(TorchDispatchMode):
    """Adds up the payload of collectives: what is gathered, what is reduced in shards, what is added up."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = {"_allgather_base_": 0, "_reduce_scatter_base_": 0, "allreduce_": 0}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        name = func.name().removeprefix("c10d::").partition(".")[0]
        if name == "_allgather_base_":
            self.bytes[name] += args[0].nbytes  # the output: (shards x share)
        elif name == "_reduce_scatter_base_":
            self.bytes[name] += args[1].nbytes  # the input
        elif name == "allreduce_":
            self.bytes[name] += sum(tensor.nbytes for tensor in args[0])
        return func(*args, **(kwargs or {}))


def take_fake_step(model: Model, objective: Objective, batch: Batch, settings: Settings, mesh: Mesh) -> FakeStep:
    """Shard a model that was built on the device "meta", run one micro-batch as rank 0, and return what it took."""
    if dist.is_initialized():
        raise UserError("A plan is checked in one process: run etude check without torchrun.")
    ranks = Ranks(0, mesh.copies * mesh.shards)
    with _fake_group(ranks.size):
        device_mesh = sharding.build_mesh(ranks, torch.device("cpu"), mesh.copies > 1, mesh.shards)
        with FakeTensorMode(allow_non_fake_inputs=True):
            trunks = [model, *objective.trunks()]
            learner = Learner(model, objective)
            learner.to_empty(device="cpu")
            recomputation.set_recompute(trunks, settings.recompute)
            sharding.shard(learner, recomputation.list_layers(trunks), device_mesh, settings)
            named = [(name, p) for name, p in learner.named_parameters() if p.requires_grad]
            optimizer = optim.build(settings, named, None, sharding.MatrixExchange(device_mesh))
            states = optim.state_tensors(optimizer, named)
            counter = TrafficCounter()
            with counter, use_large_blocks():
                _run(learner, batch, settings)
            gradients = sum(_local_bytes(p.grad) for _, p in named if p.grad is not None)
            optimizer.zero_grad(set_to_none=True)
            # replaces hooks of FSDP by some that gather a layer of several modules several times: so it comes second
            tracker = FSDPMemTracker(learner, optimizer)
            with tracker, use_large_blocks():
                _run(learner, batch, settings)
            peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
            return FakeStep(
                weights=sum(_local_bytes(parameter) for _, parameter in named),
                gradients=gradients,
                optimizer=sum(map(_local_bytes, states.values())),
                peak=peak + sum(map(_local_bytes, states.values())),
                traffic=Traffic(*counter.bytes.values()),
            )


def _run(learner: Learner, batch: Batch, settings: Settings) -> None:
    """Run a forward and a backward pass."""
    with torch.autocast("cpu", torch.bfloat16) if settings.precision == "bf16" else nullcontext():
        loss = total_loss(learner(batch), {name: float(count) for name, count in batch.counts.items()})
    loss.backward()


def _local_bytes(tensor: Tensor) -> int:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).nbytes


@contextmanager
def _fake_group(size: int) -> Iterator[None]:
    dist.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()

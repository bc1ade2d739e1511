"""The real sharded step of one rank among any number, without a GPU and without memory: what a plan is checked by.

torch's fake process group answers every collective at once, and fake tensors have shapes but no values. So the model is
sharded over 1,024 ranks and takes a forward and a backward pass here, while a dispatch mode adds up what is allocated
and what is sent. The step is that of a CPU: attention keeps what its CPU path keeps.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, UntypedStorage
from torch._guards import active_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode
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


class StepTracker(TorchDispatchMode):
    """Adds up the bytes that tensors hold, with their highest sum, and the payload of collectives.

    torch's FSDPMemTracker keeps statistics of every module and looks at all of them in each operator: its time grows
    with the square of the layers, and it replaces hooks of FSDP. This mode leaves the step as it is.
    """

    def __init__(self, held: Iterable[Tensor]) -> None:
        """`held` are the tensors that are there before the step."""
        super().__init__()
        self.bytes = {"_allgather_base_": 0, "_reduce_scatter_base_": 0, "allreduce_": 0}
        self.current = self.peak = 0
        self._storages: dict[int, tuple[weakref.ref[UntypedStorage], list[int]]] = {}  # by id: who, and its bytes
        self._fake_mode: FakeTensorMode | None = None
        self._resize = UntypedStorage.resize_
        for tensor in held:
            self._add(tensor)

    def __enter__(self) -> Self:
        self._fake_mode = active_fake_mode()
        tracker, resize = self, self._resize

        def resize_tracked(storage: UntypedStorage, size: int) -> None:
            resize(storage, size)
            tracker._note_size(storage)

        UntypedStorage.resize_ = resize_tracked  # type: ignore[method-assign, assignment]  # FSDP frees what it gathered by it
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented  # its operators on shares are what is counted
        result = func(*args, **(kwargs or {}))
        if active_fake_mode() is not self._fake_mode:
            return result  # DTensor computes the shape of a result
        name = func.name()
        if name.startswith("c10d::"):
            self._count_traffic(name.removeprefix("c10d::").partition(".")[0], args)
        if isinstance(result, Tensor):
            self._add(result)
        elif isinstance(result, (tuple, list)):
            for tensor in result:
                if isinstance(tensor, Tensor):
                    self._add(tensor)
        return result

    def _count_traffic(self, name: str, args: tuple[Any, ...]) -> None:
        if name == "_allgather_base_":
            self.bytes[name] += args[0].nbytes  # the output: (shards x share)
        elif name == "_reduce_scatter_base_":
            self.bytes[name] += args[1].nbytes  # the input
        elif name == "allreduce_":
            self.bytes[name] += sum(tensor.nbytes for tensor in args[0])

    def _add(self, tensor: Tensor) -> None:
        """Count the storage of a tensor from now until it is freed."""
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._storages:
            self._note_size(storage)
            return
        size = [0]

        def forget(_: object) -> None:
            self.current -= size[0]
            del self._storages[key]

        self._storages[key] = weakref.ref(storage, forget), size
        self._note_size(storage)

    def _note_size(self, storage: UntypedStorage) -> None:
        entry = self._storages.get(id(storage))
        if entry is not None:
            size = entry[1]
            self.current += storage.nbytes() - size[0]
            size[0] = storage.nbytes()
            self.peak = max(self.peak, self.current)


def take_fake_step(
    model: Model,
    objective: Objective,
    batch: Batch,
    settings: Settings,
    mesh: Mesh,
    gathers_model: bool = False,
    is_accumulated: bool = False,
) -> FakeStep:
    """Shard a model that was built on the device "meta", run one micro-batch as rank 0, and return what it took.

    With `is_accumulated`, the gradients of earlier micro-batches are there already: in shares, or whole ones of one
    more micro-batch that runs before, where the whole model is gathered.
    """
    if dist.is_initialized():
        raise UserError("A plan is checked in one process: run etude check without torchrun.")
    ranks = Ranks(0, mesh.copies * mesh.shards)
    with _fake_group(ranks.size):
        device_mesh = sharding.build_mesh(ranks, torch.device("cpu"), mesh.copies > 1, mesh.shards)
        trunks = [model, *objective.trunks()]
        learner = Learner(model, objective)
        recomputation.set_recompute(trunks, settings.recompute)
        layers = [] if gathers_model else recomputation.list_layers(trunks)
        sharding.shard(learner, layers, device_mesh, settings)
        with FakeTensorMode(allow_non_fake_inputs=True):
            learner.to_empty(device="cpu")
            named = [(name, p) for name, p in learner.named_parameters() if p.requires_grad]
            optimizer = optim.build(settings, named, None, sharding.MatrixExchange(device_mesh))
            states = optim.state_tensors(optimizer, named)
            if is_accumulated and not gathers_model:
                for _, parameter in named:
                    parameter.grad = torch.zeros_like(parameter)
            gradients = [p.grad for _, p in named if p.grad is not None]
            held = [*gradients, *(p for _, p in named), *learner.buffers(), *states.values()]
            tracker = StepTracker(map(_local, held))
            with tracker, use_large_blocks():
                if is_accumulated and gathers_model:
                    sharding.reduce_with_last(learner, False, gathers_model)
                    _run(learner, batch, settings)
                    sharding.reduce_with_last(learner, True, gathers_model)
                _run(learner, batch, settings)
            return FakeStep(
                weights=sum(_local_bytes(parameter) for _, parameter in named),
                gradients=sum(_local_bytes(p.grad) for _, p in named if p.grad is not None),
                optimizer=sum(map(_local_bytes, states.values())),
                peak=tracker.peak,
                traffic=Traffic(*tracker.bytes.values()),
            )


def _run(learner: Learner, batch: Batch, settings: Settings) -> None:
    """Run a forward and a backward pass."""
    with torch.autocast("cpu", torch.bfloat16) if settings.precision == "bf16" else nullcontext():
        loss = total_loss(learner(batch), {name: float(count) for name, count in batch.counts.items()})
    loss.backward()


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _local_bytes(tensor: Tensor) -> int:
    return _local(tensor).nbytes


@contextmanager
def _fake_group(size: int) -> Iterator[None]:
    dist.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()

"""Recordings of a CPU: a function is run again, under a mode that refuses what cannot be recorded on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from etude.nn.cuda_graphs import Graph, Tensors
from tests.train.test_recorded_step import Replay


class NoWaiting(TorchDispatchMode):
    """Refuses operations for which a host waits for its GPU: they cannot be recorded."""

    WAITING = ("_local_scalar_dense", "nonzero", "equal", "is_nonzero")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.__name__.split(".")[0] not in self.WAITING, f"{func} waits for the GPU"
        return func(*args, **(kwargs or {}))


class StrictReplay(Replay):
    """A recording of a CPU that refuses what a GPU would."""

    def replay(self) -> Tensors:
        with NoWaiting():
            return super().replay()


class Recorder:
    """Makes graphs of a CPU, and counts them and their replays."""

    def __init__(self, kind: type[StrictReplay] = StrictReplay) -> None:
        self.kind, self.graphs = kind, list[StrictReplay]()

    def __call__(self) -> Graph:
        self.graphs.append(self.kind())
        return self.graphs[-1]

    @property
    def replays(self) -> int:
        return sum(graph.replays for graph in self.graphs)


class Unrecordable(StrictReplay):
    """A graph of a library that cannot be recorded."""

    def record(self, function: Callable[[], Tensors]) -> None:
        raise RuntimeError("operation not permitted")

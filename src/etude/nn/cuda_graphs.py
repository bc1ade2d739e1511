"""Work of a GPU recorded once and replayed in one launch (CUDA graphs).

A small kernel takes a GPU less time than the host needs to launch it. A recording holds kernels and addresses: what it
reads and writes has to stay where it was. Training records whole steps (train/recorded_step.py), beam search those of
a decoder (tasks/translate/recorded_search.py), generation those of a causal model (inference/recorded_decoding.py).
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

Tensors = dict[str, Tensor]  # what a recorded function returns, on the device


class Graph(Protocol):
    """A recording of a function that reads and writes static memory."""

    hides_host: ClassVar[bool]  # whether values of the host would be baked into it

    def warm_up(self, function: Callable[[], Tensors]) -> Tensors:
        """Run a function as it is written, where it will be recorded."""

    def record(self, function: Callable[[], Tensors]) -> None:
        """Record a function without running it."""

    def replay(self) -> Tensors:
        """Run what was recorded; the results are valid until the next replay."""


class CudaGraphs:
    """Makes recordings that share one pool of memory and one stream: only one is replayed at a time.

    `frees_memory`: before the first recording, memory that ordinary steps of the same work left cached is given back,
    because the pool cannot use it. That takes a tenth of a second, and memory has to be allocated again.
    """

    def __init__(self, device: torch.device, frees_memory: bool = True) -> None:
        self.device, self.frees_memory = device, frees_memory
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()
        self._keeper: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> Graph:
        return CudaGraph(self)

    def keep_pool(self) -> None:
        """Record a graph that is never replayed: a pool whose last recording was freed cannot take another one."""
        if self._keeper is None:
            keeper = torch.cuda.CUDAGraph()
            keeper.capture_begin(self.pool, capture_error_mode="thread_local")
            torch.zeros(1, device=self.device)
            keeper.capture_end()
            self._keeper = keeper

    def free_memory(self) -> None:
        """Give cached memory back, once."""
        if self.frees_memory:
            gc.collect()
            torch.cuda.empty_cache()
            self.frees_memory = False


class CudaGraph:
    """A CUDA graph."""

    hides_host: ClassVar[bool] = True

    def __init__(self, graphs: CudaGraphs) -> None:
        self.graphs, self.stream = graphs, graphs.stream
        self.graph = torch.cuda.CUDAGraph()
        self.results: Tensors = {}

    def warm_up(self, function: Callable[[], Tensors]) -> Tensors:
        """Run on the stream of the recording: autograd remembers the stream where it first met a parameter."""
        current = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            results = function()
        current.wait_stream(self.stream)
        for value in results.values():
            value.record_stream(current)
        return results

    def record(self, function: Callable[[], Tensors]) -> None:
        """Record without the garbage collector: what it frees meanwhile (graphs of an earlier run) may break this."""
        was_enabled = gc.isenabled()
        self.graphs.free_memory()
        _forget_workspaces()
        torch.cuda.synchronize(self.stream.device)
        gc.disable()
        try:
            with torch.cuda.stream(self.stream):
                self.graphs.keep_pool()
                # thread_local: another thread may allocate meanwhile; it does not launch anything on this stream
                self.graph.capture_begin(self.graphs.pool, capture_error_mode="thread_local")
                try:
                    self.results = function()
                finally:
                    self.graph.capture_end()
        except Exception:
            self._release_generator()
            raise
        finally:
            _forget_workspaces()
            if was_enabled:
                gc.enable()

    def _release_generator(self) -> None:
        """Free the generator of random numbers, which believes that a recording that failed goes on.

        Every later draw in this process would raise "Offset increment outside graph capture"; a recording that ends
        well takes the belief away.
        """
        torch.cuda.synchronize(self.stream.device)
        value = torch.zeros(1, device=self.stream.device)
        stream = torch.cuda.Stream(self.stream.device)
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream, capture_error_mode="thread_local"):
            value.add_(1)

    def replay(self) -> Tensors:
        self.graph.replay()
        return self.results


def _forget_workspaces() -> None:
    """Let cuBLAS allocate its scratch memory anew, before a recording and after it.

    Its products write there, and so do recorded ones, to the address that they were recorded with. Allocated by a
    recording it lies in the recording's pool and stays; allocated before, anybody who records (torch's compiler, too)
    may free it.
    """
    torch._C._cuda_clearCublasWorkspaces()


def try_record(graph: Graph, function: Callable[[], Tensors], subject: str) -> bool:
    """Record a function; False, and a warning about `subject`, where a library does what cannot be recorded."""
    try:
        graph.record(function)
    except RuntimeError as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        warnings.warn(f"{subject} are not recorded as CUDA graphs: {reason}", stacklevel=2)
        return False
    return True


def find_weights(*modules: nn.Module) -> tuple[int, ...]:
    """Where the weights of modules lie: a recording is valid as long as they stay there."""
    return tuple(tensor.data_ptr() for module in modules for tensor in (*module.parameters(), *module.buffers()))

"""Processes that build steps ahead, for a GPU that waits for nobody.

A thread that builds batches holds Python's lock while the main thread wants to launch kernels; on a GPU that costs more
than the building itself. A step is a pure function of its number (design decision 2), so a process needs nothing but
numbers: it is forked, and so has the corpus, the rows and the objective already. It never touches the GPU.

What comes back lies in memory that both share, a slot a step; only sizes and shapes go through a pipe (in pickle's
frame, between a process and its own parent and never on disk). A pipe would hand over a batch in dozens of pieces, and
wait for Python's lock at each.
"""

from __future__ import annotations

import io
import itertools
import mmap
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np
import torch
from torch import Tensor

from etude.errors import UserError

SLOT = 2**28  # bytes; only what is written takes memory. A larger step goes through the pipe
_shared: dict[int, tuple[Callable[[int], Any], list[mmap.mmap]]] = {}  # filled before a fork, read after it
_numbers = itertools.count()


Built = tuple[bytes, int, list[int]]  # the frame, its slot, and the sizes of the arrays that lie there


class Pool:
    """Builds things from consecutive numbers in forked processes; at most `ahead` of them wait to be taken."""

    def __init__(self, build: Callable[[int], Any], workers: int, ahead: int) -> None:
        self.name, self.slots = next(_numbers), [mmap.mmap(-1, SLOT) for _ in range(ahead)]
        _shared[self.name] = (build, self.slots)
        self.executor = ProcessPoolExecutor(
            workers, mp_context=multiprocessing.get_context("fork"), initializer=_begin, initargs=(os.getpid(),)
        )

    def submit(self, number: int) -> Future[Built]:
        return self.executor.submit(_build, self.name, number, number % len(self.slots))

    def result(self, future: Future[Built]) -> Any:
        """What was built. Its arrays lie in the slot: they are of use until as many further steps are asked for."""
        try:
            frame, slot, sizes = future.result()
            memory = memoryview(self.slots[slot])
            parts = [memory[place : place + size] for place, size in zip(_places(sizes), sizes, strict=False)]
            return pickle.loads(frame, buffers=parts)  # from a child of this process
        except BrokenProcessPool as error:
            raise UserError(
                "A process that builds batches was killed, most often because memory ran out. Set train.workers lower "
                "(0 builds them in this process) and resume."
            ) from error

    def shutdown(self) -> None:
        self.executor.shutdown(wait=False, cancel_futures=True)
        _shared.pop(self.name, None)


class _Frame(pickle.Pickler):
    """Tensors as plain memory, which goes into the slot; arrays of the host, which are small, stay in the frame."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            array = value.contiguous().numpy()
            return _tensor, (pickle.PickleBuffer(array), array.dtype.str, array.shape)  # type: ignore[arg-type]
        return value.__reduce__() if isinstance(value, np.ndarray) else NotImplemented


def _tensor(memory: Any, dtype: str, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(np.frombuffer(memory, dtype).reshape(shape))


def _build(name: int, number: int, slot: int) -> Built:
    build, slots = _shared[name]
    made, frame = build(number), io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    _Frame(frame, protocol=5, buffer_callback=buffers.append).dump(made)
    parts = [buffer.raw() for buffer in buffers]
    sizes = [part.nbytes for part in parts]
    places = _places(sizes)
    if places[-1] > SLOT:
        frame = io.BytesIO()
        _Frame(frame, protocol=5).dump(made)
        return frame.getvalue(), slot, []
    for place, part in zip(places, parts, strict=False):
        slots[slot][place : place + part.nbytes] = part
    return frame.getvalue(), slot, sizes


def _places(sizes: list[int]) -> list[int]:
    """Where parts of these sizes begin, and the end: at multiples of 64, as processors like it."""
    return list(itertools.accumulate((-(-size // 64) * 64 for size in sizes), initial=0))


def _begin(parent: int) -> None:
    """A child leaves signals to its parent, uses one thread, and ends with it, whatever way that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all of a terminal's processes
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)

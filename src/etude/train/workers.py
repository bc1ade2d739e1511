"""Processes that build steps ahead, for a GPU that waits for nobody.

A thread that builds batches holds Python's lock while the main thread wants to launch kernels; on a GPU that costs more
than the building itself. A step is a pure function of its number (design decision 2), so a process needs nothing but
numbers: it is forked, and so has the corpus, the rows and the objective already. It never touches the GPU.

What comes back is bytes: numpy arrays in pickle's frame, between a process and its own parent and never on disk.
"""

from __future__ import annotations

import io
import itertools
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

import torch
from torch import Tensor

from etude.errors import UserError

_builders: dict[int, Callable[[int], Any]] = {}  # filled before a fork, read after it
_numbers = itertools.count()


class Pool:
    """Builds things from numbers in forked processes; results in the order they were asked for."""

    def __init__(self, build: Callable[[int], Any], workers: int) -> None:
        self.name = next(_numbers)
        _builders[self.name] = build
        self.executor = ProcessPoolExecutor(
            workers, mp_context=multiprocessing.get_context("fork"), initializer=_begin, initargs=(os.getpid(),)
        )

    def submit(self, number: int) -> Future[bytes]:
        return self.executor.submit(_build, self.name, number)

    def result(self, future: Future[bytes]) -> Any:
        try:
            return pickle.loads(future.result())  # from a child of this process
        except BrokenProcessPool as error:
            raise UserError(
                "A process that builds batches was killed, most often because memory ran out. Set train.workers lower "
                "(0 builds them in this process) and resume."
            ) from error

    def shutdown(self) -> None:
        self.executor.shutdown(wait=False, cancel_futures=True)
        _builders.pop(self.name, None)


class _Frame(pickle.Pickler):
    """Tensors as numpy arrays: torch's own way passes file descriptors, many of them and slowly."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return torch.from_numpy, (value.numpy(),)
        return NotImplemented


def _build(name: int, number: int) -> bytes:
    buffer = io.BytesIO()
    _Frame(buffer, protocol=5).dump(_builders[name](number))
    return buffer.getvalue()


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

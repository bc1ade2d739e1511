"""Processes that build steps ahead, for a GPU that waits for nobody.

A thread that builds batches holds Python's lock while the main thread wants to launch kernels; on a GPU that costs more
than the building itself. A step is a pure function of its number (design decision 2), so a process needs nothing but
numbers: it is forked, and so has the corpus, the rows and the objective already. It never touches the GPU.

Steps go to the processes in turn, a pipe each, and the main thread reads the answers itself: no further thread waits
for Python's lock. What comes back lies in memory that a process shares with its parent, two slots a process, so that
it soon writes only to pages it knows; only sizes and shapes go through the pipe (in pickle's frame, between a process
and its own parent and never on disk). A pipe would hand over a batch in dozens of pieces.
"""

from __future__ import annotations

import gc
import io
import itertools
import mmap
import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import Tensor

from etude.errors import UserError
from etude.train import malloc

SLOT = 2**27  # bytes; only what is written takes memory. A larger step goes through the pipe
SLOTS = 2  # a process: it writes to one while the other waits to be taken
MOST = 8  # processes by default: one makes a million tokens a second or more, and the GPU's own process needs cores too


def default_workers(ranks: int = 1) -> int:
    """Processes for one GPU of `ranks` that share this machine: what its cores allow, two left to the GPU's own."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST, max(1, cores // ranks - 2))


class Pool:
    """Builds things from numbers in forked processes, in turn; at most SLOTS for each of them are under way."""

    def __init__(self, build: Callable[[int], Any], workers: int) -> None:
        self.workers = [_Worker(build) for _ in range(workers)]
        self.turn = itertools.cycle(self.workers)

    def submit(self, number: int) -> _Worker:
        worker = next(self.turn)
        worker.ask(number)
        return worker

    def result(self, worker: _Worker) -> Any:
        """What was built. Its arrays lie in a slot: they are of use until all processes are asked for SLOTS more."""
        return worker.answer()

    def shutdown(self) -> None:
        for worker in self.workers:
            worker.pipe.close()
            worker.process.kill()  # it holds nothing but memory
        for worker in self.workers:
            worker.process.join(5)  # at most: it is gone at once unless the system is stuck


class _Worker:
    def __init__(self, build: Callable[[int], Any]) -> None:
        self.slots = [mmap.mmap(-1, SLOT) for _ in range(SLOTS)]
        self.pipe, far = multiprocessing.Pipe()
        self.process = multiprocessing.get_context("fork").Process(
            target=_serve, args=(build, far, self.slots, os.getpid()), daemon=True, name="etude-loader"
        )
        self.process.start()
        far.close()  # only the child has it: its death is the end of the pipe

    def ask(self, number: int) -> None:
        try:
            self.pipe.send(number)
        except OSError as error:
            raise _killed() from error

    def answer(self) -> Any:
        try:
            problem, frame, slot, sizes = self.pipe.recv()  # from a child of this process
        except (EOFError, OSError) as error:
            raise _killed() from error
        if problem is not None:
            raise problem
        memory = memoryview(self.slots[slot])
        parts = [memory[place : place + size] for place, size in zip(_places(sizes), sizes, strict=False)]
        return pickle.loads(frame, buffers=parts)


def _killed() -> UserError:
    return UserError(
        "A process that builds batches was killed, most often because memory ran out. Set train.workers lower "
        "(0 builds them in this process) and resume."
    )


class _Frame(pickle.Pickler):
    """Tensors as plain memory, which goes into the slot; arrays of the host, which are small, stay in the frame."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            array = value.contiguous().numpy()
            return _tensor, (pickle.PickleBuffer(array), array.dtype.str, array.shape)  # type: ignore[arg-type]
        return value.__reduce__() if isinstance(value, np.ndarray) else NotImplemented


def _tensor(memory: Any, dtype: str, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(np.frombuffer(memory, dtype).reshape(shape))


# --- in the child -----------------------------------------------------------------------------------


def _serve(build: Callable[[int], Any], pipe: Connection, slots: list[mmap.mmap], parent: int) -> None:
    _begin(parent)
    for slot in itertools.cycle(range(len(slots))):
        try:
            number = pipe.recv()
        except EOFError:
            return
        answer: tuple[Exception | None, bytes, int, list[int]]
        try:
            answer = (None, *_written(build(number), slots[slot], slot))
        except Exception as problem:
            answer = (_told(problem), b"", slot, [])
        try:
            pipe.send(answer)
        except BrokenPipeError:
            return


def _written(made: Any, memory: mmap.mmap, slot: int) -> tuple[bytes, int, list[int]]:
    """The frame, its slot, and the sizes of the arrays that lie there."""
    frame = io.BytesIO()
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
        memory[place : place + part.nbytes] = part
    return frame.getvalue(), slot, sizes


def _places(sizes: list[int]) -> list[int]:
    """Where parts of these sizes begin, and the end: at multiples of 64, as processors like it."""
    return list(itertools.accumulate((-(-size // 64) * 64 for size in sizes), initial=0))


def _told(problem: Exception) -> Exception:
    """What went wrong in a form that passes through a pipe, with where it did."""
    problem.add_note("In a process that builds batches:\n" + "".join(traceback.format_exception(problem)))
    try:
        pickle.loads(pickle.dumps(problem))
        return problem
    except Exception:
        return RuntimeError("".join(traceback.format_exception(problem)))


def _begin(parent: int) -> None:
    """A child leaves signals to its parent, uses one thread, and ends with it, whatever way that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all of a terminal's processes
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    gc.freeze()  # what the parent had is never garbage here: looking through it would copy its pages
    malloc.keep_freed_memory()  # arrays come and go with every step: a thousand page faults each time otherwise
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)

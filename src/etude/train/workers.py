"""Worker processes that build steps ahead, so that a GPU never waits for a batch.

A thread that builds batches holds Python's lock while the main thread wants to launch kernels; on a GPU that costs more
than the building itself. A step is a pure function of its number (design decision 2), so a process needs nothing but
numbers: it is forked, and so has the corpus, the rows and the objective already. It never touches the GPU.

Steps go to the processes in turn, through a pipe each, and the main thread reads the results itself: no further thread
waits for Python's lock. Results lie in memory that a process shares with its parent, two slots a process, so that it
soon writes only to mapped pages; only sizes and shapes go through the pipe (in pickle's format, between a process and
its own parent and never on disk). A pipe would hand over a batch in dozens of pieces.
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
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from etude.cores import count_cores
from etude.errors import UserError
from etude.train import malloc

SLOT_BYTES = 2**27  # only written pages take memory; a larger step goes through the pipe
SLOTS = 2  # of a process: it writes to one while the other waits to be read
MAX_WORKERS = 8  # by default: one builds a million tokens a second or more, and the GPU's own process needs cores, too

T = TypeVar("T")


def default_workers(ranks: int = 1) -> int:
    """Return the worker processes of one GPU where `ranks` share this machine; two cores are left for the GPU's own."""
    return min(MAX_WORKERS, max(1, count_cores() // ranks - 2))


class ProcessPool(Generic[T]):
    """Forked processes that build objects from numbers, in turn; each has at most SLOTS in flight."""

    def __init__(self, build: Callable[[int], T], workers: int) -> None:
        self.workers = [Worker(build) for _ in range(workers)]
        self.next_worker = itertools.cycle(self.workers)

    def submit(self, number: int) -> Worker[T]:
        """Send a number to the next process."""
        worker = next(self.next_worker)
        worker.send(number)
        return worker

    def result(self, worker: Worker[T]) -> T:
        """Wait for a process's next result. Its arrays lie in a slot: valid until SLOTS more are submitted to each."""
        return worker.receive()

    def shutdown(self) -> None:
        """Kill all processes: they hold nothing but memory."""
        for worker in self.workers:
            worker.pipe.close()
            worker.process.kill()
        for worker in self.workers:
            worker.process.join(5)  # at most: it ends at once unless the system is stuck


class Worker(Generic[T]):
    """The parent's end of one process: its pipe and its slots."""

    def __init__(self, build: Callable[[int], T]) -> None:
        self.slots = [mmap.mmap(-1, SLOT_BYTES) for _ in range(SLOTS)]
        self.pipe, child_pipe = multiprocessing.Pipe()
        self.process = multiprocessing.get_context("fork").Process(
            target=_serve, args=(build, child_pipe, self.slots, os.getpid()), daemon=True, name="etude-loader"
        )
        self.process.start()
        child_pipe.close()  # only the child holds it: its death ends the pipe

    def send(self, number: int) -> None:
        """Request an object."""
        try:
            self.pipe.send(number)
        except OSError as error:
            raise _killed_error() from error

    def receive(self) -> T:
        """Read the next object, or raise what building it raised."""
        try:
            failure, frame, slot, sizes = self.pipe.recv()  # from a child of this process
        except (EOFError, OSError) as error:
            raise _killed_error() from error
        if failure is not None:
            raise failure
        memory = memoryview(self.slots[slot])
        buffers = [memory[start : start + size] for start, size in zip(_offsets(sizes), sizes, strict=False)]
        result: T = pickle.loads(frame, buffers=buffers)
        return result


def _killed_error() -> UserError:
    return UserError(
        "A process that builds batches was killed, most often because memory ran out. Set train.workers lower "
        "(0 builds batches in the main process) and resume."
    )


class _FramePickler(pickle.Pickler):
    """Pickles tensors out of band, into a slot; numpy arrays of the host are small and stay in the frame."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            array = value.contiguous().numpy()
            return _to_tensor, (pickle.PickleBuffer(array), array.dtype.str, array.shape)  # type: ignore[arg-type]
        return value.__reduce__() if isinstance(value, np.ndarray) else NotImplemented


def _to_tensor(memory: memoryview, dtype: str, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(np.frombuffer(memory, dtype).reshape(shape))


# --- in the child -----------------------------------------------------------------------------------


def _serve(build: Callable[[int], object], pipe: Connection, slots: list[mmap.mmap], parent: int) -> None:
    """Build an object for every number read, until the pipe ends."""
    _set_up_child(parent)
    for slot in itertools.cycle(range(len(slots))):
        try:
            number = pipe.recv()
        except EOFError:
            return
        message: tuple[Exception | None, bytes, int, list[int]]
        try:
            message = (None, *_write_to_slot(build(number), slots[slot], slot))
        except Exception as failure:
            message = (_make_picklable(failure), b"", slot, [])
        try:
            pipe.send(message)
        except BrokenPipeError:
            return


def _write_to_slot(result: object, memory: mmap.mmap, slot: int) -> tuple[bytes, int, list[int]]:
    """Write the arrays of a result to a slot; return the frame, the slot, and the sizes of the arrays."""
    frame = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    _FramePickler(frame, protocol=5, buffer_callback=buffers.append).dump(result)
    arrays = [buffer.raw() for buffer in buffers]
    sizes = [array.nbytes for array in arrays]
    offsets = _offsets(sizes)
    if offsets[-1] > SLOT_BYTES:
        frame = io.BytesIO()
        _FramePickler(frame, protocol=5).dump(result)
        return frame.getvalue(), slot, []
    for start, array in zip(offsets, arrays, strict=False):
        memory[start : start + array.nbytes] = array
    return frame.getvalue(), slot, sizes


def _offsets(sizes: list[int]) -> list[int]:
    """Return where arrays of these sizes start, aligned to 64 bytes, and where the last one ends."""
    return list(itertools.accumulate((-(-size // 64) * 64 for size in sizes), initial=0))


def _make_picklable(failure: Exception) -> Exception:
    """Return an exception in a form that passes through a pipe, with its traceback as a note."""
    failure.add_note("In a process that builds batches:\n" + "".join(traceback.format_exception(failure)))
    try:
        pickle.loads(pickle.dumps(failure))
        return failure
    except Exception:
        return RuntimeError("".join(traceback.format_exception(failure)))


def _set_up_child(parent: int) -> None:
    """Leave signals to the parent, use one thread, and end when the parent ends, in whatever way."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    gc.freeze()  # the parent's objects are never garbage here: scanning them would copy their pages
    malloc.keep_freed_memory()  # arrays come and go with every step: a thousand page faults each time otherwise
    threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()


def _exit_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)

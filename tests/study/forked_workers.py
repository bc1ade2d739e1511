"""Workers of a study for tests: forked from a server that has torch in memory, which takes seconds to import."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from etude.errors import UserError
from etude.study import execute, worker
from etude.study.cells import Cell, CellStore
from etude.study.execute import CellResult

Prepare = Callable[[], None]


class ForkedWorker:
    """What the tests and `ProcessExecutor` use of `subprocess.Popen`, of a worker in a process of its own.

    `prepare` replaces what the worker is not to do itself; it is a function of a module.
    """

    def __init__(self, prepare: Prepare, folder: Path) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.hostile.warm", __name__])  # a process has one server for all its tests
        orders, self._orders = context.Pipe(duplex=False)
        self._replies, replies = context.Pipe(duplex=False)
        self.process = context.Process(target=_work, args=(prepare, folder, orders, replies))
        self.process.start()
        orders.close()
        replies.close()
        self.stdin = os.fdopen(os.dup(self._orders.fileno()), "w", encoding="utf-8")
        self.stdout = os.fdopen(os.dup(self._replies.fileno()), encoding="utf-8")
        self._orders.close()
        self._replies.close()
        assert self.process.pid is not None
        self.pid = self.process.pid

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired("a worker", timeout or 0.0)
        return self.process.exitcode

    def kill(self) -> None:
        self.process.kill()


def _work(prepare: Prepare, folder: Path, orders: Connection, replies: Connection) -> None:
    """Be the worker, as `python -m etude.study.worker FOLDER` is."""
    os.dup2(orders.fileno(), 0)
    os.dup2(replies.fileno(), 1)
    orders.close()
    replies.close()
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.argv = ["worker", str(folder)]
    torch.set_num_threads(1)
    prepare()
    worker.main()


def let_cells_fork() -> None:
    """Each cell forks a process, and says how that ended."""

    def fork(cell: Cell, folder: Path) -> CellResult:
        child = multiprocessing.get_context("fork").Process(target=int)
        child.start()
        child.join(120)
        return CellResult(cell.key, "hangs" if child.is_alive() else f"ended with {child.exitcode}")

    execute.run_cell = fork


def let_memory_stay() -> None:
    """Each cell says what came before it; memory stays after the second, and the GPU is lost after the third."""
    states, retained = iter([True, True, False]), iter([False, True])
    events: list[str] = []

    def run(cell: Cell, folder: Path) -> CellResult:
        events.append("cell")
        if len(events) == 3:
            raise ValueError("nobody foresaw this")
        return CellResult(cell.key, " ".join(events))

    def release() -> bool:
        events.append("release")
        return next(states)

    execute.run_cell, execute.release_memory, execute.retains_memory = run, release, lambda: next(retained)


def share_a_gpu() -> None:
    """Cells share a GPU that holds one of them; the first stays until another has found no room."""

    def run(cell: Cell, store: CellStore, work: Path, quiet: bool) -> dict[str, Any]:
        first_loss, shortage, taken = (store.folder / name for name in (".lost", ".shortage", ".taken"))
        if cell.title == "lost" and not first_loss.exists():
            first_loss.touch()
            raise torch.AcceleratorError("CUDA error: unspecified launch failure")
        try:
            taken.touch(exist_ok=False)
        except FileExistsError:
            shortage.touch()
            raise UserError("Memory ran out on the GPU.") from torch.OutOfMemoryError("CUDA out of memory.")
        deadline = time.monotonic() + 120
        while not shortage.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        taken.unlink()
        return {"seconds": 1.0}

    execute.CELL_RUNNERS["pretrain"] = run

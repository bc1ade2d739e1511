"""Executors of cells: this process, several local processes, or a Ray cluster.

All three accept a cell when it is ready and return its result; order, dependencies and what is tried again belong to
`queue.py`. Worker processes exchange lines of JSON. One that dies loses only its own cell and is replaced, and so is
one whose GPU was lost or that cannot give its memory back; when the parent dies, its children see their input end and
stop at once, which loses nothing (see cells.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from etude.cores import count_cores
from etude.errors import UserError
from etude.extras import require
from etude.startup import interrupts_held_back
from etude.study.cells import Cell
from etude.study.execute import CellResult, release_memory, run_cell


class Executor(Protocol):
    @property
    def slots(self) -> int:
        """Cells that can run at once."""
        ...

    def submit(self, cell: Cell) -> None: ...

    def wait(self) -> CellResult:
        """Wait for the next cell that finishes."""
        ...

    def shares_memory(self, cell: Cell) -> bool:
        """Whether cells that run at the same time may take the memory that this one needs."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: Any) -> None: ...


class SerialExecutor:
    """Runs one cell after another in this process."""

    slots = 1

    def __init__(self, folder: Path, quiet: bool = True) -> None:
        self.folder, self.quiet = folder, quiet
        self.waiting: list[Cell] = []

    def submit(self, cell: Cell) -> None:
        self.waiting.append(cell)

    def wait(self) -> CellResult:
        """Run the next cell; UserError where this process has lost its GPU, since every other cell would fail, too."""
        cell = self.waiting.pop(0)
        result = run_cell(cell, self.folder, self.quiet)
        release_memory()
        if result.lost:
            raise UserError(f"{cell.title}: {result.error} What is done is kept, and it goes on from its checkpoint.")
        return result

    def shares_memory(self, cell: Cell) -> bool:
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        return


# --- processes of this machine ----------------------------------------------------------------------


def count_threads(workers: int) -> int:
    """Return the threads of each of several processes: more of them than cores slow each other down."""
    own = os.environ.get("OMP_NUM_THREADS", "")
    return int(own) if own.isdecimal() and int(own) else max(1, count_cores() // workers)


RECOVERY = 120.0  # seconds that a new process waits for those that lost the same GPU to end


@dataclass
class Worker:
    """A process that runs cells, one at a time."""

    number: int
    process: subprocess.Popen[str]
    gpu: str | None = None
    is_busy: bool = False
    is_suspect: bool = False  # another process lost their GPU since its cell began: it may have lost it, too


class ProcessExecutor:
    """Runs cells in processes of this machine, which share its GPUs."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.folder, self.slots = folder, workers
        self.pending: queue.Queue[Cell | None] = queue.Queue()
        self.results: queue.Queue[CellResult] = queue.Queue()
        self.workers: dict[int, Worker] = {}
        self.changed = threading.Condition()  # held while workers are looked at
        self.lost_at, self.is_closed = -RECOVERY, False
        self.gpus = _list_gpus()
        self.threads = [
            threading.Thread(target=self._serve, args=(number,), daemon=True, name=f"etude-cells-{number}")
            for number in range(workers)
        ]

    def submit(self, cell: Cell) -> None:
        self.pending.put(cell)

    def wait(self) -> CellResult:
        return self.results.get()

    def shares_memory(self, cell: Cell) -> bool:
        """Whether there are more processes than GPUs, or none of these."""
        return not self.gpus or self.slots > len(self.gpus)

    def _serve(self, number: int) -> None:
        """Feed cells to one worker process, and to another one when it dies or loses its GPU."""
        while (cell := self.pending.get()) is not None:
            try:
                result = self._run_in(self._take_worker(number), cell)
            except Exception as error:  # a process that cannot start: whoever waits for the cell would wait for ever
                result = CellResult(cell.key, f"its process could not run it: {error}")
            self._put_back(number, result)
            self.results.put(result)

    def _take_worker(self, number: int) -> Worker:
        """Return the process of a thread, or a new one."""
        with self.changed:
            worker = self.workers.get(number)
            if worker is None or worker.process.poll() is not None:
                # under NVIDIA's MPS nobody gets the device before all that lost it have gone
                gpu, patience = self._choose_gpu(number), self.lost_at + RECOVERY - time.monotonic()
                self.changed.wait_for(lambda: self.is_closed or not self._has_suspects(gpu), max(0.0, patience))
                if self.is_closed:
                    raise RuntimeError("the study has ended")
                worker = self.workers[number] = self._start_worker(number)
            worker.is_busy = True
        return worker

    def _put_back(self, number: int, result: CellResult) -> None:
        """Let a process wait for its next cell; where its GPU was lost, end it and all that wait with the same one."""
        with self.changed:
            if (worker := self.workers.get(number)) is None:
                return
            worker.is_busy = worker.is_suspect = False  # it was asked whether its GPU is there
            if result.lost:
                self.lost_at = time.monotonic()
                for neighbour in [found for found in self.workers.values() if found.gpu == worker.gpu]:
                    neighbour.is_suspect = neighbour.is_busy
                    if not neighbour.is_busy:
                        self._stop(neighbour)
            elif result.retains_memory:
                self._stop(worker)
            self.changed.notify_all()

    def _stop(self, worker: Worker) -> None:
        """End a process that runs no cell, whatever the state that its GPU left it in."""
        del self.workers[worker.number]
        _close_input(worker.process)
        try:
            worker.process.wait(RECOVERY)
        except subprocess.TimeoutExpired:
            worker.process.kill()

    def _has_suspects(self, gpu: str | None) -> bool:
        return any(worker.gpu == gpu and worker.is_suspect for worker in self.workers.values())

    def _choose_gpu(self, number: int) -> str | None:
        return self.gpus[number % len(self.gpus)] if self.gpus else None

    def _start_worker(self, number: int) -> Worker:
        environment = {**os.environ, "OMP_NUM_THREADS": str(count_threads(self.slots))}
        gpu = self._choose_gpu(number)
        if gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = gpu
        paths = [str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        with interrupts_held_back():
            process = subprocess.Popen(
                [sys.executable, "-m", "etude.study.worker", str(self.folder)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment,
            )  # fmt: skip
        return Worker(number, process, gpu)

    def _run_in(self, worker: Worker, cell: Cell) -> CellResult:
        process = worker.process
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(cell.dump() + "\n")
            process.stdin.flush()
            reply = process.stdout.readline()
        except (OSError, ValueError):
            reply = ""
        if not reply:
            code = process.wait()
            ending = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            return CellResult(
                cell.key, f"its process {ending}; memory may have run out. Run the study again to try it again."
            )
        return CellResult(**json.loads(reply))

    def __enter__(self) -> Self:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for _ in self.threads:
            self.pending.put(None)
        with self.changed:
            self.is_closed = True
            self.changed.notify_all()
            workers = list(self.workers.values())
        for worker in workers:
            _close_input(worker.process)
        for worker in workers:
            worker.process.wait()


def _close_input(process: subprocess.Popen[str]) -> None:
    """Let a worker see the end of its input: it stops."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):  # of one that died with a cell half written to it
            process.stdin.close()


def _list_gpus() -> list[str]:
    """List the GPUs that may be used, without initialising CUDA in this process."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible:
        return visible.split(",")
    return [str(number) for number in range(torch.cuda.device_count())]


# --- a Ray cluster ----------------------------------------------------------------------------------


RETRIES = 1  # of a cell whose process dies: memory may have run out, and would again
COUNTED_EVERY = 10.0  # seconds after which the machines of a cluster are counted again


@dataclass
class RayTask:
    """A cell on the cluster: how often its process died, and the machines that there were when it began."""

    cell: Cell
    deaths: int
    machines: frozenset[str]


def connect_ray(ray: Any) -> None:
    """Connect to the cluster that RAY_ADDRESS names; without one, this machine is it. Workers import this code."""
    paths = [str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {"PYTHONPATH": os.pathsep.join(paths)}
    if os.environ.get("OMP_NUM_THREADS"):
        variables["OMP_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"]
    ray.init(runtime_env={"env_vars": variables}, log_to_driver=False, logging_level="ERROR")


def list_machines(ray: Any) -> frozenset[str]:
    """Return the machines of a cluster that live, as Ray names them."""
    return frozenset(node["NodeID"] for node in ray.nodes() if node["Alive"])


class RayExecutor:
    """Runs each cell as a Ray task. All machines must see the study's folder under the same path.

    A cell on a machine that is lost goes to another one, as often as that happens, and goes on from its checkpoint; one
    that is done is not done again (execute.py). Needs may be parts of a GPU: small cells share one, and a cell
    that ran out of memory gets a part twice as large.
    """

    def __init__(self, folder: Path) -> None:
        require("ray", "--on ray")
        import ray

        self.ray: Any = ray
        self.folder = folder.resolve()
        self.owns_cluster = not ray.is_initialized()
        self.running: dict[Any, RayTask] = {}
        self.exhausted: dict[str, float] = {}  # parts of a GPU whose memory ran out, by cell
        self.counted, self.cpus = -COUNTED_EVERY, 1

    @property
    def slots(self) -> int:
        """Twice the CPUs of the cluster as it is now: more than run, since the queue is Ray's."""
        if time.monotonic() - self.counted > COUNTED_EVERY:
            self.cpus = int(self.ray.cluster_resources().get("CPU", 1))
            self.counted = time.monotonic()
        return max(2, 2 * self.cpus)

    def __enter__(self) -> Self:
        if self.owns_cluster:
            connect_ray(self.ray)
        return self

    def submit(self, cell: Cell) -> None:
        self._submit(cell, deaths=0)

    def _submit(self, cell: Cell, deaths: int) -> None:
        # Ray itself cannot tell a machine that went from a cell that ends its process
        task = self.ray.remote(_run_remote).options(
            num_cpus=cell.needs.get("cpus", 1), num_gpus=self._count_gpus(cell), max_retries=0
        )
        result = task.remote(cell.dump(), str(self.folder), deaths >= RETRIES)
        self.running[result] = RayTask(cell, deaths, list_machines(self.ray))

    def _count_gpus(self, cell: Cell) -> float:
        if cell.key in self.exhausted:
            return min(1.0, 2 * self.exhausted[cell.key])
        return cell.needs.get("gpus", 0)

    def wait(self) -> CellResult:
        while True:
            ready, _ = self.ray.wait(list(self.running), num_returns=1)
            task = self.running.pop(ready[0])
            try:
                result = CellResult(**json.loads(self.ray.get(ready[0])))
                if result.out_of_memory:
                    self.exhausted[result.key] = self._count_gpus(task.cell)
                return result
            except Exception as error:  # a node that went, a worker that was killed: Ray has many classes for it
                is_lost = type(error).__name__ == "NodeDiedError" or not task.machines <= list_machines(self.ray)
                if not is_lost and task.deaths >= RETRIES:
                    return CellResult(task.cell.key, f"Ray lost it: {str(error).strip().splitlines()[-1]}")
                self._submit(task.cell, task.deaths + (not is_lost))

    def shares_memory(self, cell: Cell) -> bool:
        """Whether a cell had a part of a GPU, of which there is more; machines and their memory are Ray's to share."""
        return 0 < self.exhausted.get(cell.key, cell.needs.get("gpus", 0)) < 1

    def __exit__(self, *_: Any) -> None:
        if self.owns_cluster:
            self.ray.shutdown()


def _run_remote(cell: str, folder: str, is_last: bool) -> str:
    """Run a cell on a machine of the cluster; arguments and result are JSON text.

    Ray keeps processes: one that lost its GPU ends, which makes Ray start another for the cell unless this `is_last`.
    """
    result = run_cell(Cell.parse(cell), Path(folder))
    release_memory()
    if result.lost and not is_last:
        os._exit(1)
    return json.dumps(vars(replace(result, lost=False)))

"""Worker processes of a pick, so that small contenders share a GPU.

A small model leaves most of a GPU idle: the host needs longer to launch its kernels than the GPU to run them. Several
processes launch at once. Threads would not do: they share Python's lock, and compilation is not safe in threads.

A process keeps torch and its context of the GPU from one piece of work to the next. One that dies loses only its own
piece, and one that does not end by its deadline is ended; either is replaced.
"""

from __future__ import annotations

import json
import os
import queue
import select
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from etude.cores import count_cores
from etude.errors import WriteError
from etude.startup import interrupts_held_back

GRACE = 15.0  # seconds after its deadline that a process may take to write what it has
MAX_SLOTS = 4  # small models at once: more share the same card, and each gets less of it
CORES_PER_SLOT = 2  # one to launch kernels, one to build batches


def count_slots(device: str) -> int:
    """How many contenders run at once: one where there is no GPU to share, or no cores to share it from."""
    return min(MAX_SLOTS, max(1, count_cores() // CORES_PER_SLOT)) if device.startswith("cuda") else 1


@dataclass(frozen=True)
class Job:
    """A piece of work for a process: JSON-ready, its result goes to the store."""

    kind: Literal["pretrain", "finetune"]
    work: dict[str, Any]
    store: Path
    deadline: float  # of time.monotonic, which all processes of a machine share
    seconds: float | None = None  # it may take from when it begins

    def dump(self) -> str:
        return json.dumps({**vars(self), "store": str(self.store)})

    @property
    def time_left(self) -> float:
        """Seconds that it may take if it begins now."""
        left = self.deadline - time.monotonic()
        return left if self.seconds is None else min(left, self.seconds)


class WorkerPool:
    """`slots` processes at most; each starts when it is first needed. Messages of theirs go to a file in `folder`."""

    shares_device = True  # so those that run at once take as many times longer

    def __init__(self, slots: int, folder: Path) -> None:
        self.slots, self.folder = slots, folder
        self.idle: queue.SimpleQueue[subprocess.Popen[str]] = queue.SimpleQueue()
        self.processes: list[subprocess.Popen[str]] = []
        self.threads = ThreadPoolExecutor(slots, thread_name_prefix="etude-pick")

    def submit(self, job: Job) -> Future[str | None]:
        """Begin a piece of work as soon as a process is free; the result is an error, or None where it went well."""
        return self.threads.submit(self._run, job)

    def _run(self, job: Job) -> str | None:
        if job.time_left <= 0:
            return "there was no time for it"
        try:
            process = self.idle.get_nowait()
        except queue.Empty:
            process = self._start()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(job.dump() + "\n")
            process.stdin.flush()
            is_ready = bool(select.select([process.stdout], [], [], max(0.0, job.time_left) + GRACE)[0])
            reply = process.stdout.readline() if is_ready else ""
        except (OSError, ValueError):
            is_ready, reply = True, ""
        if not reply:
            process.kill()
            code = process.wait()
            return f"its process ended with code {code}" if is_ready else "it did not end by its deadline"
        self.idle.put(process)
        answer = json.loads(reply)
        error: str | None = answer["error"]
        if answer.get("unwritten"):  # the disk's failure ends the pick; it is no failure of the contender
            raise WriteError(error)
        return error

    def _start(self) -> subprocess.Popen[str]:
        paths = [str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "OMP_NUM_THREADS": str(max(1, count_cores() // self.slots))}
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        with (self.folder / "workers.log").open("a", encoding="utf-8") as messages, interrupts_held_back():
            process = subprocess.Popen(
                [sys.executable, "-m", "etude.pick.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=messages, text=True, encoding="utf-8", env=environment,
            )  # fmt: skip
        self.processes.append(process)
        return process

    def close(self) -> None:
        """End the processes: they see the end of their input."""
        self.threads.shutdown(wait=False, cancel_futures=True)
        for process in self.processes:
            if process.stdin is not None:
                process.stdin.close()
        for process in self.processes:
            process.wait()

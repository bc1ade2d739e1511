"""A pool of worker processes that returns results in the order of the requests."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from etude.errors import UserError, WriteError
from etude.startup import interrupts_held_back
from etude.text.prepare import messages
from etude.text.prepare.worker import RequestHandler

# one thread a worker: the processes are the parallelism
SINGLE_THREADED = {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class WorkerError(WriteError):
    """A worker that died in the middle of the work, most often for want of memory.

    As with a failing disk, it is nobody's mistake in the input: what is complete stays, and the same command goes on.
    """


class Pool(Protocol):
    """Workers that handle requests: processes of this machine, or tasks on a cluster (ray_pool.py)."""

    @property
    def workers(self) -> int: ...

    def broadcast(self, request: messages.Message) -> None: ...

    def map(self, requests: Iterable[messages.Message]) -> Iterator[messages.Message]: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class WorkerPool:
    """A pool of `workers` processes; with 0 this process does the work."""

    def __init__(self, workers: int, threads: bool = False) -> None:
        """`threads`: whether one worker may use all cores."""
        self._workers = workers
        self.processes: list[subprocess.Popen[bytes]] = []
        self.handler = RequestHandler()
        if not workers:
            return
        threading = {"TOKENIZERS_PARALLELISM": "true"} if threads else SINGLE_THREADED
        root = str(Path(__file__).resolve().parents[3])  # where the package lies, installed or not
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-m", "etude.text.prepare.worker"]
        environment = {**os.environ, **threading, "PYTHONPATH": path}
        for _ in range(workers):
            with interrupts_held_back():
                process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
            self.processes.append(process)
        self.threads = ThreadPoolExecutor(workers)
        self.idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        for process in self.processes:
            self.idle.put(process)

    @property
    def workers(self) -> int:
        return self._workers

    def broadcast(self, request: messages.Message) -> None:
        """Send one request to every worker; none may be busy."""
        for process in self.processes:
            check_result(self._exchange(process, request))
        if not self.processes:
            check_result(self.handler.handle(*request))

    def map(self, requests: Iterable[messages.Message]) -> Iterator[messages.Message]:
        """Yield the results in order. At most two requests a worker are in flight, so memory stays bounded."""
        if not self.processes:
            yield from (check_result(self.handler.handle(*request)) for request in requests)
            return
        in_flight: deque[Future[messages.Message]] = deque()
        for request in requests:
            in_flight.append(self.threads.submit(self._process_request, request))
            if len(in_flight) >= 2 * self.workers:
                yield check_result(in_flight.popleft().result())
        while in_flight:
            yield check_result(in_flight.popleft().result())

    def _process_request(self, request: messages.Message) -> messages.Message:
        process = self.idle.get()
        try:
            return self._exchange(process, request)
        finally:
            self.idle.put(process)

    def _exchange(self, process: subprocess.Popen[bytes], request: messages.Message) -> messages.Message:
        assert process.stdin is not None and process.stdout is not None
        try:
            messages.send(process.stdin, *request)
            result = messages.receive(process.stdout)
        except (BrokenPipeError, ValueError):
            result = None
        if result is None:
            code = process.wait()
            is_killed = code == -signal.SIGKILL
            cause = "was killed, as where memory runs out" if is_killed else f"ended with exit code {code}"
            raise WorkerError(
                f"A worker process {cause}. What is complete is kept: run the same command again; fewer --workers need "
                "less memory."
            )
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes:
            if kind is not None:
                process.kill()  # the result of a request in flight is of no use any more
            elif process.stdin is not None:
                process.stdin.close()  # a worker ends at the end of its input
        for process in self.processes:
            process.wait()
        if self.processes:
            self.threads.shutdown(cancel_futures=True)
            for process in self.processes:
                for pipe in (process.stdin, process.stdout):
                    if pipe is not None:
                        with suppress(BrokenPipeError):  # what a killed worker was not sent any more
                            pipe.close()


def check_result(result: messages.Message) -> messages.Message:
    if "problem" in result[0]:
        raise UserError(result[0]["problem"])
    if "crash" in result[0]:
        raise RuntimeError(f"a worker failed:\n{result[0]['crash']}")
    return result

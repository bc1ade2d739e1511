"""Workers in other processes, and their answers in the order of the questions."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from etude.errors import UserError
from etude.text.prepare import messages as frames
from etude.text.prepare.worker import Handler

# one thread a worker: the processes are the parallelism
QUIET = {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class Pool:
    """`workers` processes, or with 0 none: then this one does the work."""

    def __init__(self, workers: int, threads: bool = False) -> None:
        """`threads`: whether a worker may use all cores itself."""
        self.workers = workers
        self.processes: list[subprocess.Popen[bytes]] = []
        self.handler = Handler()
        if not workers:
            return
        quiet = {"TOKENIZERS_PARALLELISM": "true"} if threads else QUIET
        root = str(Path(__file__).resolve().parents[3])  # where the package lies, installed or not
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-m", "etude.text.prepare.worker"]
        environment = {**os.environ, **quiet, "PYTHONPATH": path}
        for _ in range(workers):
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
            self.processes.append(process)
        self.threads = ThreadPoolExecutor(workers)
        self.idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        for process in self.processes:
            self.idle.put(process)

    def tell(self, message: frames.Message) -> None:
        """Sends one message to every worker; none may be busy."""
        for process in self.processes:
            _checked(self._answer(process, message))
        if not self.processes:
            _checked(self.handler.handle(*message))

    def map(self, messages: Iterable[frames.Message]) -> Iterator[frames.Message]:
        """The answers, in order. At most two questions a worker are under way, so memory stays bounded."""
        if not self.processes:
            yield from (_checked(self.handler.handle(*message)) for message in messages)
            return
        under_way: deque[Future[frames.Message]] = deque()
        for message in messages:
            under_way.append(self.threads.submit(self._ask, message))
            if len(under_way) >= 2 * self.workers:
                yield _checked(under_way.popleft().result())
        while under_way:
            yield _checked(under_way.popleft().result())

    def _ask(self, message: frames.Message) -> frames.Message:
        process = self.idle.get()
        try:
            return self._answer(process, message)
        finally:
            self.idle.put(process)

    def _answer(self, process: subprocess.Popen[bytes], message: frames.Message) -> frames.Message:
        assert process.stdin is not None and process.stdout is not None
        try:
            frames.send(process.stdin, *message)
            answer = frames.receive(process.stdout)
        except (BrokenPipeError, ValueError):
            answer = None
        if answer is None:
            code = process.wait()
            raise RuntimeError(f"a worker ended unexpectedly (exit code {code}); -9 is often a lack of memory")
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes:
            if kind is not None:
                process.kill()  # an answer under way is of no use any more
            elif process.stdin is not None:
                process.stdin.close()  # a worker ends when it is asked no more
        for process in self.processes:
            process.wait()
        if self.processes:
            self.threads.shutdown(cancel_futures=True)
            for process in self.processes:
                for pipe in (process.stdin, process.stdout):
                    if pipe is not None:
                        pipe.close()


def _checked(answer: frames.Message) -> frames.Message:
    if "problem" in answer[0]:
        raise UserError(answer[0]["problem"])
    if "crash" in answer[0]:
        raise RuntimeError(f"a worker failed:\n{answer[0]['crash']}")
    return answer

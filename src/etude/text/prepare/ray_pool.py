"""A pool of workers on a Ray cluster, which returns results in the order of the requests.

The machine that was asked reads the text and writes the corpus; parsing and encoding are tasks of the cluster. A task
is a function of its request alone, so its result is the same wherever it runs, and what a lost machine had in hand is
done again by another one. Text, tokenizer and results go through Ray; only a linker (--link) is read from the work
folder, which all machines must see then.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

from etude.extras import require
from etude.text.prepare import messages
from etude.text.prepare.worker import RequestHandler
from etude.text.prepare.worker_pool import SINGLE_THREADED, WorkerError, check_result

LOST_MACHINES = 8  # that one request may outlive: a request that ends every process it runs in must end at last
RESIZED = 10.0  # seconds after which machines are counted again
_handlers: dict[str, RequestHandler] = {}  # of this process: by what they were set up with


class RayPool:
    """As many tasks at once as the cluster has CPUs; those that come later are used, too."""

    def __init__(self) -> None:
        require("ray", "--on ray")
        import ray

        self.ray: Any = ray
        self.owns_cluster = not ray.is_initialized()
        self.setup: Any = None
        self.key = ""
        self.counted, self.cpus = -RESIZED, 1

    @property
    def workers(self) -> int:
        """The CPUs of the cluster as it is now."""
        if time.monotonic() - self.counted > RESIZED:
            self.cpus = max(1, int(self.ray.cluster_resources().get("CPU", 1)))
            self.counted = time.monotonic()
        return self.cpus

    def broadcast(self, request: messages.Message) -> None:
        """Have every task after this one begin with a request; it is tried here first, so that its error is told."""
        check_result(RequestHandler().handle(*request))
        self.setup = self.ray.put(request)
        self.key = hashlib.sha256(os.urandom(16)).hexdigest()

    def map(self, requests: Iterable[messages.Message]) -> Iterator[messages.Message]:
        """Yield the results in order. At most two requests a CPU are in flight, so memory stays bounded."""
        task = self.ray.remote(handle_request).options(num_cpus=1, max_retries=LOST_MACHINES)
        in_flight: deque[Any] = deque()
        for head, arrays in requests:
            in_flight.append(task.remote(self.key, self.setup, head, arrays))
            if len(in_flight) >= 2 * self.workers:
                yield self._get(in_flight.popleft())
        while in_flight:
            yield self._get(in_flight.popleft())

    def _get(self, result: Any) -> messages.Message:
        try:
            answer: messages.Message = self.ray.get(result)
        except self.ray.exceptions.RayError as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise WorkerError(
                f"The cluster lost a block of text {LOST_MACHINES + 1} times: {lines[-1]} Memory may have run out. "
                "What is complete is kept: the same command goes on."
            ) from error
        return check_result(answer)

    def __enter__(self) -> Self:
        if self.owns_cluster:
            paths = [str(Path(__file__).resolve().parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
            variables = {**SINGLE_THREADED, "PYTHONPATH": os.pathsep.join(paths)}
            # an address in the environment (RAY_ADDRESS) names a cluster; without one, this machine is it
            self.ray.init(runtime_env={"env_vars": variables}, log_to_driver=False, logging_level="ERROR")
        return self

    def __exit__(self, *_: object) -> None:
        if self.owns_cluster:
            self.ray.shutdown()


def handle_request(key: str, setup: messages.Message, head: messages.Head, arrays: messages.Arrays) -> messages.Message:
    """Handle a request on a machine of the cluster, whose process is set up once for all requests of a pass."""
    handler = _handlers.get(key)
    if handler is None:
        handler = RequestHandler()
        handler.handle(*setup)
        _handlers.clear()  # a tokenizer of an earlier pass takes memory
        _handlers[key] = handler
    return handler.handle(head, arrays)

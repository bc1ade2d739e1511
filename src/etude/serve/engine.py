"""The engine: threads that run the forward passes, for requests that arrive at once in one pass (dynamic batching).

Requests to one endpoint of one run are taken together, the oldest first, up to the limits of a batch. While passes
run, the next batch gathers; an idle thread starts at once, unless further requests are just arriving, and then waits
for them no longer than `Limits.wait`. On a CPU several passes run at once, each on its share of the cores
(`Limits.workers`): products of this size gain more from that than from threads inside one pass. A thread hands its
batches to `Passes`, which may be a process (passes.py). The first thread also generates: between two of its batches
every text gets one token (generation.py).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from etude.inference.generation import Continuation
from etude.serve.endpoints import Endpoint
from etude.serve.generation import GenerateJob, Piece, TextGenerator
from etude.serve.limits import Limits
from etude.serve.passes import Body, ForkedPasses, LocalPasses, Passes, check_tokens
from etude.serve.problems import overdue, shutting_down, too_busy
from etude.serve.requests import GenerateRequest, Request
from etude.serve.served_model import ServedModel

log = logging.getLogger("etude")


@dataclass(eq=False)
class Job:
    """A request that waits for its answer."""

    served: ServedModel
    kind: str
    endpoint: Endpoint[Any]
    request: Request
    key: Hashable  # requests of one key are answered together
    future: asyncio.Future[bytes]  # of the event loop
    arrival: float = field(default_factory=time.monotonic)
    cancelled: bool = False


class Engine:
    """Answers requests to loaded runs, in the order in which they came, as many at a time as fit one pass."""

    def __init__(self, models: Sequence[ServedModel], limits: Limits, on_batch: Callable[[int], None]) -> None:
        self.limits, self._on_batch = limits, on_batch
        self._models = {served.name: served for served in models}
        self.generators = {
            served.name: TextGenerator(served.model, limits.generated_texts if limits.batch_requests > 1 else 1)
            for served in models
            if served.generates and served.model is not None
        }
        self.pending = 0  # requests that wait or are being answered; event loop only
        self.arriving = 0  # requests that are being received; event loop only, read by the engine
        self.draining = False
        self._jobs: deque[Job] = deque()
        self._new_texts: deque[tuple[ServedModel, GenerateJob]] = deque()
        self._ready = threading.Condition()
        self._stopped = self._aborted = False
        self._passes = self._start_passes()
        self._threads = [
            threading.Thread(target=self._run, args=(passes, number == 0), name=f"etude-engine-{number}")
            for number, passes in enumerate(self._passes)
        ]

    def _start_passes(self) -> list[Passes]:
        """What runs the passes of each thread."""
        local = LocalPasses(self._models, self.limits, self.generators)
        if not self.limits.forked:
            return [local] * self.limits.workers
        forked: list[ForkedPasses] = []
        for _ in range(self.limits.workers):
            forked.append(ForkedPasses(local, forked))
        return list(forked)

    # --- event loop ---------------------------------------------------------------------------------

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def drain(self) -> None:
        """Refuse new requests; those accepted are finished."""
        self.draining = True

    def abort(self) -> None:
        """End by 503 whatever is not being computed right now."""
        with self._ready:
            self._aborted = True
            self._ready.notify_all()

    def stop(self) -> None:
        """End the threads, after the passes that run."""
        with self._ready:
            self._stopped = True
            self._ready.notify_all()
        for thread in self._threads:
            thread.join()
        for passes in self._passes:
            passes.close()

    async def answer(self, served: ServedModel, kind: str, endpoint: Endpoint[Any], request: Request) -> bytes:
        """The results of a request as JSON; raises Problem or UserError."""
        self._admit()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bytes] = loop.create_future()
        group = (served.name, kind, None if endpoint.group is None else endpoint.group(request))
        job = Job(served, kind, endpoint, request, group, future)
        self.pending += 1
        try:
            with self._ready:
                self._jobs.append(job)
                self._ready.notify()
            async with asyncio.timeout(self.limits.timeout):
                return await future
        except TimeoutError:
            raise overdue(self.limits.timeout) from None
        finally:
            job.cancelled = True
            self.pending -= 1

    async def generate(self, served: ServedModel, request: GenerateRequest) -> AsyncIterator[Piece]:
        """Yield pieces of the texts of a request as they are written; leaving the iteration cancels the request."""
        self._admit()
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[list[Piece] | Exception] = asyncio.Queue()
        job = GenerateJob(request, lambda pieces: _post(loop, arrived.put_nowait, pieces))
        unfinished = len(request.texts())
        self.pending += 1
        try:
            with self._ready:
                self._new_texts.append((served, job))
                self._ready.notify_all()  # the first thread must hear it
            async with asyncio.timeout(self.limits.timeout):
                while unfinished:
                    pieces = await arrived.get()
                    if isinstance(pieces, Exception):
                        raise pieces
                    for piece in pieces:
                        unfinished -= piece.continuation is not None
                        yield piece
        except TimeoutError:
            raise overdue(self.limits.timeout) from None
        finally:
            job.cancelled = True
            self.pending -= 1

    async def generate_all(self, served: ServedModel, request: GenerateRequest) -> list[Continuation]:
        """The finished texts of a request, in order."""
        finished: dict[int, Continuation] = {}
        async for piece in self.generate(served, request):
            if piece.continuation is not None:
                finished[piece.number] = piece.continuation
        return [finished[number] for number in sorted(finished)]

    def _admit(self) -> None:
        if self.draining:
            raise shutting_down()
        if self.pending >= self.limits.queue:
            raise too_busy()

    # --- the threads --------------------------------------------------------------------------------

    @torch.inference_mode()
    def _run(self, passes: Passes, generates: bool) -> None:
        """Answer batches until the end; one of the threads also writes the texts."""
        while True:
            new_texts: list[tuple[ServedModel, GenerateJob]] = []
            with self._ready:
                while not self._stopped and not self._jobs and not (generates and self._has_texts()):
                    self._ready.wait()
                if self._stopped or self._aborted:
                    self._refuse_jobs()
                    if generates:
                        self._refuse_texts()
                if self._stopped:
                    return
                batch = self._take_batch()
                if generates:
                    new_texts = list(self._new_texts)
                    self._new_texts.clear()
            if batch:
                self._answer(batch, passes)
            if generates:
                self._write(new_texts)

    def _has_texts(self) -> bool:
        return bool(self._new_texts) or not all(each.is_idle for each in self.generators.values())

    def _write(self, new_texts: Sequence[tuple[ServedModel, GenerateJob]]) -> None:
        for served, job in new_texts:
            self._add_texts(served, job)
        for name, generator in self.generators.items():
            if not generator.is_idle:
                with self._models[name].turn:
                    generator.step()

    def _take_batch(self) -> list[Job]:
        """The oldest request and those that can be answered with it; called with the lock held."""
        limits = self.limits
        while self._jobs and self.arriving and len(self._jobs) < limits.batch_requests:
            rest = self._jobs[0].arrival + limits.wait - time.monotonic()
            if rest <= 0 or not all(each.is_idle for each in self.generators.values()):
                break
            self._ready.wait(rest)
        batch: list[Job] = []
        size = 0
        others: deque[Job] = deque()
        while self._jobs:
            job = self._jobs.popleft()
            if job.cancelled:
                continue
            characters = job.request.characters()
            fits = not batch or (
                job.endpoint.group is not None
                and job.key == batch[0].key
                and len(batch) < limits.batch_requests
                and size + characters <= limits.batch_characters
            )
            if fits:
                batch.append(job)
                size += characters
            else:
                others.append(job)
            if len(batch) >= limits.batch_requests:
                break
        self._jobs.extendleft(reversed(others))
        return batch

    def _answer(self, batch: list[Job], passes: Passes) -> None:
        self._on_batch(len(batch))
        try:
            bodies = passes.answer(batch[0].served.name, batch[0].kind, [job.request for job in batch])
        except Exception as fault:  # ours: no request may end the thread
            bodies = [fault for _ in batch]
        _deliver(list(zip(batch, bodies, strict=True)))

    def _add_texts(self, served: ServedModel, job: GenerateJob) -> None:
        try:
            check_tokens(served, job.request, self.limits)
            self.generators[served.name].add(job)
        except Exception as fault:
            job.deliver(fault)

    def _refuse_jobs(self) -> None:
        _deliver([(job, shutting_down()) for job in self._jobs])
        self._jobs.clear()

    def _refuse_texts(self) -> None:
        for _, text_job in self._new_texts:
            text_job.deliver(shutting_down())
        self._new_texts.clear()
        for generator in self.generators.values():
            generator.fail(shutting_down())


def _post(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *values: object) -> None:
    """Call a function in the event loop; a loop that has ended needs no answer."""
    try:
        loop.call_soon_threadsafe(function, *values)
    except RuntimeError:
        log.debug("an answer came after the end of the server")


def _deliver(results: Sequence[tuple[Job, Body]]) -> None:
    """Hand results to the event loop in one call: it is woken once a batch."""
    if results:
        _post(results[0][0].future.get_loop(), _resolve, results)


def _resolve(results: Sequence[tuple[Job, Body]]) -> None:
    for job, result in results:
        if job.future.done():
            continue
        if isinstance(result, Exception):
            job.future.set_exception(result)
        else:
            job.future.set_result(result)

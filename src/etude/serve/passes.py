"""Forward passes over batches of requests: in the thread that asks for them, or in a process of its own.

Between two operations of a pass Python's interpreter lock is needed, also by the event loop and by the passes of other
threads. Batches are small where a server is not busy, so their operations are short, and threads mostly wait for that
lock: two processes run a third more such passes than two threads. A process is a fork of the server with its loaded
runs. It shares their weights with it, and ends with it.

A garbage collection writes to the head of every object that it visits, and so copies the page of memory it lies on,
which server and processes had shared. What was loaded before the fork is therefore left out of collections, on both
sides, until the processes are closed.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
import traceback
import warnings
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Protocol

import torch

from etude.errors import UserError
from etude.serve.limits import Limits
from etude.serve.problems import Problem, encode_json
from etude.serve.requests import Request
from etude.serve.served_model import ServedModel

log = logging.getLogger("etude")

Body = bytes | Exception  # an answer as JSON, or why there is none


class Passes(Protocol):
    """What runs the passes of one thread of the engine."""

    def answer(self, name: str, kind: str, requests: Sequence[Request]) -> list[Body]:
        """The answers to requests that one endpoint of the run `name` takes together."""

    def close(self) -> None:
        """End what was begun; no pass runs any more."""


class LocalPasses:
    """Passes in the thread that asks for them."""

    def __init__(self, models: Mapping[str, ServedModel], limits: Limits, generating: Iterable[str] = ()) -> None:
        """`generating` are the runs that also generate here: texts that are being written hold ids of words."""
        self._models, self._limits, self._generating = models, limits, frozenset(generating)

    @torch.inference_mode()
    def answer(self, name: str, kind: str, requests: Sequence[Request]) -> list[Body]:
        """The answers; what one request does wrong hits none of the others: a pass that raises is run one by one."""
        served = self._models[name]
        bodies: dict[int, Body] = {}
        for number, request in enumerate(requests):
            try:
                check_tokens(served, request, self._limits)
            except Exception as fault:
                bodies[number] = fault
        admitted = [number for number in range(len(requests)) if number not in bodies]
        try:
            encoded: Sequence[Body] = self._run(served, kind, [requests[number] for number in admitted])
        except Exception as fault:
            if len(admitted) == 1:
                encoded = [fault]
            else:
                encoded = [self.answer(name, kind, [requests[number]])[0] for number in admitted]
        bodies.update(zip(admitted, encoded, strict=True))
        return [bodies[number] for number in range(len(requests))]

    def close(self) -> None:
        """Nothing was begun."""

    def _run(self, served: ServedModel, kind: str, requests: Sequence[Request]) -> list[bytes]:
        if not requests:
            return []
        with served.turn:
            if served.name not in self._generating:
                served.forget_words()
            results = served.endpoints[kind].answer(requests)
        return [encode_json({"run": served.name, "results": each}) for each in results]


def check_tokens(served: ServedModel, request: Request, limits: Limits) -> None:
    """Raise 413 where the inputs have too many tokens; a short text is not counted: it cannot."""
    if 4 * request.characters() <= limits.tokens:  # a letter has four bytes at most, and a byte is a token
        return
    count = served.count_tokens(request.texts())
    if count > limits.tokens:
        raise Problem(413, f"The input has {count:,} tokens, and {limits.tokens:,} are taken at most: split it.")


class ForkedPasses:
    """Passes in a process that is forked from this one; where it dies, its requests fail and later ones run here."""

    def __init__(self, local: LocalPasses, siblings: Sequence[ForkedPasses] = ()) -> None:
        """Fork; `siblings` were forked before, and the new process closes its copies of their connections."""
        self._local = local
        self._connection, far_end = Pipe()
        gc.freeze()
        with warnings.catch_warnings():
            # newer Pythons warn of other threads; those of torch and of a progress line hold nothing that is used there
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
        if self._pid == 0:
            code = 1
            try:
                for connection in (self._connection, *(each._connection for each in siblings)):
                    connection.close()
                _answer_until_end(far_end, local)
                code = 0
            finally:
                os._exit(code)  # never on into the code of the server, nor its exit handlers
        far_end.close()
        self._is_alive = True

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._pid

    def answer(self, name: str, kind: str, requests: Sequence[Request]) -> list[Body]:
        """The answers, computed in the process."""
        if not self._is_alive:
            return self._local.answer(name, kind, requests)
        try:
            self._connection.send((name, kind, list(requests)))
            bodies: list[Body] = self._connection.recv()
        except (EOFError, OSError):
            self._is_alive = False
            self._connection.close()
            status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
            log.error("A process that answers requests has died (%s): the server itself answers on.", status)
            return [RuntimeError(f"the process that computed this answer has died ({status})") for _ in requests]
        return bodies

    def close(self) -> None:
        """End the process."""
        gc.unfreeze()
        if not self._is_alive:
            return
        self._is_alive = False
        try:
            self._connection.send(None)
        except OSError:
            log.debug("a process that answers requests had ended before the server")
        self._connection.close()
        os.waitpid(self._pid, 0)


def _answer_until_end(connection: Connection, local: LocalPasses) -> None:
    """What a forked process does."""
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to all processes of a service: the server ends them
        signal.signal(number, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # threads of tokenizers do not survive a fork

    def answer() -> None:
        while True:
            try:
                message = connection.recv()
            except (EOFError, OSError):  # the server has died
                return
            if message is None:
                return
            connection.send([_portable(body) for body in local.answer(*message)])

    # not here: OpenMP takes the threads of the thread that forked for alive
    thread = threading.Thread(target=answer)
    thread.start()
    thread.join()


def _portable(body: Body) -> Body:
    """An answer that can be sent to another process; of faults only the text can."""
    if isinstance(body, (bytes, Problem)):
        return body
    if isinstance(body, UserError):
        return UserError(body.message, body.advice)
    return RuntimeError("".join(traceback.format_exception(body)))

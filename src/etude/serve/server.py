"""The HTTP server: uvicorn with a strict reader of requests, a bound socket, and an end that loses nothing.

On SIGTERM or SIGINT new requests are answered 503, accepted ones are finished (after `Limits.grace` seconds also 503),
and the process ends with exit code 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import shlex
import signal
import socket
import threading
from collections.abc import Iterable, Iterator
from types import FrameType, TracebackType

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from etude.serve.app import Service, create_app
from etude.serve.guard import allowed_hosts
from etude.serve.ports import BACKLOG, bind_port
from etude.serve.tokens import check_token

NEW_CONNECTIONS = 0.1  # seconds in which connections that wait to be accepted are still taken, to be told 503

log = logging.getLogger("etude")


class StrictProtocol(H11Protocol):
    """uvicorn's h11 connection, closed where the head of a request does not arrive in time."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._await_head()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        if self._head_timer is None:
            seconds = float(self.config.timeout_keep_alive)
            self._head_timer = self.loop.call_later(seconds, self._close_waiting)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _close_waiting(self) -> None:
        self._head_timer = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.close()


class _Uvicorn(uvicorn.Server):
    """uvicorn's server: signals drain it, and its end is exit code 0."""

    service: Service

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        signals = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, self.handle_exit) for number in signals}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._loop.call_soon_threadsafe(self.drain)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    def drain(self) -> None:
        """Answer 503 from now on, finish what was accepted, and end."""
        if self.service.engine.draining:
            return
        self.service.engine.drain()
        self._loop.call_later(NEW_CONNECTIONS, self._stop_accepting)
        self._loop.call_later(self.service.limits.grace, self.service.engine.abort)

    def _stop_accepting(self) -> None:
        self.should_exit = True


class Server:
    """Runs behind HTTP, at an address of this machine.

    `with Server(...) as server:` answers in a thread until the block ends; `server.run()` answers here, until a signal.
    """

    def __init__(
        self,
        service: Service,
        host: str = "127.0.0.1",
        port: int = 8000,
        token: str | None = None,
        names: Iterable[str] = (),
        access_log: bool = False,
        token_place: str = "$ETUDE_TOKEN",
    ) -> None:
        """`token_place` is what a shell reads the token from, for the line to try."""
        self.service, self.host, self.token, self.token_place = service, host, token, token_place
        check_token(host, token)
        self._socket = bind_port(host, port)
        self.port: int = self._socket.getsockname()[1]
        app = create_app(service, allowed_hosts(host, names), token)
        limits = service.limits
        config = uvicorn.Config(
            app,
            http=StrictProtocol,
            ws="none",
            loop="asyncio",
            lifespan="on",
            log_config=None,
            access_log=access_log,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            limit_concurrency=limits.connections,
            timeout_keep_alive=max(1, round(limits.read_timeout)),
            timeout_graceful_shutdown=round(limits.grace) + 5,
        )
        self._uvicorn = _Uvicorn(config)
        self._uvicorn.service = service
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def curl(self) -> str:
        """A request to try, as a command line."""
        if not self.service.kinds:
            return f"curl {self.address}/about"
        kind = self.service.kinds[0].name
        able = self.service.find_models(kind)
        body: dict[str, object] = {"run": able[0]} if len(able) > 1 else {}
        body["input"] = self.service.models[able[0]].example(kind)
        token = "" if self.token is None else f' -H "Authorization: Bearer {self.token_place}"'
        sent = shlex.quote(json.dumps(body, ensure_ascii=False))
        return f"curl {self.address}/{kind} -H 'Content-Type: application/json'{token} -d {sent}"

    def run(self) -> None:
        """Answer requests until SIGTERM or SIGINT; for the main thread."""
        self._uvicorn.run(sockets=[self._socket])

    def __enter__(self) -> Server:
        self._thread = threading.Thread(target=self.run, name="etude-server")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shut_down()

    def begin_shutdown(self) -> None:
        """Drain a server that answers in a thread, as SIGTERM does."""
        assert self._thread is not None
        while self._thread.is_alive() and not self._uvicorn.started:
            self._thread.join(0.01)
        if self._thread.is_alive():
            self._uvicorn.handle_exit(signal.SIGTERM, None)

    def shut_down(self) -> None:
        """Drain and end a server that answers in a thread."""
        self.begin_shutdown()
        assert self._thread is not None
        self._thread.join()

"""The door of the server: who may ask, and in which form. Every request passes here before any route sees it.

Against a web page that is open in the same browser:
- the request names this machine in its only `Host` (an attacker's name that points here is refused: DNS rebinding),
- its `Origin`, where there is one, is this server, and `Sec-Fetch-Site` does not say that another site asks, unless a
  person follows a link to a page; so no <img>, form, frame or script of another site reaches a route,
- a body is `application/json`, which a form cannot send,
- pages cannot be framed, and no cross-origin header is ever sent.

Against smuggling: absolute-form targets, two lengths, bodies of GET, and bodies that say no length are refused, and a
refused connection is closed, so that no byte behind it is read as a request.

Against everyone else: sizes and seconds are bounded, and where a bearer token is set, it is asked for.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from etude.serve.limits import Limits
from etude.serve.metrics import Metrics
from etude.serve.problems import Problem
from etude.serve.tokens import is_loopback

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from etude.serve.engine import Engine

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": PAGE_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
ENCODED_HEADERS = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
# these hold nothing private, as does /static/; /board/report asks for a ticket, because a link carries no token
OPEN_PATHS = frozenset({"/", "/board", "/api", "/docs", "/health", "/favicon.ico", "/board/report"})
PAGES = frozenset({"/", "/board", "/api", "/docs"})  # what a link on another site may lead to


def allowed_hosts(host: str, names: Iterable[str] = ()) -> frozenset[str] | None:
    """The names that a request may use in `Host`; None (any) where other machines may connect, which need a token."""
    if not is_loopback(host):
        return frozenset(map(str.lower, names)) or None
    bound = f"[{host}]" if ":" in host else host
    return LOCAL_NAMES | {bound.lower(), *map(str.lower, names)}


def split_port(host: str) -> str:
    """The name of "name:port", "[::1]:port" or "name"."""
    name, colon, port = host.rpartition(":")
    return name if colon and not host.endswith("]") and (port.isdecimal() or not port) else host


class Guard:
    """Refuses requests that are not to be answered, reads the bodies of the others, and adds headers to all answers."""

    def __init__(
        self,
        app: ASGIApp,
        engine: Engine,
        metrics: Metrics,
        limits: Limits,
        hosts: Collection[str] | None,
        token: str | None,
    ) -> None:
        self.app, self.engine, self.metrics, self.limits = app, engine, metrics, limits
        self.hosts = hosts
        self.token = None if token is None else token.encode()
        self.buffered = 0  # bytes of bodies that are being received

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no WebSockets: uvicorn answers

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", []))
                present = {name.lower() for name, _ in headers}
                headers += [header for header in ENCODED_HEADERS if header[0] not in present]
                if self.engine.draining and b"connection" not in present:
                    headers.append((b"connection", b"close"))
                message = {**message, "headers": headers}
            await send(message)

        try:
            self._check(scope)
            if scope["method"] != "POST":
                await self.app(scope, receive, send_with_headers)
                return
            self.engine.arriving += 1
            try:
                body = await self._read_body(scope, receive)
            finally:
                self.engine.arriving -= 1
        except Problem as problem:
            self.metrics.count_refusal(problem.status)
            await self._drain(scope, receive)
            problem.headers["Connection"] = "close"  # what may follow on this connection is never read
            await problem.response()(scope, receive, send_with_headers)
            return
        if body is None:
            return  # the client has gone
        unread = [body]

        async def receive_again() -> Message:
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            return await receive()

        await self.app(scope, receive_again, send_with_headers)

    # --- checks -------------------------------------------------------------------------------------

    def _check(self, scope: Scope) -> None:
        """Raise Problem unless the request may be answered; the body is not looked at."""
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        target = scope["raw_path"].decode("latin-1")
        if not target.startswith("/") or target.startswith("//"):
            raise Problem(400, "The target of a request is a path that begins with one slash.")
        self._check_host(headers)
        self._check_origin(scope, headers)
        self._check_framing(scope, headers)
        is_open = scope["path"] in OPEN_PATHS or scope["path"].startswith("/static/")
        if self.token is not None and not is_open:
            self._check_token(scope, headers)
        if scope["method"] == "POST":
            kind = headers.get("content-type", [""])
            if len(kind) > 1 or kind[0].partition(";")[0].strip().lower() != "application/json":
                raise Problem(415, "A request is JSON: send it with Content-Type: application/json.")
            if "content-encoding" in headers:
                raise Problem(415, "A request is sent as it is: without Content-Encoding.")

    def _check_host(self, headers: dict[str, list[str]]) -> None:
        hosts = headers.get("host", [])
        if len(hosts) != 1 or not hosts[0]:
            raise Problem(400, "A request has exactly one Host.")
        if self.hosts is not None and split_port(hosts[0].lower()) not in self.hosts:
            raise Problem(421, "This server does not answer under that name: ask it as localhost.")

    def _check_origin(self, scope: Scope, headers: dict[str, list[str]]) -> None:
        origins = headers.get("origin", [])
        if origins and (len(origins) > 1 or origins[0].lower().partition("://")[2] != headers["host"][0].lower()):
            raise Problem(403, "A page of another site may not use this server.")
        site = headers.get("sec-fetch-site", ["none"])
        if site in (["same-origin"], ["none"]):
            return
        follows_link = (
            scope["method"] == "GET"
            and scope["path"] in PAGES
            and headers.get("sec-fetch-mode") == ["navigate"]
            and headers.get("sec-fetch-dest") == ["document"]
        )
        if not follows_link:
            raise Problem(403, "A page of another site may not use this server.")

    def _check_framing(self, scope: Scope, headers: dict[str, list[str]]) -> None:
        lengths, codings = headers.get("content-length", []), headers.get("transfer-encoding", [])
        if (lengths and codings) or len(lengths) > 1:
            raise Problem(400, "A request says its length once.")
        if scope["method"] != "POST" and (codings or lengths not in ([], ["0"])):
            raise Problem(400, f"A {scope['method']} has no body.")
        if scope["method"] == "POST" and not lengths and not codings:
            raise Problem(411, "A POST says the length of its body: Content-Length.")
        if lengths and int(lengths[0]) > self.limits.body_bytes:
            raise self._too_large()

    def _check_token(self, scope: Scope, headers: dict[str, list[str]]) -> None:
        assert self.token is not None
        given = headers.get("authorization", [""])
        scheme, _, token = given[0].partition(" ")
        right = hmac.compare_digest(token.strip().encode("latin-1"), self.token)
        if len(given) > 1 or scheme.lower() != "bearer" or not right:
            raise Problem(401, "This server needs its token: Authorization: Bearer ...", {"WWW-Authenticate": "Bearer"})

    def _too_large(self) -> Problem:
        return Problem(413, f"A request has {self.limits.body_bytes:,} bytes at most.")

    # --- bodies -------------------------------------------------------------------------------------

    async def _read_body(self, scope: Scope, receive: Receive) -> bytes | None:
        """The whole body; None where the client has gone."""
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.read_timeout):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    chunk = message.get("body", b"")
                    body += chunk
                    self.buffered += len(chunk)
                    if len(body) > self.limits.body_bytes:
                        raise self._too_large()
                    if self.buffered > self.limits.buffered_bytes:
                        raise Problem(503, "Too much is being sent at once: try again.", {"Retry-After": "1"})
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise Problem(408, f"The request did not arrive within {self.limits.read_timeout:g} seconds.") from None
        finally:
            self.buffered -= len(body)

    async def _drain(self, scope: Scope, receive: Receive) -> None:
        """Read on for a moment: a client that is still writing when the connection closes would not see the answer."""
        headers = dict(scope["headers"])
        if b"expect" in headers or not (b"content-length" in headers or b"transfer-encoding" in headers):
            return  # it waits for our word, or has nothing to send
        rest = 16 * self.limits.body_bytes
        try:
            async with asyncio.timeout(min(1.0, self.limits.read_timeout)):
                while rest > 0:
                    message = await receive()
                    rest -= len(message.get("body", b""))
                    if message["type"] == "http.disconnect" or not message.get("more_body", False):
                        return
        except TimeoutError:
            return

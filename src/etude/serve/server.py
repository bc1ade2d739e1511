"""The HTTP side: one run, answered one request at a time, with a page for people at /.

    GET  /              the page
    GET  /about         what the run is, what it can do, and the fields of each request
    GET  /attention?text=...[&second=...]     maps of all heads, as a page
    POST /fill ...      a JSON object, as serve/endpoints.py has them; the answer is one, too

Wrong requests are answered 400 with {"error": what is wrong and what to do}. It listens on this machine alone unless
told otherwise, and then takes requests only for the names it has there: a page of another site, open in the same
browser, can neither read from it (no cross-origin headers) nor reach it under a name of its own.
"""

from __future__ import annotations

import json
import logging
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from typing import Any
from urllib.parse import parse_qs, urlsplit

from etude.errors import UserError
from etude.serve.endpoints import Look, Served
from etude.view.attention import look
from etude.view.attention_page import page
from etude.view.page_template import filled

LARGEST = 2**20  # bytes of a request
PATIENCE = 30  # seconds that a client may keep silent

log = logging.getLogger("etude")


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, served: Served, host: str = "127.0.0.1", port: int = 8000) -> None:
        self.served, self.busy = served, threading.Lock()  # a model answers one at a time
        try:
            super().__init__((host, port), Handler)
        except (OSError, OverflowError) as problem:
            raise UserError(f"Port {port} of {host} cannot be had ({problem}): name another with --port.") from None
        self.names = names_of(host)

    @property
    def address(self) -> str:
        host, port = str(self.server_address[0]), self.server_address[1]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a client went away", exc_info=True)


def names_of(host: str) -> frozenset[str] | None:
    """What this machine may be called in a request; None where others may reach it, under whatever name."""
    try:
        alone = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        alone = False
    return frozenset({"localhost", "127.0.0.1", "[::1]", host}) if alone else None


class Handler(BaseHTTPRequestHandler):
    protocol_version, timeout, server_version, sys_version = "HTTP/1.1", PATIENCE, "etude", ""
    server: Server

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def _answer(self, action: Any) -> None:
        try:
            if self.server.names is not None and self._host() not in self.server.names:
                self._json(HTTPStatus.FORBIDDEN, {"error": "This server is asked for as localhost."})
            else:
                action()
        except UserError as problem:
            self._json(HTTPStatus.BAD_REQUEST, {"error": str(problem)})
        except ConnectionError:
            self.close_connection = True
        except Exception:
            log.exception("a request failed")
            self._json(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": "This went wrong here; the log says how."})

    def _host(self) -> str:
        """The name under which the client sees this machine."""
        given = self.headers.get("Host", "")
        return given.rpartition(":")[0] if given.rpartition("]")[2].startswith(":") or given.count(":") == 1 else given

    def _get(self) -> None:
        served, asked = self.server.served, urlsplit(self.path)
        if asked.path == "/":
            self._send(HTTPStatus.OK, "text/html", filled("etude.serve", "page.html", {}))
        elif asked.path == "/about":
            self._json(HTTPStatus.OK, served.about())
        elif asked.path == "/attention" and "attention" in served.abilities:
            given = {name: values[0] for name, values in parse_qs(asked.query).items()}
            request = served.abilities["attention"].checked(given)
            assert isinstance(request, Look)
            with self.server.busy:
                found = look(served.model, request.text, request.second)
            title = request.text if request.second is None else f"{request.text} ⏐ {request.second}"
            self._send(HTTPStatus.OK, "text/html", page(found, title, served.name))
        else:
            self._missing(asked.path)

    def _post(self) -> None:
        served, name = self.server.served, urlsplit(self.path).path.removeprefix("/")
        body = self._body()
        if name not in served.abilities:
            self._missing(f"/{name}")
            return
        if self.headers.get_content_type() != "application/json":  # what a page of another site cannot send unasked
            raise UserError("A request is JSON: send it with Content-Type: application/json.")
        try:
            values = json.loads(body)
        except (ValueError, RecursionError) as problem:
            raise UserError(f"The request is not JSON: {problem}.") from None
        request = served.abilities[name].checked(values)
        with self.server.busy:
            answer = served.abilities[name].answer(request)
        self._json(HTTPStatus.OK, answer)

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > LARGEST:
            self.close_connection = True  # what is not read would be taken for the next request
            if length.isdecimal():  # a client that is still writing would never see the answer
                self.rfile.read(min(int(length), 16 * LARGEST))
            raise UserError(f"A request says its length, which is {LARGEST:,} bytes at most.")
        return self.rfile.read(int(length))

    def _missing(self, path: str) -> None:
        known = ", ".join(["GET /", "GET /about", *(f"POST /{name}" for name in self.server.served.abilities)])
        self._json(HTTPStatus.NOT_FOUND, {"error": f"There is no {path}. {self.server.served.name} answers: {known}."})

    def _json(self, status: HTTPStatus, values: dict[str, Any]) -> None:
        self._send(status, "application/json", json.dumps(values, ensure_ascii=False))

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *values: Any) -> None:
        log.info("%s %s", self.address_string(), format % values)

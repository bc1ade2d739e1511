"""The HTTP server: one run, one request at a time, with a page for people at /.

    GET  /              the page
    GET  /about         what the run is, what it can do, and the fields of each request
    GET  /attention?text=...[&second=...]     maps of all heads, as a page
    GET  /paths?question=...&choices=...&choices=...    paths of all answers, as a page
    POST /fill ...      a JSON object, as serve/endpoints.py has them; the answer is one, too

Wrong requests are answered 400 with {"error": message}. By default the server listens on this machine only, and then
accepts requests only under this machine's names: a page of another site, open in the same browser, can neither read
from it (no cross-origin headers) nor reach it under a name of its own (DNS rebinding).
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from typing import Any
from urllib.parse import parse_qs, urlsplit

from etude.errors import UserError
from etude.serve.endpoints import AttentionRequest, PathsRequest, ServedModel, explain_request
from etude.view.alignment import compute_maps
from etude.view.attention_page import render_page
from etude.view.page_template import fill_template
from etude.view.paths_page import render_paths_page

MAX_BODY_BYTES = 2**20  # bytes of a request
TIMEOUT = 30  # seconds to wait for a client's next bytes

log = logging.getLogger("etude")


class Server(ThreadingHTTPServer):
    """An HTTP server of one loaded run."""

    daemon_threads = True

    def __init__(self, served: ServedModel, host: str = "127.0.0.1", port: int = 8000) -> None:
        self.served, self.busy = served, threading.Lock()  # a model answers one at a time
        try:
            super().__init__((host, port), Handler)
        except (OSError, OverflowError) as problem:
            raise UserError(f"Port {port} of {host} cannot be had ({problem}): name another with --port.") from None
        self.names = allowed_hosts(host)

    @property
    def address(self) -> str:
        host, port = str(self.server_address[0]), self.server_address[1]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def handle_error(self, request: object, client_address: object) -> None:
        log.debug("a client went away", exc_info=True)


def allowed_hosts(host: str) -> frozenset[str] | None:
    """Return the host names that a request may use; None (any) where other machines may connect."""
    try:
        is_local = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        is_local = False
    return frozenset({"localhost", "127.0.0.1", "[::1]", host}) if is_local else None


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    protocol_version, timeout, server_version, sys_version = "HTTP/1.1", TIMEOUT, "etude", ""
    server: Server

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def _answer(self, action: Callable[[], None]) -> None:
        """Run an action and answer its errors: 400 for a UserError, 500 for the rest."""
        try:
            if self.server.names is not None and self._requested_host() not in self.server.names:
                self._send_json(HTTPStatus.FORBIDDEN, {"error": "This server answers under the name localhost."})
            else:
                action()
        except UserError as problem:
            self._send_json(HTTPStatus.BAD_REQUEST, {"error": str(problem)})
        except ConnectionError:
            self.close_connection = True
        except Exception:
            log.exception("a request failed")
            self._send_json(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": "The server failed; see its log."})

    def _requested_host(self) -> str:
        """Return the host of the request, without its port."""
        host = self.headers.get("Host", "")
        return host.rpartition(":")[0] if host.rpartition("]")[2].startswith(":") or host.count(":") == 1 else host

    def _get(self) -> None:
        served, url = self.server.served, urlsplit(self.path)
        if url.path == "/":
            self._send(HTTPStatus.OK, "text/html", fill_template("etude.serve", "page.html", {}))
        elif url.path == "/about":
            self._send_json(HTTPStatus.OK, served.describe())
        elif url.path == "/attention" and "attention" in served.abilities:
            fields = {name: values[0] for name, values in parse_qs(url.query).items()}
            request = served.abilities["attention"].validate(fields)
            assert isinstance(request, AttentionRequest)
            assert served.model is not None
            with self.server.busy:
                attention = compute_maps(served.model, request.text, request.second)
            title = request.text if request.second is None else f"{request.text} ⏐ {request.second}"
            self._send(HTTPStatus.OK, "text/html", render_page(attention, title, served.name))
        elif url.path == "/paths" and "paths" in served.abilities:
            query = parse_qs(url.query)
            question = query.get("question", [""])[0]
            paths_request = served.abilities["paths"].validate(
                {"question": question, "choices": query.get("choices", [])}
            )
            assert isinstance(paths_request, PathsRequest)
            with self.server.busy:
                explanation = explain_request(served.tuned, paths_request)
            self._send(HTTPStatus.OK, "text/html", render_paths_page(explanation, served.name))
        else:
            self._not_found(url.path)

    def _post(self) -> None:
        served, name = self.server.served, urlsplit(self.path).path.removeprefix("/")
        body = self._read_body()
        if name not in served.abilities:
            self._not_found(f"/{name}")
            return
        if self.headers.get_content_type() != "application/json":  # what a page of another site cannot send unasked
            raise UserError("A request is JSON: send it with Content-Type: application/json.")
        try:
            values = json.loads(body)
        except (ValueError, RecursionError) as problem:
            raise UserError(f"The request is not JSON: {problem}.") from None
        request = served.abilities[name].validate(values)
        with self.server.busy:
            answer = served.abilities[name].answer(request)
        self._send_json(HTTPStatus.OK, answer)

    def _read_body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            self.close_connection = True  # what is not read would be taken for the next request
            if length.isdecimal():  # a client that is still writing would never see the answer
                self.rfile.read(min(int(length), 16 * MAX_BODY_BYTES))
            raise UserError(f"A request says its length, which is {MAX_BODY_BYTES:,} bytes at most.")
        return self.rfile.read(int(length))

    def _not_found(self, path: str) -> None:
        known = ", ".join(["GET /", "GET /about", *(f"POST /{name}" for name in self.server.served.abilities)])
        self._send_json(
            HTTPStatus.NOT_FOUND, {"error": f"There is no {path}. {self.server.served.name} answers: {known}."}
        )

    def _send_json(self, status: HTTPStatus, values: dict[str, Any]) -> None:
        self._send(status, "application/json", json.dumps(values, ensure_ascii=False))

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *values: object) -> None:
        log.info("%s %s", self.address_string(), format % values)

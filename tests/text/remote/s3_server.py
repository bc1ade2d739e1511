"""A real S3-compatible server for tests (moto's), and a proxy before it that fails or waits when told to."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

import pytest

Trouble = Literal["error", "cut", "slow", "forbidden", "garbled"]
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}  # fmt: skip
SERVER = """
import sys, threading
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@dataclass
class S3Server:
    """The proxy's address, what was asked of it, and the troubles to come."""

    url: str
    requests: list[tuple[str, str]] = field(default_factory=list)  # method, path
    trouble: Callable[[str, str, int], Trouble | None] = lambda method, path, number: None
    delay: float = 0.0
    served: int = 0

    def paths(self, method: str) -> list[str]:
        return [path for verb, path in self.requests if verb == method]


def _handler(server: S3Server, target: tuple[str, int]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # an answer in two packets would take 40 ms

        def _pass_on(self) -> None:
            number = server.served
            server.served += 1
            path = self.path.partition("?")[0]
            server.requests.append((self.command, path))
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            trouble = server.trouble(self.command, path, number)
            if trouble in ("error", "forbidden"):
                status, code = (503, "SlowDown") if trouble == "error" else (403, "AccessDenied")
                text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>not now</Message></Error>".encode()
                self._answer(status, [("Content-Type", "application/xml")], text)
                return
            if trouble == "slow":
                time.sleep(server.delay)
            connection = http.client.HTTPConnection(*target, timeout=60)
            headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
            connection.close()
            if trouble == "garbled":
                content = bytes(byte ^ 1 for byte in content)
            hop = ("transfer-encoding", "connection", "content-length", "date", "server")
            headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in hop]
            if trouble == "cut" and self.command != "HEAD":  # the connection is lost in the middle of the answer
                self._answer(answer.status, headers, content, sent=len(content) // 2)
                self.close_connection = True
                return
            length = answer.getheader("Content-Length") if self.command == "HEAD" else None
            self._answer(answer.status, headers, content, length=length)

        def _answer(
            self, status: int, headers: list[tuple[str, str]], content: bytes, sent: int | None = None,
            length: str | None = None,
        ) -> None:  # fmt: skip
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", length or str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content if sent is None else content[:sent])

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on

        def log_message(self, format: str, *args: object) -> None:
            return

    return Handler


@contextmanager
def run_server() -> Iterator[S3Server]:
    """Start moto's server in a process of its own, with a bucket, and the proxy in a thread."""
    pytest.importorskip("moto", reason="no S3 server: pip install 'etude[dev]'")
    pytest.importorskip("s3fs", reason="no S3: pip install 'etude[remote]'")
    environment = {**os.environ, **CREDENTIALS}
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, env=environment,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    try:
        port = int(process.stdout.readline())
        request = urllib.request.Request(f"http://127.0.0.1:{port}/lab", method="PUT")
        request.add_header("Authorization", "AWS4-HMAC-SHA256 Credential=testing/20200101/us-east-1/s3/aws4_request")
        urllib.request.urlopen(request, timeout=30).close()
        server = S3Server("")
        proxy = ThreadingHTTPServer(("127.0.0.1", 0), _handler(server, ("127.0.0.1", port)))
        proxy.daemon_threads = True
        server.url = f"http://127.0.0.1:{proxy.server_address[1]}"
        thread = threading.Thread(target=proxy.serve_forever, daemon=True)
        thread.start()
        yield server
        proxy.shutdown()
        proxy.server_close()
    finally:
        process.stdin.close()
        process.wait(30)

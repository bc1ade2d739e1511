"""The door: smuggled requests, foreign names and origins, tokens and sizes, by raw bytes where clients are polite."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator

import pytest

from etude.errors import UserError
from etude.serve.guard import allowed_hosts, split_port
from etude.serve.limits import Limits
from etude.serve.server import Server
from etude.serve.tokens import check_token
from tests.serve.toy_runs import JSON, ToyRuns, ask, serving

TOKEN = "a-token-of-many-letters"
BODY = json.dumps({"input": "[MASK]"}).encode()
SECOND = b"POST /fill HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
    len(BODY),
    BODY,
)


@pytest.fixture(scope="module")
def server(runs: ToyRuns) -> Iterator[Server]:
    with serving(runs.open("bert-toy"), limits=Limits(body_bytes=10_000, read_timeout=1.0)) as server:
        yield server


def exchange(server: Server, sent: bytes) -> list[int]:
    """The statuses of all responses on one connection, which must end by itself."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as connection:
        connection.sendall(sent)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+)", received)]


def head(line: str, *headers: str) -> bytes:
    return "\r\n".join([line, *headers, "", ""]).encode()


@pytest.mark.parametrize(
    ("first", "status"),
    [
        (head("POST /fill HTTP/1.1", "Host: evil.example", f"Content-Length: {len(SECOND)}"), 421),
        (head("GET /about HTTP/1.1", "Host: evil.example", f"Content-Length: {len(SECOND)}"), 421),
        (head("GET /about HTTP/1.1", "Host: localhost", f"Content-Length: {len(SECOND)}"), 400),
        (head("POST /fill HTTP/1.1", "Host: localhost", f"Content-Length: {len(SECOND)}"), 415),
        (head("POST /fill HTTP/1.1", "Host: localhost", "Origin: http://evil.example", "Content-Length: 0"), 403),
        (head("POST http://localhost/fill HTTP/1.1", "Host: evil.example"), 400),
        (head("POST http://localhost/fill HTTP/1.1", "Host: localhost", f"Content-Length: {len(SECOND)}"), 400),
        (head("GET //localhost/about HTTP/1.1", "Host: localhost"), 400),
        (head("GET /about HTTP/1.1", "Host: localhost", "Host: evil.example"), 400),
        (head("GET /about HTTP/1.1", "Host: evil.example", "Host: localhost"), 400),
        (head("GET /about HTTP/1.1"), 400),
        (head("POST /fill HTTP/1.1", "Host: localhost", "Content-Length: 5", "Content-Length: 6"), 400),
        (
            head("POST /fill HTTP/1.1", "Host: localhost", "Content-Length: 5", "Transfer-Encoding: chunked")
            + b"0\r\n\r\n",
            400,
        ),
        (head("POST /fill HTTP/1.1", "Host: localhost", "Transfer-Encoding: x-chunked"), 501),
        (head("POST /fill HTTP/1.1", "Host: localhost", "Content-Type: application/json"), 411),
        (head("POST /fill HTTP/1.1", "Host: localhost", "Content-Length: -5"), 400),
        (head("POST /fill HTTP/1.1", "Host: localhost", "Content-Length: 99999999"), 413),
    ],
)
def test_nothing_is_read_behind_a_refused_request(server: Server, first: bytes, status: int) -> None:
    statuses = exchange(server, first + SECOND)
    assert len(statuses) == 1 and statuses[0] in (status, 400), statuses


def test_a_request_on_the_same_connection_is_answered_where_nothing_is_wrong(server: Server) -> None:
    last = SECOND.replace(b"Host: localhost\r\n", b"Host: localhost\r\nConnection: close\r\n")
    assert exchange(server, SECOND + SECOND + last) == [200, 200, 200]


def test_names_under_which_it_answers(server: Server) -> None:
    for host in ("evil.example", "evil.example:8000", "localhost.evil.example:80", "127.0.0.1.evil.example"):
        assert ask(server, "GET", "/about", headers={"Host": host}).status == 421
        assert ask(server, "GET", "/", headers={"Host": host}).status == 421
    for host in ("localhost", "localhost:1234", "127.0.0.1", "127.0.0.1:80", "[::1]:80", "LOCALHOST"):
        assert ask(server, "GET", "/about", headers={"Host": host}).status == 200


def test_pages_of_other_sites_are_refused(server: Server) -> None:
    mine = f"localhost:{server.port}"
    for origin in ("http://evil.example", "null", "http://localhost:1", f"http://127.0.0.1:{server.port}"):
        headers = {**JSON, "Host": mine, "Origin": origin}
        assert ask(server, "POST", "/fill", BODY, headers).status == 403
    assert ask(server, "POST", "/fill", BODY, {**JSON, "Host": mine, "Origin": f"http://{mine}"}).status == 200
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        assert ask(server, "POST", "/fill", BODY, {"Content-Type": kind}).status == 415
    image = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    for path in ("/about", "/metrics", "/", "/health", "/openapi.json"):
        assert ask(server, "GET", path, headers=image).status == 403
    assert ask(server, "GET", "/", headers=link).status == 200
    assert ask(server, "GET", "/metrics", headers=link).status == 403
    preflight = ask(server, "OPTIONS", "/fill", headers={"Origin": "http://evil.example"})
    assert preflight.status == 403 and "Access-Control-Allow-Origin" not in preflight.headers


def test_attention_cannot_be_asked_by_get(server: Server) -> None:
    answer = ask(server, "GET", "/attention?text=the%20cat")
    assert answer.status == 405 and answer.headers["Allow"] == "POST"


def test_every_answer_forbids_frames_and_foreign_sources(server: Server) -> None:
    for path, status in (("/", 200), ("/about", 200), ("/nothing", 404)):
        answer = ask(server, "GET", path)
        assert answer.status == status
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Frame-Options"] == "DENY" and answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in answer.headers


def test_large_bodies_are_told(server: Server) -> None:
    assert ask(server, "POST", "/fill", {"input": "[MASK]" + "x" * 20_000}).status == 413
    chunked = head(
        "POST /fill HTTP/1.1", "Host: localhost", "Content-Type: application/json", "Transfer-Encoding: chunked"
    )
    assert exchange(server, chunked + b"4000\r\n" + b" " * 0x4000 + b"\r\n0\r\n\r\n") == [413]


def test_a_client_that_does_not_go_on_is_left(server: Server) -> None:
    assert exchange(server, b"POST /fill HTTP/1.1\r\nHost: loc") == []
    half = head("POST /fill HTTP/1.1", "Host: localhost", "Content-Type: application/json", "Content-Length: 50")
    assert exchange(server, half + b"{") == [408]


def test_a_token_is_asked_for(runs: ToyRuns) -> None:
    with serving(runs.open("bert-toy"), token=TOKEN) as server:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
            for path in ("/about", "/metrics", "/openapi.json"):
                answer = ask(server, "GET", path, headers=headers)
                assert answer.status == 401 and answer.headers["WWW-Authenticate"] == "Bearer"
            assert ask(server, "POST", "/fill", BODY, {**JSON, **headers}).status == 401
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert ask(server, "GET", "/about", headers=right).json["token"] is True
        assert ask(server, "POST", "/fill", BODY, {**JSON, **right}).status == 200
        for path in ("/", "/health"):  # nothing private
            assert ask(server, "GET", path).status == 200
        assert TOKEN not in server.curl and "$ETUDE_TOKEN" in server.curl


def test_other_machines_need_a_token() -> None:
    for host in ("0.0.0.0", "::", "192.168.1.5", "my.machine"):
        with pytest.raises(UserError, match="ETUDE_TOKEN"):
            check_token(host, None)
        check_token(host, TOKEN)
        assert allowed_hosts(host) is None
    for host in ("127.0.0.1", "::1", "localhost"):
        check_token(host, None)
    for token in ("short", "with a space in the middle", "한글은토큰에서쓸수없습니다열여섯자"):
        with pytest.raises(UserError, match="16 letters"):
            check_token("127.0.0.1", token)
    assert allowed_hosts("127.0.0.1") == allowed_hosts("localhost") == frozenset({"localhost", "127.0.0.1", "[::1]"})
    assert allowed_hosts("127.0.0.1", ["My.Proxy"]) == frozenset({"localhost", "127.0.0.1", "[::1]", "my.proxy"})


def test_ports_are_split_off() -> None:
    assert [split_port(host) for host in ("a:80", "a", "[::1]:80", "[::1]", "a:b", "a:")] == [
        "a", "a", "[::1]", "[::1]", "a:b", "a"
    ]  # fmt: skip

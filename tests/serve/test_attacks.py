"""Pages of an attacker in Chromium: none of them reads from the server or makes a model work."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from etude.serve.server import Server
from tests.serve.toy_runs import ToyRuns, ask, serving

SMUGGLED = (
    "POST /fill HTTP/1.1\\r\\nHost: localhost\\r\\nContent-Type: application/json\\r\\nContent-Length: 19\\r\\n\\r\\n"
    '{\\"input\\":\\"[MASK]\\"}'
)


class AttackerPage(BaseHTTPRequestHandler):
    """An empty page, on which the test runs the attacker's script."""

    def do_GET(self) -> None:
        body = b"<!doctype html><title>attacker</title>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *values: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def attacker() -> Iterator[int]:
    """The port of the attacker's site."""
    with ThreadingHTTPServer(("127.0.0.1", 0), AttackerPage) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        yield site.server_address[1]
        site.shutdown()


@pytest.fixture
def server(runs: ToyRuns) -> Iterator[Server]:
    with serving(runs.open("bert-toy")) as server:
        yield server
        metrics = ask(server, "GET", "/metrics").text
        assert "etude_requests_total{" not in metrics, "a model was made to work"
        assert "etude_batch_requests_count 0.0" in metrics


def test_rebinding(browser: Any, server: Server) -> None:
    """evil.example points at this machine: the page is of the server's own origin, and is refused all the same."""
    page = browser.new_page()
    response = page.goto(f"http://evil.example:{server.port}/")
    assert response.status == 421
    statuses = page.evaluate(
        """async () => {
          const post = {method: "POST", headers: {"Content-Type": "application/json"}, body: '{"input":"[MASK]"}'};
          const ask = async path => (await fetch(path, path === "/fill" ? post : {})).status;
          return Promise.all(["/about", "/metrics", "/openapi.json", "/fill"].map(ask));
        }"""
    )
    assert statuses == [421] * 4
    page.close()


def test_smuggling(browser: Any, server: Server, attacker: int) -> None:
    """The body of a refused request is a whole request; no answer to it is ever seen, in ten tries each."""
    page = browser.new_page()
    page.goto(f"http://evil.example:{server.port}/")  # same origin as what follows: answers could be read
    statuses = page.evaluate(
        f"""async () => {{ const seen = [];
          for (let attempt = 0; attempt < 10; attempt++) {{
            const sent = fetch("/fill", {{method: "POST", body: "{SMUGGLED}"}}), next = fetch("/about");
            seen.push((await sent).status, (await next).status);
          }} return seen; }}"""
    )
    assert statuses == [421] * 20
    page.goto(f"http://evil.example:{attacker}/")
    failures = page.evaluate(
        f"""async () => {{ let failed = 0;
          for (let attempt = 0; attempt < 10; attempt++)
            for (const mode of ["cors", "no-cors"])
              try {{
                const sent = {{method: "POST", mode, body: "{SMUGGLED}"}};
                const answer = await fetch("http://127.0.0.1:{server.port}/fill", sent);
                if (answer.type === "opaque") failed++;
              }} catch {{ failed++; }}
          return failed; }}"""
    )
    assert failures == 20
    page.close()


def test_elements_of_another_page(browser: Any, server: Server, attacker: int) -> None:
    """Images, scripts, styles, frames, forms, beacons and sockets reach no route."""
    page = browser.new_page()
    page.goto(f"http://evil.example:{attacker}/")
    address = f"http://127.0.0.1:{server.port}"
    outcomes = page.evaluate(
        """async address => {
          const load = (tag, name, path) => new Promise(resolve => {
            const element = document.createElement(tag);
            element.onload = () => resolve(`${tag} loaded`);
            element.onerror = () => resolve(`${tag} refused`);
            if (tag === "link") element.rel = "stylesheet";
            element[name] = address + path;
            document.body.append(element);
          });
          const results = [await load("img", "src", "/attention?text=the%20cat"), await load("img", "src", "/about"),
            await load("script", "src", "/about"), await load("link", "href", "/static/style.css")];
          for (const path of ["/about", "/attention?text=x", "/fill"]) {
            const frame = document.createElement("iframe");
            frame.src = address + path;
            await new Promise(resolve => { frame.onload = resolve; document.body.append(frame); });
            let seen = null;
            try { seen = frame.contentDocument; } catch { /* of another origin */ }
            results.push(seen ? "frame read" : "frame closed");
          }
          navigator.sendBeacon(address + "/fill", new Blob(['{"input":"[MASK]"}'], {type: "text/plain"}));
          await new Promise(resolve => {
            const socket = new WebSocket(address.replace("http", "ws") + "/fill");
            socket.onopen = () => { results.push("socket open"); resolve(); };
            socket.onerror = () => { results.push("socket refused"); resolve(); };
          });
          return results;
        }""",
        address,
    )
    assert outcomes == ["img refused", "img refused", "script refused", "link refused"] + ["frame closed"] * 3 + [
        "socket refused"
    ]
    page.set_content(
        f"""<form method="post" enctype="text/plain" action="{address}/fill">
        <input name='{{"input":"[MASK]","x":"' value='"}}'><button>send</button></form>"""
    )
    with page.expect_navigation():
        page.click("button")
    assert page.evaluate("document.body.innerText").count('"status":403') == 1
    page.close()

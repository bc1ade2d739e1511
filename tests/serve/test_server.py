"""A run behind HTTP: answers are those of Python, what is wrong is told, and nobody else's page gets in."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import etude
from etude.errors import UserError
from etude.hub.run_weights import save_final
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.runs.run import Run
from etude.serve import server as module
from etude.serve.endpoints import ServedModel
from etude.serve.server import Server, allowed_hosts
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.view.attention import compute_attention

TEXT = "the cat sat on the mat"
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function from a recipe to the folder of a run with random weights, or of one fine-tuned on two labels."""
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name in made:
            return made[name]
        folder = tmp_path_factory.mktemp("runs") / name
        if name == "tuned":
            examples = folder.with_suffix(".jsonl")
            rows = [{"text": text, "label": label} for text, label in ((TEXT, "cat"), ("a dog ran", "dog"))]
            examples.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
            etude.finetune(
                make("bert-toy"), "classify", train=examples, out=folder, quiet=True, settings={"train.steps": 2}
            )
        else:
            tokenizer = Tokenizer.train("wordpiece:60", [TEXT, "a dog ran"] * 5)
            recipe = Recipe.load(name).resolve(vocab=tokenizer.vocab)
            folder.mkdir()
            (folder / "recipe.yaml").write_text(recipe.dump(), encoding="utf-8")
            tokenizer.save(folder)
            torch.manual_seed(0)
            save_final(Run(folder), *build_learner(recipe, tokenizer), model_card="random weights")
        made[name] = folder
        return folder

    return make


@contextmanager
def served(place: Path) -> Iterator[Server]:
    with Server(ServedModel.open(place, "cpu"), port=0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(
    server: Server, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
    sent = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
    connection.request(method, path, sent, JSON if headers is None else headers)
    answer = connection.getresponse()
    status, text = answer.status, answer.read().decode()
    connection.close()
    return status, text


def post(server: Server, name: str, **values: Any) -> Any:
    status, text = ask(server, "POST", f"/{name}", values)
    assert status == 200, text
    return json.loads(text)


@pytest.mark.parametrize(
    ("name", "abilities"),
    [
        ("bert-toy", ["fill", "attention", "encode"]),
        ("gpt2-toy", ["generate", "attention", "encode"]),
        ("skipgram-toy", ["encode"]),
        ("tuned", ["predict", "attention", "encode"]),
        ("transformer-toy", ["translate", "attention", "encode"]),
    ],
)
def test_a_run_serves_what_it_can(run: Callable[[str], Path], name: str, abilities: list[str]) -> None:
    with served(run(name)) as server:
        status, text = ask(server, "GET", "/about")
        about = json.loads(text)
        assert status == 200 and about["name"] == name and list(about["abilities"]) == abilities
        assert about["inputs"] == (["text"] if name == "tuned" else [])
        status, text = ask(server, "GET", "/")
        assert status == 200 and all(f'id="{ability}"' in text for ability in abilities)
        status, text = ask(server, "POST", "/predicted", {})
        assert status == 404 and f"POST /{abilities[0]}" in json.loads(text)["error"]


def test_answers_are_those_of_python(run: Callable[[str], Path]) -> None:
    with served(run("bert-toy")) as server:
        model = etude.load(run("bert-toy"))
        result = post(server, "fill", text="the [MASK] sat [MASK]", top=2)["blanks"]
        wanted: Any = model.fill("the [MASK] sat [MASK]", top=2)
        assert [[guess["token"] for guess in item] for item in result] == [
            [guess.token for guess in item] for item in wanted
        ]
        assert result[0][0]["text"] == wanted[0][0].text
        vectors = post(server, "encode", texts=[TEXT, "a dog"], pool="first")["vectors"]
        np.testing.assert_allclose(vectors, model.encode([TEXT, "a dog"], pool="first"), atol=1e-5)
        seen = post(server, "attention", text=TEXT)
        assert seen["tokens"] == compute_attention(model, TEXT).tokens
        np.testing.assert_allclose(seen["weights"], compute_attention(model, TEXT).weights, atol=1e-4)
        status, page = ask(server, "GET", "/attention?text=the%20cat&second=a%20dog")
        assert status == 200 and "<h1>the cat ⏐ a dog</h1>" in page
    with served(run("gpt2-toy")) as server:
        written = post(server, "generate", text="the cat", tokens=5, seed=3)
        wanted = etude.load(run("gpt2-toy")).generate("the cat", tokens=5, seed=3)
        assert (written["text"], written["ended"]) == (wanted.text, wanted.ended)
    with served(run("transformer-toy")) as server:
        translated = post(server, "translate", texts=[TEXT, "a dog"], beams=2)
        best = [each[0] for each in etude.load(run("transformer-toy")).translate([TEXT, "a dog"], beams=2)]
        assert translated["texts"] == [each.text for each in best] and len(translated["scores"]) == 2
        seen = post(server, "attention", text="the cat", second="a dog ran")
        assert len(seen["keys"]) != len(seen["tokens"]) and len(seen["weights"][0][0]) == len(seen["tokens"])
    with served(run("tuned")) as server:
        answers = post(server, "predict", inputs=[TEXT, {"text": "a dog"}])["answers"]
        assert [answer["label"] in ("cat", "dog") for answer in answers] == [True, True]


def test_many_at_once_get_their_own_answers(run: Callable[[str], Path]) -> None:
    texts = [f"the cat sat {'on ' * count}" for count in range(1, 13)]
    with served(run("bert-toy")) as server, ThreadPoolExecutor(6) as pool:
        result = list(pool.map(lambda text: post(server, "encode", texts=[text])["vectors"][0], texts))
    np.testing.assert_allclose(result, etude.load(run("bert-toy")).encode(texts), atol=1e-5)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/fill", b"{oops", "not JSON"),
        ("/fill", b"\xff", "not JSON"),
        ("/fill", b"[" * 100_000, "not JSON"),
        ("/fill", [1], "a JSON object"),
        ("/fill", {}, "text"),
        ("/fill", {"text": "no blank"}, "There is no [MASK]"),
        ("/fill", {"text": "[MASK]", "tpo": 3}, "Did you mean 'top'?"),
        ("/fill", {"text": "[MASK]", "top": 0}, "top"),
        ("/encode", {"texts": []}, "texts"),
        ("/encode", {"texts": ["a"] * 2000}, "texts"),
        ("/attention", {"text": " "}, "leaves nothing"),
    ],
)
def test_wrong_requests_are_told(run: Callable[[str], Path], path: str, body: Any, message: str) -> None:
    with served(run("bert-toy")) as server:
        status, text = ask(server, "POST", path, body)
        assert status == 400 and message in json.loads(text)["error"]
        assert post(server, "fill", text="the [MASK]")["blanks"]  # and it goes on


def test_requests_that_are_too_large_or_of_no_length(
    run: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_BODY_BYTES", 100)
    with served(run("bert-toy")) as server:
        assert ask(server, "POST", "/fill", {"text": "[MASK]" + "x" * 200})[0] == 400
        connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
        connection.putrequest("POST", "/fill")
        connection.putheader("Content-Length", "-5")
        connection.endheaders()
        assert connection.getresponse().status == 400
        connection.close()


def test_pages_of_others_do_not_get_in(run: Callable[[str], Path]) -> None:
    """A form of another site cannot send JSON, and a name that was pointed at this machine is not answered."""
    with served(run("bert-toy")) as server:
        body = json.dumps({"text": "[MASK]"}).encode()
        for kind in ("text/plain", "application/x-www-form-urlencoded"):
            status, text = ask(server, "POST", "/fill", body, {"Content-Type": kind})
            assert status == 400 and "Content-Type: application/json" in text
        for host in ("evil.example", "evil.example:8000", "localhost.evil.example:80", ""):
            assert ask(server, "GET", "/about", headers={"Host": host})[0] == 403
        for host in ("localhost", "localhost:1234", "127.0.0.1", "127.0.0.1:80", "[::1]:80"):
            assert ask(server, "GET", "/about", headers={"Host": host})[0] == 200


def test_where_it_listens() -> None:
    assert allowed_hosts("127.0.0.1") == allowed_hosts("localhost") == frozenset({"localhost", "127.0.0.1", "[::1]"})
    assert allowed_hosts("0.0.0.0") is None and allowed_hosts("my.machine") is None


def test_a_fault_of_ours_is_said_and_logged(
    run: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with served(run("bert-toy")) as server:
        monkeypatch.setattr(server.served.model, "encode", lambda *_, **__: 1 / 0)
        status, text = ask(server, "POST", "/encode", {"texts": ["a"]})
    assert status == 500 and "see its log" in text and "ZeroDivision" not in text
    assert "ZeroDivisionError" in caplog.text


def test_a_port_that_is_taken_is_told(run: Callable[[str], Path]) -> None:
    with served(run("bert-toy")) as server, pytest.raises(UserError, match="name another with --port"):
        Server(server.served, port=server.server_address[1])


def test_the_command_line_ends_when_told(run: Callable[[str], Path]) -> None:
    command = [sys.executable, "-m", "etude", "serve", str(run("skipgram-toy")), "--port", "0", "--device", "cpu"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        told = process.stderr.readline()
        result = re.search(r"skipgram-toy at http://127\.0\.0\.1:(\d+) \(encode\)", told)
        assert result, told
        connection = http.client.HTTPConnection("127.0.0.1", int(result[1]), timeout=30)
        connection.request("GET", "/about")
        assert json.loads(connection.getresponse().read())["name"] == "skipgram-toy"
        connection.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert '"GET /about HTTP/1.1" 200' in process.stderr.read()

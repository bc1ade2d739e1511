"""Load: batches, streams, a full queue, time limits, clients that leave, and an end that loses nothing."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etude
from etude.errors import UserError
from etude.inference.task_model import TaskModel
from etude.models.layer_features import LayerFeatures
from etude.serve import endpoints, generation
from etude.serve.app import Service
from etude.serve.endpoints import Endpoint
from etude.serve.limits import Limits
from etude.serve.requests import EncodeRequest, GenerateRequest, PredictRequest
from etude.serve.served_model import ServedModel
from etude.serve.server import Server
from tests.serve.toy_runs import JSON, ToyRuns, ask, post, serving


class Gate:
    """An endpoint that answers when it is let through, and counts the requests of each pass."""

    def __init__(self) -> None:
        self.open, self.entered = threading.Event(), threading.Semaphore(0)
        self.batches: list[int] = []

    def answer(self, requests: Sequence[EncodeRequest]) -> list[list[dict[str, Any]]]:
        self.batches.append(len(requests))
        self.entered.release()
        assert self.open.wait(300)
        return [[{"vector": [float(len(text))]} for text in request.texts()] for request in requests]

    def model(self) -> ServedModel:
        return ServedModel("gate", "", {"encode": Endpoint(self.answer, lambda request: request.pool)}, None)


def test_requests_that_wait_are_answered_in_one_pass() -> None:
    gate = Gate()
    with serving(gate.model()) as server, ThreadPoolExecutor(21) as pool:
        first = pool.submit(post, server, "encode", input="x")
        assert gate.entered.acquire(timeout=120)
        waiting = [pool.submit(post, server, "encode", input="x" * size) for size in range(2, 22)]
        while server.service.engine.pending < 21:
            time.sleep(0.01)
        gate.open.set()
        assert first.result() == [{"vector": [1.0]}]
        assert [each.result() for each in waiting] == [[{"vector": [float(size)]}] for size in range(2, 22)]
    assert gate.batches == [1, 20]


def test_a_full_queue_is_429_and_a_late_answer_503() -> None:
    gate = Gate()
    with serving(gate.model(), limits=Limits(queue=2)) as server, ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(ask, server, "POST", "/encode", {"input": "x"}) for _ in range(2)]
        while server.service.engine.pending < 2:
            time.sleep(0.01)
        answer = ask(server, "POST", "/encode", {"input": "x"})
        assert answer.status == 429 and answer.json["title"] == "Too Many Requests"
        assert answer.headers["Retry-After"] == "1"
        gate.open.set()
        assert [each.result().status for each in waiting] == [200, 200]
    late = Gate()
    with serving(late.model(), limits=Limits(timeout=0.2)) as server, ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(ask, server, "POST", "/encode", {"input": "x"}) for _ in range(2)]
        assert [each.result().status for each in waiting] == [503, 503]
        late.open.set()
        answers = (ask(server, "POST", "/encode", {"input": "xyz"}) for _ in range(100))  # a busy machine may be late
        assert next(each for each in answers if each.status == 200).json["results"] == [{"vector": [3.0]}]


def test_a_request_whose_client_left_is_not_computed() -> None:
    gate = Gate()
    with serving(gate.model()) as server, ThreadPoolExecutor(1) as pool:
        first = pool.submit(post, server, "encode", input="x")
        assert gate.entered.acquire(timeout=120)
        body = json.dumps({"input": "left"}).encode()
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        connection.request("POST", "/encode", body, JSON)
        while server.service.engine.pending < 2:
            time.sleep(0.01)
        connection.close()
        while server.service.engine.pending > 1:
            time.sleep(0.01)
        gate.open.set()
        first.result()
    assert gate.batches == [1]


def test_several_passes_run_at_once_but_a_run_that_remembers_is_asked_in_turn() -> None:
    for turn, entered in ((nullcontext(), True), (threading.Lock(), False)):
        gate = Gate()
        model = replace(gate.model(), turn=turn)
        with serving(model, limits=Limits(workers=2)) as server, ThreadPoolExecutor(2) as pool:
            first = pool.submit(post, server, "encode", input="x")
            assert gate.entered.acquire(timeout=120)
            second = pool.submit(post, server, "encode", input="xy")
            assert gate.entered.acquire(timeout=120 if entered else 0.3) == entered
            gate.open.set()
            assert (first.result(), second.result()) == ([{"vector": [1.0]}], [{"vector": [2.0]}])


def test_answers_of_several_passes_at_once_are_those_of_each_alone(runs: ToyRuns) -> None:
    """Texts in generation among them, which one thread writes."""
    texts = [f"the cat sat {'on ' * count}" for count in range(1, 25)]
    models = [runs.open(name) for name in ("bert-toy", "tuned", "gpt2-toy")]
    limits = Limits(workers=3, batch_requests=4)
    with serving(*models, limits=limits) as server, ThreadPoolExecutor(24) as pool:
        written = [pool.submit(post, server, "generate", input=text, tokens=8, seed=1) for text in texts[:6]]
        vectors = [pool.submit(post, server, "encode", input=text, run="bert-toy") for text in texts]
        labels = [pool.submit(post, server, "predict", input=text) for text in texts]
        wanted = etude.load(runs("bert-toy")).encode(texts)
        np.testing.assert_allclose([each.result()[0]["vector"] for each in vectors], wanted, atol=1e-5)
        answers = etude.load(runs("tuned")).predict(texts)
        assert [each.result()[0]["label"] for each in labels] == [answer["label"] for answer in answers]
        model = etude.load(runs("gpt2-toy"))
        continued: list[Any] = [model.generate(text, tokens=8, seed=1) for text in texts[:6]]
        assert [each.result()[0]["text"] for each in written] == [text.text for text in continued]


def test_runs_whose_answers_change_nothing_are_asked_at_once(runs: ToyRuns) -> None:
    for name, is_free in (("bert-toy", True), ("tuned", True), ("skipgram-toy", True), ("elmo-toy", False)):
        assert isinstance(runs.open(name).turn, nullcontext) == is_free, name


def test_inputs_of_too_many_tokens_are_413(runs: ToyRuns) -> None:
    with serving(runs.open("bert-toy"), limits=Limits(tokens=50)) as server:
        answer = ask(server, "POST", "/encode", {"input": ["the cat sat on the mat"] * 20})
        assert answer.status == 413 and "120 tokens" in answer.json["detail"]
        assert post(server, "encode", input="the cat " * 10)


def refuse_to_compute(*values: object) -> None:
    raise AssertionError("it was computed")


def test_answers_that_would_be_too_large_are_413_before_they_are_computed(
    runs: ToyRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(runs.open("bert-toy"), runs.open("transformer-toy")) as server:
        blanks = {"input": ["the [MASK] sat"], "top": 3}
        monkeypatch.setattr(endpoints, "LARGEST_FILLED", 3 * len("the [MASK] sat"))
        assert post(server, "fill", **blanks)
        monkeypatch.setattr(endpoints, "fill_texts", refuse_to_compute)
        for larger in ({"top": 4}, {"input": ["the [MASK] sat", "[MASK]"]}, {"input": ["the [MASK] [MASK]"]}):
            answer = ask(server, "POST", "/fill", blanks | larger)
            assert answer.status == 413 and "fewer blanks" in answer.json["detail"]
        text = {"run": "bert-toy", "input": "the cat sat on the mat"}
        [maps] = post(server, "attention", **text)
        count = np.array(maps["weights"]).size
        monkeypatch.setattr(endpoints, "LARGEST_MAPS", count)
        assert post(server, "attention", **text)
        monkeypatch.setattr(endpoints, "compute_maps", refuse_to_compute)
        for larger in ({"input": "the cat sat on the mat " * 2}, {"second": "the cat sat on the mat"}):
            answer = ask(server, "POST", "/attention", text | larger)
            assert answer.status == 413 and "shorter texts" in answer.json["detail"]
        pair = {"run": "transformer-toy", "input": "the cat " * 20, "second": "a dog ran " * 10}
        monkeypatch.setattr(endpoints, "LARGEST_MAPS", 40 * 30 - 1)
        assert ask(server, "POST", "/attention", pair).status == 413


def read_events(server: Server, **values: Any) -> list[tuple[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    connection.request("POST", "/generate", json.dumps({"stream": True, **values}), JSON)
    response = connection.getresponse()
    assert response.status == 200 and response.headers["Content-Type"].startswith("text/event-stream")
    blocks = response.read().decode().strip().split("\n\n")
    connection.close()
    return [(name[7:], json.loads(data[6:])) for name, data in (block.split("\n") for block in blocks)]


def test_generation_streams_and_many_texts_are_written_together(runs: ToyRuns) -> None:
    """Each equal to the text it is alone, whatever joins and leaves beside it."""
    alone = etude.load(runs("gpt2-toy"))
    prompts = ["the cat", "a dog ran on the mat and", "", "the", "mat mat mat"]
    requests = [
        {"input": prompt, "tokens": 3 + 4 * number, "seed": seed, "temperature": temperature}
        for number, prompt in enumerate(prompts)
        for seed, temperature in ((0, 1.0), (1, 0.7), (2, 0.0))
    ]
    wanted: list[Any] = [
        alone.generate(str(each["input"]), tokens=each["tokens"], seed=each["seed"], temperature=each["temperature"])
        for each in requests
    ]
    with serving(runs.open("gpt2-toy")) as server, ThreadPoolExecutor(15) as pool:
        streams = list(pool.map(lambda values: read_events(server, **values), requests))
        whole = list(pool.map(lambda values: post(server, "generate", **values)[0], requests))
        both = post(server, "generate", input=["the cat", "the"], tokens=4, seed=5)
    for events, result, text in zip(streams, whole, wanted, strict=True):
        assert result == {"text": text.text, "ended": text.ended}
        assert "".join(data["text"] for name, data in events if name == "piece") == text.text
        assert events[-1] == ("end", {"number": 0, "text": text.text, "ended": text.ended})
    assert [row["text"] for row in both] == [alone.generate(p, tokens=4, seed=5).text for p in ("the cat", "the")]


def test_prompts_are_read_a_few_at_a_time(runs: ToyRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read in one step has a bound, however many prompts wait; the texts are those of each alone."""
    model = etude.load(runs("gpt2-toy"))
    words = ["the", "cat", "sat", "on", "mat"]
    prompts = [" ".join([*words[start:], *words[:start]]) for start in range(5)]
    monkeypatch.setattr(generation, "TOKENS", 2 * len(model.tokenizer.encode(prompts[0])))
    finished: dict[int, str] = {}

    def deliver(pieces: list[generation.Piece] | Exception) -> None:
        assert isinstance(pieces, list), pieces
        finished.update({each.number: each.continuation.text for each in pieces if each.continuation is not None})

    generator = generation.TextGenerator(model, 64)
    generator.add(generation.GenerateJob(GenerateRequest(input=prompts, tokens=6, seed=2), deliver))
    waiting = [len(prompts)]
    while not generator.is_idle:
        generator.step()
        waiting.append(len(generator.waiting))
    assert waiting[:3] == [5, 3, 1]
    wanted: list[Any] = [model.generate(prompt, tokens=6, seed=2) for prompt in prompts]
    assert [finished[number] for number in range(len(prompts))] == [text.text for text in wanted]


def test_a_fault_reaches_texts_that_just_joined(runs: ToyRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """They had left the queue and were not yet among the texts: their request waited until its time was over."""
    delivered: list[list[generation.Piece] | Exception] = []

    def refuse(*_: object) -> None:
        raise MemoryError("no memory for a cache")

    monkeypatch.setattr(generation, "Reader", refuse)
    generator = generation.TextGenerator(etude.load(runs("gpt2-toy")), 64)
    generator.add(generation.GenerateJob(GenerateRequest(input="the cat", tokens=6), delivered.append))
    generator.step()
    assert [type(each) for each in delivered] == [MemoryError] and generator.is_idle


def test_a_text_longer_than_the_context_slides_beside_others(runs: ToyRuns) -> None:
    model = etude.load(runs("gpt2-toy"))
    tokens = model.model.max_length + 20
    wanted: Any = model.generate("the cat", tokens=tokens, temperature=0.5)
    with serving(runs.open("gpt2-toy")) as server, ThreadPoolExecutor(4) as pool:
        long = pool.submit(post, server, "generate", input="the cat", tokens=tokens, temperature=0.5)
        for seed in range(6):
            assert post(server, "generate", input="a dog", tokens=5, seed=seed)
        assert long.result()[0]["text"] == wanted.text


def test_a_stream_whose_client_left_ends(runs: ToyRuns) -> None:
    with serving(runs.open("gpt2-toy")) as server:
        engine = server.service.engine
        body = json.dumps({"input": "the", "tokens": 1024, "stream": True}).encode()
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            request = (
                b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d"
            )
            connection.sendall(request % len(body) + b"\r\n\r\n" + body)
            assert connection.recv(10)
        deadline = time.monotonic() + 120
        while engine.pending or not engine.generators["gpt2-toy"].is_idle:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert engine.generators["gpt2-toy"].new_tokens < 1024


def test_two_hundred_connections_at_once_are_all_answered(runs: ToyRuns) -> None:
    texts = [f"the cat {'sat ' * (number % 9)}on the mat" for number in range(200)]
    with serving(runs.open("bert-toy")) as server:
        body = [json.dumps({"input": text}).encode() for text in texts]
        head = b"POST /encode HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
        connections = [socket.create_connection(("127.0.0.1", server.port), timeout=120) for _ in texts]
        for connection, each in zip(connections, body, strict=True):
            connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(each) + each)
        answers = [connection.makefile("rb").read() for connection in connections]
    vectors = [json.loads(answer.partition(b"\r\n\r\n")[2])["results"][0]["vector"] for answer in answers]
    wanted = etude.load(runs("bert-toy")).encode(texts)
    assert max(abs(vectors[row][0] - wanted[row][0]) for row in range(200)) < 1e-5


def test_shutting_down_finishes_what_was_accepted() -> None:
    gate = Gate()
    with ThreadPoolExecutor(6) as pool:
        with serving(gate.model()) as server:
            waiting = [pool.submit(ask, server, "POST", "/encode", {"input": "x" * size}) for size in range(1, 6)]
            while server.service.engine.pending < 5:
                time.sleep(0.01)
            server.begin_shutdown()
            while not server.service.engine.draining:
                time.sleep(0.005)
            assert ask(server, "POST", "/encode", {"input": "late"}).status == 503
            assert ask(server, "GET", "/health").status == 503
            gate.open.set()
        answers = [each.result() for each in waiting]
    assert [answer.status for answer in answers] == [200] * 5
    assert [answer.json["results"][0]["vector"] for answer in answers] == [[float(size)] for size in range(1, 6)]


def test_what_cannot_be_finished_in_time_is_503() -> None:
    gate = Gate()
    with ThreadPoolExecutor(3) as pool:
        with serving(gate.model(), limits=Limits(grace=0.3, batch_requests=1)) as server:
            waiting = [pool.submit(ask, server, "POST", "/encode", {"input": "x"}) for _ in range(3)]
            assert gate.entered.acquire(timeout=120)
            while server.service.engine.pending < 3:
                time.sleep(0.01)
            server.begin_shutdown()
            while not server.service.engine._aborted:  # all but the one whose pass is under way
                time.sleep(0.01)
            gate.open.set()
        assert sorted(each.result().status for each in waiting) == [200, 503, 503]


def test_a_port_that_is_taken_is_told(runs: ToyRuns) -> None:
    with serving(runs.open("bert-toy")) as server, pytest.raises(UserError, match="name another with --port"):
        Server(Service.create([], Limits()), port=server.port)


# `python -m etude`, which says at its end which modules of torch's compiler it has imported
LIST_COMPILER = """
import atexit, runpy, sys
compiler = ("torch._dynamo.", "torch._inductor.", "sympy.")
atexit.register(lambda: print([name for name in sys.modules if name.startswith(compiler)]))
runpy.run_module("etude", run_name="__main__", alter_sys=True)
"""


def test_the_command_line_ends_with_requests_in_flight_and_never_imports_a_compiler(runs: ToyRuns) -> None:
    """The import of torch's compiler takes seconds, and nothing is compiled: neither at the start nor in answers."""
    names = ["gpt2-toy", "skipgram-toy", "bert-toy", "elmo-toy", "tuned"]
    command = [sys.executable, "-c", LIST_COMPILER, "serve", *(str(runs(name)) for name in names)]
    with (
        subprocess.Popen(
            [*command, "--port", "0", "--device", "cpu"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process,
        ExitStack() as stack,
    ):
        stack.callback(process.kill)  # a failed test must not wait for a server
        assert process.stdout is not None and process.stderr is not None
        # beside what it says of itself: how long it has been loading
        lines = list(islice((line for line in process.stderr if not re.search(r"… \d+ s$", line.strip())), 7))
        match = re.search(r"gpt2-toy at http://127\.0\.0\.1:(\d+) \(generate, attention", lines[0])
        assert match and "skipgram-toy at" in lines[1] and "curl http://" in lines[6], lines
        port = int(match[1])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        connection.request("GET", "/about")
        assert [run["name"] for run in json.loads(connection.getresponse().read())["runs"]] == names

        def generate(seed: int) -> int:
            own = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            body = json.dumps({"input": "the cat", "tokens": 300, "seed": seed})
            own.request("POST", "/generate", body, JSON)
            return own.getresponse().status

        with ThreadPoolExecutor(8) as pool:
            waiting = [pool.submit(generate, seed) for seed in range(8)]
            connection.request("GET", "/health")
            while json.loads(connection.getresponse().read())["pending"] < 8 and not all(
                each.done() for each in waiting
            ):
                connection.request("GET", "/health")
            process.send_signal(signal.SIGTERM)
            assert {each.result() for each in waiting} <= {200, 503}
        assert process.wait(120) == 0
        assert '"POST /generate HTTP/1.1"' in process.stderr.read()
        assert process.stdout.read().strip() == "[]"


def test_a_server_keeps_no_states_of_the_texts_it_has_read(
    runs: ToyRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training keeps the states of frozen layers, up to two gigabytes of them."""
    assert runs("tuned").exists()
    settings = {"train.steps": 1, "transfer.frozen": True}
    examples, frozen = runs.folder / "tuned.jsonl", tmp_path / "frozen"
    etude.finetune(runs("bert-toy"), "classify", train=examples, out=frozen, quiet=True, settings=settings)
    opened = TaskModel.open(frozen, "cpu")
    monkeypatch.setattr(TaskModel, "open", lambda *_, **__: opened)
    served = ServedModel.open(frozen, "cpu")
    served.endpoints["predict"].answer([PredictRequest(input=["the cat", "a dog ran"])])
    assert isinstance(opened.model, LayerFeatures) and not opened.model.cache


def test_unknown_words_do_not_fill_the_memory(runs: ToyRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that reads letters numbers the words it does not know; a server is asked for ever new ones."""
    monkeypatch.setattr("etude.serve.served_model.MOST_WORDS", 20)
    for name in ("elmo-toy", "fasttext-toy"):
        served = ServedModel.open(runs(name), "cpu")
        texts = [f"the wug{number} sat by the blick{number}" for number in range(30)]
        with serving(served) as server:
            vectors = [post(server, "encode", input=text)[0]["vector"] for text in texts]
        assert served.spellers and all(speller.new_word_count <= 23 for speller in served.spellers), name
        np.testing.assert_allclose(vectors, etude.load(runs(name)).encode(texts), atol=1e-5, err_msg=name)

"""Passes in processes of their own: the same answers and faults, and processes that end with the server."""

from __future__ import annotations

import gc
import os
import re
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etude
from etude.errors import UserError
from etude.serve.endpoints import Endpoint
from etude.serve.limits import Limits
from etude.serve.passes import ForkedPasses, LocalPasses
from etude.serve.problems import Problem
from etude.serve.requests import EncodeRequest
from etude.serve.served_model import ServedModel
from tests.serve.toy_runs import ToyRuns, ask, post, serving

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
FORKED = Limits(workers=2, forked=True)


def answer_process_id(requests: Sequence[EncodeRequest]) -> list[list[dict[str, Any]]]:
    """Answer with the process; or do what the text says."""
    texts = [text for request in requests for text in request.texts()]
    if "problem" in texts:
        raise Problem(413, "too long", {"Retry-After": "7"})
    if "user error" in texts:
        raise UserError("no such word", "take --unknown")
    if "fault" in texts:
        raise ZeroDivisionError("a fault of ours")
    if "death" in texts:
        os.kill(os.getpid(), signal.SIGKILL)
    return [[{"vector": [float(os.getpid())]} for _ in request.texts()] for request in requests]


def echo() -> ServedModel:
    return ServedModel("echo", "", {"encode": Endpoint(answer_process_id, lambda request: request.pool)}, None)


def fork_passes(limits: Limits) -> ForkedPasses:
    return ForkedPasses(LocalPasses({"echo": echo()}, limits))


def test_answers_are_those_of_the_runs_alone(runs: ToyRuns) -> None:
    texts = [f"the cat sat {'on ' * count}" for count in range(1, 21)]
    masked = [text.replace("sat", "[MASK]") for text in texts]
    models = [runs.open(name) for name in ("bert-toy", "tuned", "elmo-toy", "gpt2-toy")]
    with serving(*models, limits=FORKED) as server, ThreadPoolExecutor(20) as pool:
        written = [pool.submit(post, server, "generate", input=text, tokens=8, seed=1) for text in texts[:4]]
        vectors = [pool.submit(post, server, "encode", input=text, run="bert-toy") for text in texts]
        fills = [pool.submit(post, server, "fill", input=text, run="bert-toy") for text in masked]
        labels = [pool.submit(post, server, "predict", input=text) for text in texts]
        spelled = [pool.submit(post, server, "encode", input=f"{text} wug", run="elmo-toy") for text in texts]
        bert, gpt2 = etude.load(runs("bert-toy")), etude.load(runs("gpt2-toy"))
        np.testing.assert_allclose([each.result()[0]["vector"] for each in vectors], bert.encode(texts), atol=1e-5)
        guesses: list[Any] = [bert.fill(text, 5) for text in masked]
        for each, wanted in zip(fills, guesses, strict=True):
            [blank] = each.result()[0]["blanks"]
            np.testing.assert_allclose([row["probability"] for row in blank], [row.probability for row in wanted], 1e-4)
        answers = etude.load(runs("tuned")).predict(texts)
        assert [each.result()[0]["label"] for each in labels] == [answer["label"] for answer in answers]
        elmo = etude.load(runs("elmo-toy")).encode([f"{text} wug" for text in texts])
        np.testing.assert_allclose([each.result()[0]["vector"] for each in spelled], elmo, atol=1e-5)
        continued: list[Any] = [gpt2.generate(text, tokens=8, seed=1) for text in texts[:4]]
        assert [each.result()[0]["text"] for each in written] == [text.text for text in continued]


def test_faults_are_those_of_passes_in_the_server() -> None:
    statuses: dict[bool, list[int]] = {}
    for forked in (False, True):
        with serving(echo(), limits=Limits(workers=2, forked=forked)) as server:
            answers = [
                ask(server, "POST", "/encode", {"input": text}) for text in ("x", "problem", "user error", "fault")
            ]
        statuses[forked] = [answer.status for answer in answers]
        assert answers[1].json["detail"] == "too long" and answers[1].headers["Retry-After"] == "7"
        assert answers[2].json["detail"] == "no such word"
    assert statuses[False] == statuses[True] == [200, 413, 422, 500]


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").is_file(), reason="Linux tells what processes share")
def test_a_garbage_collection_of_the_server_copies_no_shared_memory() -> None:
    """Otherwise every object's page is written to, and server and process have one each."""

    def measure() -> float:
        texts = [Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii") for pid in (os.getpid(), passes.pid)]
        return sum(int(size) for text in texts for size in re.findall(r"^Pss_Anon:\s+(\d+)", text, re.MULTILINE)) / 1024

    gc.unfreeze()  # what tests/conftest.py has frozen: a server that freezes nothing would pass
    gc.collect()
    passes = fork_passes(Limits())
    before = measure()
    gc.collect()
    assert measure() - before < 8  # MB
    passes.close()
    assert not gc.get_freeze_count()


def test_a_fault_hits_none_of_the_others_of_its_batch() -> None:
    passes = fork_passes(Limits(tokens=100))
    texts = ["x", "fault", "user error", "x " * 101, "y"]
    bodies = passes.answer("echo", "encode", [EncodeRequest(input=text) for text in texts])
    kinds = [type(body) for body in bodies]
    passes.close()
    assert kinds == [bytes, RuntimeError, UserError, Problem, bytes]
    assert "ZeroDivisionError: a fault of ours" in str(bodies[1]) and "101 tokens" in str(bodies[3])
    assert f"{float(passes.pid)}".encode() in bodies[0]  # type: ignore[operator]


def test_where_a_process_dies_its_requests_fail_and_the_server_answers_on(caplog: pytest.LogCaptureFixture) -> None:
    with serving(echo(), limits=Limits(workers=1, forked=True)) as server:
        [before] = post(server, "encode", input="x")
        assert before["vector"] != [float(os.getpid())]
        assert ask(server, "POST", "/encode", {"input": "death"}).status == 500
        assert post(server, "encode", input="x") == [{"vector": [float(os.getpid())]}]
    assert "has died (-9)" in caplog.text


def test_processes_end_with_the_server_and_not_by_its_signals() -> None:
    with serving(echo(), limits=FORKED) as server:
        process = int(post(server, "encode", input="x")[0]["vector"][0])
        for number in (signal.SIGINT, signal.SIGTERM):  # a supervisor signals all processes of a service
            os.kill(process, number)
        assert post(server, "encode", input="x")
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    passes = fork_passes(Limits())
    passes._connection.close()  # as where the server is killed
    assert os.waitpid(passes.pid, 0)[1] == 0

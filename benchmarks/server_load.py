"""Load of `etude serve`: nothing lost, nothing wrong, how fast, and whether memory stays.

    python benchmarks/server_load.py                     # a minute with 200 clients, 20,000 requests for memory
    python benchmarks/server_load.py --seconds 20 --requests 5000

A server of a run with random weights (--recipe bert-mini) runs in a process of its own; this process is 200
clients with a connection each, which ask for vectors and fill blanks. Every answer is compared with the one that the
same text gets alone, in Python, after the clock has stopped. Server and clients share the machine's cores, so the
limit is one of both; the CPU seconds of each stand beside it, which hold on a busy machine too.

1. latency of one client alone: it asks again as soon as it has its answer
2. 200 clients for --seconds, the server as it comes and then one request at a time (A B A B): lost, wrong, requests a
   second. The server of one request at a time has one thread or a thread a core, whichever answers more.
3. arrivals at random (Poisson) at half of the limit just measured: p95 against the median of one client alone, which
   is measured right before, on the same server; with the size of batches and the CPU seconds of a request
4. resident memory over --requests requests; 0: not measured
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from etude.hub.run_weights import save_final
from etude.inference.model import load
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.runs.run import Run
from etude.serve.served_model import ServedModel
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.world.world import World

TOLERANCE = 1e-4  # of vectors and probabilities: rounding of float32 in batches of another shape


@dataclass(frozen=True)
class Question:
    """A request with the answer it gets alone."""

    request: bytes
    kind: str
    answer: Any

    def is_right(self, body: bytes) -> bool:
        [result] = json.loads(body)["results"]
        if self.kind == "encode":
            return bool(np.allclose(result["vector"], self.answer, atol=TOLERANCE))
        guesses = result["blanks"][0]
        close = np.allclose([guess["probability"] for guess in guesses], [p for _, p in self.answer], atol=TOLERANCE)
        best = {token for token, p in self.answer if p > self.answer[0][1] - TOLERANCE}  # ties up to rounding
        return bool(close) and guesses[0]["token"] in best


@dataclass
class Tally:
    """What became of the requests."""

    seconds: list[float] = field(default_factory=list)
    answers: list[tuple[Question, bytes]] = field(default_factory=list)
    lost: int = 0
    statuses: dict[int, int] = field(default_factory=dict)

    @property
    def wrong(self) -> int:
        """How many answers differ from those that the questions get alone."""
        return sum(not question.is_right(body) for question, body in self.answers)


def make_run(folder: Path, name: str, lines: Sequence[str]) -> Path:
    """A masked model with random weights over a tokenizer of the world's text."""
    tokenizer = Tokenizer.train("wordpiece:8000", lines)
    recipe = Recipe.load(name).resolve(vocab=tokenizer.vocab)
    folder.mkdir()
    (folder / "recipe.yaml").write_text(recipe.dump(), encoding="utf-8")
    tokenizer.save(folder)
    torch.manual_seed(0)
    save_final(Run(folder), *build_learner(recipe, tokenizer), model_card="random weights")
    return folder


def make_questions(run: Path, lines: Sequence[str], count: int) -> list[Question]:
    """Requests of several lengths, half for a vector, half with a blank, each answered alone."""
    model = load(run, "cpu")
    draw = random.Random(0)
    questions = []
    for number in range(count):
        words = " ".join(draw.choice(lines).split()[: draw.randint(4, 24)]).split()
        kind = "encode" if number % 2 else "fill"
        answer: Any
        if kind == "fill":
            words[draw.randrange(len(words))] = "[MASK]"
            guesses: Any = model.fill(" ".join(words), 5)
            answer = [(guess.token, guess.probability) for guess in guesses]
        else:
            answer = model.encode([" ".join(words)])[0].tolist()
        body = json.dumps({"input": " ".join(words)}).encode()
        head = f"POST /{kind} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        length = f"Content-Length: {len(body)}\r\n\r\n"
        questions.append(Question(head.encode() + length.encode() + body, kind, answer))
    return questions


# --- server -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setup:
    """How a server is started."""

    name: str
    options: tuple[str, ...] = ()
    threads: int | None = None  # of torch; None: as the server shares them out


BATCHED = Setup("batches")
ALONE = [
    Setup(f"one at a time, {threads} threads", ("--batch", "1", "--workers", "1"), threads)
    for threads in sorted({1, os.cpu_count() or 1})
]


@contextmanager
def serving(run: Path, setup: Setup) -> Iterator[tuple[int, int]]:
    """(port, process id) of a server."""
    command = [sys.executable, "-m", "etude", "serve", str(run), "--port", "0", "--device", "cpu", "--quiet"]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    if setup.threads is not None:
        environment["OMP_NUM_THREADS"] = str(setup.threads)
    command += setup.options
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        match = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        if match is None:
            raise SystemExit(line + process.stderr.read())
        try:
            yield int(match[1]), process.pid
        finally:
            process.terminate()
            if process.wait(60) != 0:
                raise SystemExit(f"the server ended with {process.returncode}: {process.stderr.read()}")


def list_processes(pid: int) -> list[int]:
    """A server and the processes in which it runs passes."""
    children = Path(f"/proc/{pid}/task").glob("*/children")
    return [pid, *(int(child) for file in children for child in file.read_text(encoding="utf-8").split())]


def cpu_seconds(pid: int) -> float:
    """What all threads of a server have computed so far, in all of its processes."""
    stats = [Path(f"/proc/{each}/stat").read_text(encoding="utf-8") for each in list_processes(pid)]
    fields = [stat.rpartition(")")[2].split() for stat in stats]
    return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """Resident memory of a server; pages that its processes share count once.

    Without those of files such as torch's libraries: their share depends on which other programs use them, too.
    """
    texts = [Path(f"/proc/{each}/smaps_rollup").read_text(encoding="utf-8") for each in list_processes(pid)]
    return sum(int(size) for text in texts for size in re.findall(r"^Pss_(?:Anon|Shmem):\s+(\d+)", text, re.M)) / 1024


# --- clients ----------------------------------------------------------------------------------------


class Client:
    """One connection that is kept."""

    def __init__(self, port: int, tally: Tally) -> None:
        self.port, self.tally = port, tally
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, question: Question) -> None:
        start = time.perf_counter()
        try:
            # a server closes connections on which nothing is asked for some seconds
            if self.streams is None or self.streams[0].at_eof():
                self.streams = await asyncio.open_connection("127.0.0.1", self.port)
            reader, writer = self.streams
            writer.write(question.request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(re.search(rb"content-length: (\d+)", head, re.IGNORECASE)[1])  # type: ignore[index]
            body = await reader.readexactly(length)
        except (OSError, asyncio.IncompleteReadError):
            self.tally.lost += 1
            self.streams = None
            return
        self.tally.seconds.append(time.perf_counter() - start)
        status = int(head.split(b" ")[1])
        self.tally.statuses[status] = self.tally.statuses.get(status, 0) + 1
        if status == 200:
            self.tally.answers.append((question, body))

    def close(self) -> None:
        if self.streams is not None:
            self.streams[1].close()


async def ask_in_turn(port: int, questions: Sequence[Question], clients: int, seconds: float, most: int) -> Tally:
    """Each client asks again as soon as it has its answer, for some seconds or some requests."""
    tally = Tally()
    end = time.perf_counter() + seconds
    numbers = iter(range(most))

    async def work() -> None:
        client = Client(port, tally)
        while time.perf_counter() < end and (number := next(numbers, None)) is not None:
            await client.ask(questions[number % len(questions)])
        client.close()

    await asyncio.gather(*(work() for _ in range(clients)))
    return tally


async def ask_at_rate(port: int, questions: Sequence[Question], rate: float, seconds: float) -> Tally:
    """Requests arrive at random moments, `rate` a second, whether or not earlier ones are answered."""
    tally, idle, draw = Tally(), [], random.Random(1)
    tasks = set()

    async def once(question: Question) -> None:
        client = idle.pop() if idle else Client(port, tally)
        await client.ask(question)
        idle.append(client)

    moment = start = time.perf_counter()
    number = 0
    while moment < start + seconds:
        moment += draw.expovariate(rate)
        await asyncio.sleep(max(0.0, moment - time.perf_counter()))
        task = asyncio.create_task(once(questions[number % len(questions)]))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        number += 1
    await asyncio.gather(*tasks)
    return tally


def percentile(values: Sequence[float], share: float) -> float:
    return float(np.percentile(np.array(values), 100 * share)) * 1000  # ms


def measure_limit(port: int, pid: int, questions: Sequence[Question], clients: int, seconds: float, name: str) -> float:
    """Requests a second of a server that is asked by many clients at once; prints what became of them."""
    start, server, client = time.perf_counter(), cpu_seconds(pid), time.process_time()
    tally = asyncio.run(ask_in_turn(port, questions, clients, seconds, sys.maxsize))
    passed, count = time.perf_counter() - start, len(tally.seconds)
    server, client = cpu_seconds(pid) - server, time.process_time() - client
    print(
        f"{name}: {clients} clients, {seconds:g} s: {count:,} answers, {tally.lost} lost, {tally.wrong} wrong, "
        f"{count / passed:.0f}/s, p95 {percentile(tally.seconds, 0.95):.0f} ms, statuses {tally.statuses}; "
        f"CPU a request: server {1000 * server / count:.1f} ms, client {1000 * client / count:.1f} ms; "
        f"{(server + client) / passed:.1f} cores",
        flush=True,
    )
    return count / passed


def count_batches(port: int) -> tuple[float, float]:
    """(forward passes, requests in them) since the start of a server."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        text = response.read().decode()
    values = {name: re.search(rf"^etude_batch_requests_{name} (\S+)$", text, re.MULTILINE) for name in ("count", "sum")}
    passes, requests = (float(match[1]) for match in values.values() if match is not None)
    return passes, requests


def measure_half(port: int, pid: int, questions: Sequence[Question], rate: float, seconds: float) -> float:
    """How many times the latency of one client alone the p95 of arrivals at a rate is; prints what became of them."""
    tally = asyncio.run(ask_in_turn(port, questions, 1, 60, 300))
    alone, alone_p95 = percentile(tally.seconds, 0.5), percentile(tally.seconds, 0.95)
    passes, batched = count_batches(port)
    start, server = time.perf_counter(), cpu_seconds(pid)
    tally = asyncio.run(ask_at_rate(port, questions, rate, seconds))
    passed, server = time.perf_counter() - start, cpu_seconds(pid) - server
    passes, batched = (now - before for now, before in zip(count_batches(port), (passes, batched), strict=True))
    p95 = percentile(tally.seconds, 0.95)
    print(
        f"one client: median {alone:.1f} ms, p95 {alone_p95:.1f} ms; half load ({rate:.0f}/s): median "
        f"{percentile(tally.seconds, 0.5):.1f} ms, p95 {p95:.1f} ms = {p95 / alone:.2f} x the median alone, "
        f"{p95 / alone_p95:.2f} x its p95; {tally.lost} lost, {tally.wrong} wrong, statuses {tally.statuses}; "
        f"{batched / passes:.1f} requests a pass; CPU a request: server {1000 * server / len(tally.seconds):.1f} ms; "
        f"{server / passed:.1f} cores",
        flush=True,
    )
    return p95 / alone


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--recipe", default="bert-mini")
    parser.add_argument("--turns", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        lines = [line for text in World(seed=1).text(0.3) for line in text.splitlines() if len(line) > 20]
        run = make_run(Path(folder) / "served", options.recipe, lines)
        assert "fill" in ServedModel.open(run, "cpu").abilities
        questions = make_questions(run, lines, 400)
        print(f"{options.recipe}; {os.cpu_count()} cores, load before {os.getloadavg()[0]:.1f}", flush=True)
        limits: dict[Setup, list[float]] = {BATCHED: [], **{setup: [] for setup in ALONE}}
        ratios: list[float] = []  # of half load, a turn each
        for _ in range(options.turns):
            for setup, rates in limits.items():
                with serving(run, setup) as (port, pid):
                    asyncio.run(ask_in_turn(port, questions, 1, 60, 50))  # warm up
                    rate = measure_limit(port, pid, questions, options.clients, options.seconds, setup.name)
                    rates.append(rate)
                    if setup == BATCHED:
                        ratios.append(measure_half(port, pid, questions, rate / 2, options.seconds))
        together = statistics.median(limits[BATCHED])
        single = max(statistics.median(limits[setup]) for setup in ALONE)
        print(f"throughput: {together:.0f}/s against {single:.0f}/s one at a time: {together / single:.2f} x")
        print(f"p95 at half load: {statistics.median(ratios):.2f} x the latency alone", flush=True)
        if not options.requests:
            return
        with serving(run, BATCHED) as (port, pid):
            part, sizes = options.requests // 10, []
            for _ in range(10):
                asyncio.run(ask_in_turn(port, questions, 50, 600, part))
                sizes.append(resident_mb(pid))
            print(f"memory over {10 * part:,} requests, MB:", " ".join(f"{size:.0f}" for size in sizes))


if __name__ == "__main__":
    main()

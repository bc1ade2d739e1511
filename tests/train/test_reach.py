"""Two machines that reach the store but not each other end the run with one message that names both."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from etude.train import reach
from etude.train.reach import Reach
from tests.train.test_sharding import write_recipe

HERE = Path(__file__).parent
NET, BRIDGE, SPACES = "10.213.77", "etude-br", ("etude-n1", "etude-n2", "etude-n3")


def test_a_refusal_is_an_answer() -> None:
    """Nobody listens, so there is nobody to accept, and a closed port refuses, too."""
    first, second = Reach("127.0.0.1"), Reach("127.0.0.1")
    first.set_peers({1: second.address, 2: ""})
    assert first.probe() == {} and list(first.answered) == [1] and first.address.startswith("127.0.0.1 ")
    second.close()
    assert first.probe() == {}
    first.close()


def test_only_what_has_answered_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "PATIENCE", 0.2)
    first, second = Reach("127.0.0.1"), Reach("127.0.0.1")
    with socket.create_server(("127.0.0.1", 0), backlog=0) as silent, ExitStack() as stack:
        for _ in range(3):  # a port whose queue is full answers nobody
            link = stack.enter_context(socket.socket())
            link.setblocking(False)
            link.connect_ex(silent.getsockname())
        address = f"127.0.0.1 {silent.getsockname()[1]}"
        first.set_peers({1: address})
        assert first.probe() == {}
        first.set_peers({1: second.address})
        assert first.probe() == {}
        first.set_peers({1: address})
        assert 0.15 <= first.probe()[1] < 30
    first.close()
    second.close()


def call(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


def remove_network() -> None:
    for space in SPACES:
        subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)
    subprocess.run(["ip", "link", "del", BRIDGE], check=False, capture_output=True)


@pytest.fixture
def network() -> Iterator[None]:
    """Three machines at a bridge: network namespaces, which need root."""
    if os.geteuid() or not shutil.which("ip") or not shutil.which("bridge"):
        pytest.skip("network namespaces need root, ip and bridge")
    remove_network()
    try:
        call("ip", "link", "add", BRIDGE, "type", "bridge")
        call("ip", "link", "set", BRIDGE, "up")
        for number, space in enumerate(SPACES, start=1):
            call("ip", "netns", "add", space)
            call("ip", "link", "add", f"etude-v{number}", "type", "veth", "peer", "name", "eth0", "netns", space)
            call("ip", "link", "set", f"etude-v{number}", "master", BRIDGE, "up")
            call("ip", "-n", space, "addr", "add", f"{NET}.{number}/24", "dev", "eth0")
            call("ip", "-n", space, "link", "set", "eth0", "up")
            call("ip", "-n", space, "link", "set", "lo", "up")
    except subprocess.CalledProcessError as error:
        remove_network()
        pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
    yield
    remove_network()


def start_rank(rank: int, words: list[str], log: Path) -> subprocess.Popen[bytes]:
    variables = {
        "RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_PORT": "29571",
        "MASTER_ADDR": f"{NET}.1", "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    command = ["ip", "netns", "exec", SPACES[rank], sys.executable, str(HERE / "dying.py"), *words]
    with log.open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, env=os.environ | variables)


@pytest.mark.slow
def test_a_cut_between_two_machines_is_named(network: None, tmp_path: Path, prepared) -> None:
    recipe = write_recipe(
        tmp_path, "gpt2", parallel="fsdp", steps=100_000, batch_tokens=384, micro_tokens=128, eval_every=0, save_every=0
    )
    run = tmp_path / "run"
    logs = [tmp_path / f"rank-{rank}.log" for rank in range(3)]
    words = ["start", str(recipe), str(prepared("wordpiece:600")), str(run), "cut"]
    processes = [start_rank(rank, words, logs[rank]) for rank in range(3)]
    try:
        until = time.monotonic() + 300
        while not ((run / "metrics.jsonl").is_file() and (run / "metrics.jsonl").read_bytes().count(b"\n") > 3):
            assert time.monotonic() < until and all(process.poll() is None for process in processes), [
                log.read_text() for log in logs
            ]
            time.sleep(0.1)
        time.sleep(3)  # each has been reached
        begin = time.monotonic()
        for number in (2, 3):  # isolated ports reach all but each other
            call("bridge", "link", "set", "dev", f"etude-v{number}", "isolated", "on")
        codes = [process.wait(60) for process in processes]
        seconds = time.monotonic() - begin
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()
    output = "\n".join(log.read_text(encoding="utf-8") for log in logs)
    assert all(codes) and seconds < 60, (codes, seconds, output)
    assert output.count("The run ends.") == 1 and "have not reached each other" in output, output
    assert "Rank 1 (process " in output and "and Rank 2 (process " in output, output

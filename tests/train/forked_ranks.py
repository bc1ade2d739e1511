"""Runs of several processes for tests: a server that has torch in memory forks the ranks of each run.

    python forked_ranks.py      each line of the input is a JSON object {"ranks": 2, "words": [...]}; the answer is a
                                line with the exit codes of all ranks. `words` are those of dying.py. With no ranks
                                it is one process that knows of no others. With "agent": true, torchrun's agent starts
                                the ranks, and its exit code is the answer. "environment" holds variables to set.

A rank writes what it prints to the folder of ETUDE_RANK_LOGS, one file each.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
# imported once and not in each fork: what a run imports on its way
SHARED = (
    "tests.train.dying", "etude.train.sharding", "etude.train.sharded_checkpoint", "etude.objectives.causal",
    "etude.objectives.masked", "torch.distributed.checkpoint",
)  # fmt: skip
OUTPUT = os.environ.get("ETUDE_RANK_LOGS", "/tmp")


class RankServer:
    """The server's other end, in the process of the tests."""

    def __init__(self, process: subprocess.Popen[str], logs: Path) -> None:
        self.process, self.logs = process, logs

    def run(self, ranks: int, *words: object, environment: Mapping[str, str] | None = None) -> list[int]:
        """Return the exit codes of a run of so many ranks; 0: of a single process that torchrun did not start.

        `environment` is laid over that which the server was started with.
        """
        request = {"ranks": ranks, "words": [str(word) for word in words], "environment": dict(environment or {})}
        return self._request(request)

    def run_by_agent(self, ranks: int, *words: object) -> list[int]:
        """Return the exit code of the agent behind torchrun, which starts so many ranks and sets their environment."""
        return self._request({"ranks": ranks, "words": [str(word) for word in words], "agent": True})

    def _request(self, request: dict[str, object]) -> list[int]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        codes: list[int] = json.loads(self.process.stdout.readline())
        return codes

    def output(self) -> str:
        """Return what the ranks of the last run printed."""
        return "\n".join(path.read_text(encoding="utf-8") for path in sorted(self.logs.glob("rank-*.log")))


@contextmanager
def serve_ranks(logs: Path) -> Iterator[RankServer]:
    """Start a server; it ends with the context."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ETUDE_RANK_LOGS": str(logs)}
    command = [sys.executable, str(HERE / "forked_ranks.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as server:
        yield RankServer(server, logs)
        server.terminate()


@contextmanager
def use_exact_muon() -> Iterator[None]:
    """Let Muon's products be of float32: in bfloat16 a last bit of a gradient becomes one of 8 bits."""
    import torch

    from etude.train import muon

    before = muon.orthogonalize
    muon.orthogonalize = lambda matrices, dtype=torch.float32: before(matrices, torch.float32)
    try:
        yield
    finally:
        muon.orthogonalize = before


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def be_rank(rank: int, size: int, port: int, words: list[str]) -> None:
    """Do the words as one rank, in a fork; never returns."""
    if size:
        os.environ |= {
            "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "test",
        }  # fmt: skip
    os._exit(do_words(rank, words))


def be_agent(size: int, words: list[str]) -> None:
    """Start the ranks as `torchrun --standalone` does, in a fork; never returns."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=size, run_id="test", rdzv_backend="c10d", rdzv_endpoint="localhost:0",
        max_restarts=0, monitor_interval=0.1, start_method="fork",
    )  # fmt: skip
    os.dup2(2, 1)  # the first is for answers of the server
    code = 1
    try:
        elastic_launch(config, be_rank_of_agent)(words)
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def be_rank_of_agent(words: list[str]) -> None:
    """Do the words as the rank that the environment says."""
    code = do_words(int(os.environ["RANK"]), words)
    if code:
        raise SystemExit(code)


def do_words(rank: int, words: list[str]) -> int:
    """Do the words with all that is printed in the rank's file; return the exit code."""
    log = os.open(f"{OUTPUT}/rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    from etude.errors import UserError
    from tests.train.dying import work

    try:
        with use_exact_muon():
            code = work(words)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException as error:
        traceback.print_exc()
        code = 2 if isinstance(error, UserError) else 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def main() -> None:
    sys.path.insert(0, str(HERE.parents[1]))
    import torch

    for name in SHARED:
        importlib.import_module(name)
    from tests.half_precision import open_means_float32

    open_means_float32()
    torch.set_num_threads(1)
    os.fsync = lambda descriptor: None  # a killed process needs none, and a checkpoint waits for many
    for line in sys.stdin:
        request = json.loads(line)
        port, children, has_agent = free_port(), [], request.get("agent", False)
        for rank in range(1 if has_agent else request["ranks"] or 1):
            child = os.fork()
            if not child:
                os.environ |= request.get("environment", {})
            if not child and has_agent:
                be_agent(request["ranks"], request["words"])
            if not child:
                be_rank(rank, request["ranks"], port, request["words"])
            children.append(child)
        print(json.dumps(wait_for(children)), flush=True)


def _is_stopped(child: int) -> bool:
    return Path(f"/proc/{child}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "T"


def wait_for(children: list[int], grace: float = 30.0) -> list[int]:
    """Return all exit codes. As torchrun does, kill what is left some time after the first failure."""
    codes: dict[int, int] = {}
    limit = math.inf
    while len(codes) < len(children):
        for child in children:
            ended, status = (0, 0) if child in codes else os.waitpid(child, os.WNOHANG)
            if ended:
                codes[child] = os.waitstatus_to_exitcode(status)
                limit = min(limit, time.monotonic() + grace) if codes[child] else limit
            elif child not in codes and (time.monotonic() > limit or (codes and _is_stopped(child))):
                os.kill(child, signal.SIGKILL)
        time.sleep(0.005)
    return [codes[child] for child in children]


if __name__ == "__main__":
    main()

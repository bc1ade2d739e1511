"""A process that has loaded everything and forks picks, so that one that is killed costs only what it had done.

It reads a job a line and answers with the number of the process, then with its exit code. Loading torch and compiling
the loops of word vectors take seconds that say nothing about kills: nothing is written in them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import etude
from etude.pick import pick as picking
from etude.pretraining import pretrain as pretraining
from etude.text.prepare.prepare import prepare
from etude.world import World
from tests.half_precision import open_means_float32

FASTER = 20  # times that the machine seems: whether work ends in time is no question of these picks


def compile_kernels() -> None:
    """Train word vectors for a moment: processes forked afterwards have their loops compiled."""
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        text.write_text("\n\n".join(World().text(0.01)) + "\n", encoding="utf-8")
        corpus = prepare([str(text)], Path(folder) / "corpus", "word:1000,lower", valid=0.1)
        overrides = {"train.tokens": 2_000, "model.buckets": 1_000, "train.device": "cpu"}
        pretraining.pretrain("fasttext-toy", corpus, Path(folder) / "run", quiet=True, overrides=overrides)


def slow_the_clock() -> None:
    real, start = time.monotonic, time.monotonic()
    time.monotonic = lambda: start + (real() - start) / FASTER  # type: ignore[assignment]


def count_writes(last: int | None) -> list[int]:
    """Count what makes writes permanent, and die by SIGKILL instead of call number `last` of them."""
    counts = [0]

    def watch(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            counts[0] += 1
            if counts[0] == last:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return wrapped

    for name in ("fsync", "rename", "replace"):
        setattr(os, name, watch(getattr(os, name)))
    return counts


def run(job: dict[str, Any]) -> None:
    slow_the_clock()
    counts = count_writes(job["last_write"])
    etude.pick(**job["arguments"])
    Path(job["writes"]).write_text(str(counts[0]))


def serve() -> None:
    assert picking  # loaded before the first fork
    open_means_float32()
    compile_kernels()
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            code = 1
            try:
                run(json.loads(line))
                code = 0
            finally:
                os._exit(code)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    serve()

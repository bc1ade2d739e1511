"""Commands in processes of their own, which are killed at a moment, or inside one of their writes.

A write is an `open` for writing, a rename or a new folder below some folder. Death inside it is by SIGKILL, either
just before the call, or with the file torn: it is there, with bytes that nobody meant.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(["tests.hostile.warm"])
COUNTING = """
import sys
from tests.hostile.lives import live
live(sys.argv[2:], sys.argv[1], None, None)
"""


@dataclass(frozen=True)
class Death:
    """At the `write`-th write (from 1), before the call or with a file of `torn` bytes."""

    write: int
    torn: int | None


def live(words: list[str], below: str, death: Death | None, errors: str | None) -> None:
    """Run a command in this process; the number of its writes goes to `below`/writes unless it dies of them."""
    if errors is not None:
        descriptor = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
    sys.argv = ["etude", *words]
    folder, process, count = f"{below}/", os.getpid(), 0

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal count
        if event not in ("open", "os.rename", "os.mkdir") or os.getpid() != process:
            return
        path = arguments[0]
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if not isinstance(path, str | os.PathLike) or not str(path).startswith(folder):
            return
        flags = arguments[2] if event == "open" else 0
        assert isinstance(flags, int)
        if event == "open" and not flags & (os.O_WRONLY | os.O_RDWR):
            return
        count += 1
        if death is None or count != death.write:
            return
        if event == "open" and death.torn is not None:
            descriptor = os.open(path, flags | os.O_CREAT, 0o644)
            os.write(descriptor, b'{"' if flags & os.O_APPEND else random.Random(count).randbytes(death.torn))
        os.kill(process, signal.SIGKILL)

    sys.addaudithook(watch)
    from etude.cli.main import main

    try:
        main()
    finally:
        process = 0
        if death is None:
            Path(below, "writes").write_text(str(count))


def run_whole(words: list[str], below: Path) -> int:
    """Run a command in an interpreter of its own, with other hash seeds; returns the number of its writes."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-c", COUNTING, str(below), *words]
    process = subprocess.run(line, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-2000:]
    return int((below / "writes").read_text())


def run_life(words: list[str], below: Path, death: Death | None, seconds: float | None) -> int:
    """Run a command until it ends, dies of a write, or is killed after some seconds. Returns its exit code."""
    errors = below.parent / f"{below.name}.errors"
    process = FORKING.Process(target=live, args=(words, str(below), death, str(errors)))
    process.start()
    process.join(seconds)
    if process.is_alive():
        process.kill()
        process.join()
    code = process.exitcode
    assert code in (0, -signal.SIGKILL), errors.read_text(errors="replace")[-2000:]
    return code

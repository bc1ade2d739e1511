"""SIGKILL at random moments of every verb that writes, a third of them inside a write: all ends are equal."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.hostile.commands import hash_files
from tests.hostile.samples import Samples
from tests.study.test_runner import timeless

ROOT = Path(__file__).resolve().parents[2]
KILLS = int(os.environ.get("ETUDE_KILLS", "100"))
SHARES = {"pretrain": 30, "finetune": 25, "prepare": 25, "study": 12, "pick": 8}  # of a hundred
# dies while a file is open for writing or being renamed: at the n-th such call
DYING = """
import os, signal, sys
left, mode = int(sys.argv[1]), sys.argv[2]
sys.argv = ["etude", *sys.argv[3:]]
def die(event, arguments):
    global left
    is_write = event in ("os.rename", "os.mkdir") or (event == "open" and isinstance(arguments[1], str)
                                                      and any(letter in arguments[1] for letter in "wax"))
    if is_write and str(arguments[0]).startswith(mode):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(die)
from etude.cli.main import main
main()
"""


def run(words: list[str], writes: int | None, out: Path, seconds: float | None) -> int:
    """Run a command; kill it at its n-th write below `out`, or after some seconds. Returns its exit code."""
    line = [sys.executable, "-c", DYING, str(writes or 0), str(out.parent), *words]
    path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(line, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        _, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.communicate()
        return -signal.SIGKILL
    assert process.returncode in (0, -signal.SIGKILL), errors.decode()[-2000:]
    return process.returncode


def read_outcome(verb: str, out: Path) -> object:
    if verb == "study":
        return timeless(json.loads((out / "results.json").read_text(encoding="utf-8")))
    if verb == "pick":
        results = json.loads((out / "results.json").read_text(encoding="utf-8"))
        return results["winner"], {row["name"]: row["score"] for row in results["rows"]}
    return hash_files(out, "**/*" if verb == "prepare" else "model.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("verb", SHARES)
def test_killed_at_any_moment_it_ends_the_same(samples: Samples, tmp_path: Path, verb: str) -> None:
    (tmp_path / "whole").mkdir()
    whole = tmp_path / "whole" / "out"
    begin = time.monotonic()
    assert run(samples.command(verb, whole), None, whole, None) == 0
    seconds, expected = time.monotonic() - begin, read_outcome(verb, whole)
    draw, kills, inside, lives = random.Random(verb), 0, 0, 0
    wanted = max(1, KILLS * SHARES[verb] // 100)
    while kills < wanted and lives < 3 * wanted:
        lives += 1
        (tmp_path / str(lives)).mkdir()
        out = tmp_path / str(lives) / "out"
        for _ in range(draw.choice((1, 1, 2))):
            if verb == "prepare" and out.exists():
                break  # it appears whole, by one rename
            is_run = verb in ("pretrain", "finetune") and (out / "recipe.yaml").is_file()
            words = [verb, "--resume", str(out), "-q"] if is_run else samples.command(verb, out)
            in_write = draw.random() < 0.4
            writes = draw.randrange(1, 40) if in_write else None
            code = run(words, writes, out, None if in_write else draw.uniform(0.3, 1.0) * seconds)
            if code == 0:
                break
            kills, inside = kills + 1, inside + in_write
        is_run = verb in ("pretrain", "finetune") and (out / "recipe.yaml").is_file()
        words = [verb, "--resume", str(out), "-q"] if is_run else samples.command(verb, out)
        if verb != "prepare" or not out.exists():
            assert run(words, None, out, None) == 0
        assert read_outcome(verb, out) == expected
    print(f"{verb}: {kills} kills, {inside} of them inside a write; {lives} ends, all equal")
    assert kills >= wanted

"""SIGKILL at random moments of every verb that writes, a third of them inside a write: all ends are equal."""

from __future__ import annotations

import math
import os
import random
import shutil
import time
from pathlib import Path

import pytest

import etude
from etude.train import checkpoint
from tests.hostile.commands import list_leftovers, run_command
from tests.hostile.lives import Death, run_life, run_whole
from tests.hostile.outcomes import choose_words, read_outcome
from tests.hostile.samples import Samples

KILLS = int(os.environ.get("ETUDE_KILLS", "100"))
SHARES = {"pretrain": 30, "finetune": 25, "prepare": 25, "study": 12, "pick": 8}  # of a hundred


@pytest.mark.parametrize("verb", ["pretrain", "finetune"])
def test_a_run_killed_after_its_weights_is_completed(samples: Samples, tmp_path: Path, verb: str) -> None:
    """It had no checksums for ever, and a fine-tuned one kept its checkpoints."""
    run = tmp_path / "run"
    if verb == "pretrain":
        shutil.copytree(samples.folder / "run", run)
    else:
        assert run_command(*samples.command(verb, run)).code == 0
        shutil.copytree(samples.folder / "run" / "checkpoints", run / "checkpoints")
    checksums = (run / "checksums.json").read_bytes()
    (run / "checksums.json").unlink()
    (run / ".checksums.json.writing").write_bytes(checksums[:30])
    assert run_command(verb, "--resume", run, "-q").code == 0
    assert (run / "checksums.json").read_bytes() == checksums and not list_leftovers(run)
    assert (run / "checkpoints").exists() == (verb == "pretrain")
    assert not etude.verify(run).notes


def test_a_run_killed_after_its_last_checkpoint_has_no_older_ones(samples: Samples, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(samples.folder / "run", run)
    weights = (run / "model.safetensors").read_bytes()
    for name in ("model.safetensors", "checksums.json"):
        (run / name).unlink()
    steps = checkpoint.list_steps(run / "checkpoints")
    shutil.copytree(run / "checkpoints" / f"step-{steps[0]:012d}", run / "checkpoints" / "step-000000000002")
    assert run_command("pretrain", "--resume", run, "-q").code == 0
    assert checkpoint.list_steps(run / "checkpoints") == steps == [4, 6]
    assert (run / "model.safetensors").read_bytes() == weights


@pytest.mark.slow
@pytest.mark.parametrize("verb", SHARES)
def test_killed_at_any_moment_it_ends_the_same(samples: Samples, tmp_path: Path, verb: str) -> None:
    folder = tmp_path / "whole"
    folder.mkdir()
    writes = run_whole(samples.command(verb, folder / "out"), folder)
    expected = read_outcome(verb, folder / "out")
    run_life(["--version"], folder, None, None)  # starts the process that the others are forked from
    draw, kills, inside, ends, seconds = random.Random(verb), 0, 0, 0, math.inf
    wanted = max(1, KILLS * SHARES[verb] // 100)
    while kills < wanted and ends < 3 * wanted:
        ends += 1
        folder = tmp_path / str(ends)
        folder.mkdir()
        out = folder / "out"
        for _ in range(draw.choice((1, 1, 2)) if ends > 1 else 0):  # the first is timed
            if verb == "prepare" and out.exists():
                break  # it appears whole, by one rename
            in_write = draw.random() < 0.4 or 3 * inside < kills + 1
            death = Death(draw.randrange(1, writes + 1), draw.choice((None, 0, 60))) if in_write else None
            limit = None if in_write else draw.uniform(0, seconds)
            if run_life(choose_words(samples, verb, out), folder, death, limit) == 0:
                break
            kills, inside = kills + 1, inside + in_write
        begin = time.monotonic()
        if verb != "prepare" or not out.exists():
            assert run_life(choose_words(samples, verb, out), folder, None, None) == 0
        seconds = time.monotonic() - begin if ends == 1 else seconds
        assert read_outcome(verb, out) == expected
        assert not list_leftovers(folder)
        shutil.rmtree(folder)
    print(f"{verb}: {kills} kills, {inside} of them inside one of {writes} writes; {ends} ends, all equal")
    assert kills >= wanted and 3 * inside >= kills

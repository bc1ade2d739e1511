"""The line that says what a command does: within two seconds, and out of the way of everything else."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import etude
from etude.cli import activity as module
from etude.cli.activity import FIRST_SECONDS, Activity, show_activity, until_first, yield_to
from etude.stages import report_stage
from etude.train.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert FIRST_SECONDS <= 2, "a command is never silent for two seconds"
    monkeypatch.setattr(module, "FIRST_SECONDS", 0.02)
    monkeypatch.setattr(module, "TERMINAL_SECONDS", 0.02)
    monkeypatch.setattr(module, "Activity", partial(Activity, clock=lambda: 0.0))  # "0 s", however busy the machine is


def wait_for(stream: io.StringIO, text: str) -> None:
    end = time.monotonic() + 120
    while text not in stream.getvalue():
        assert time.monotonic() < end, stream.getvalue()
        time.sleep(0.01)


def test_stages_are_shown_and_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    with show_activity("check bert data/x"):
        wait_for(stream, "check bert data/x… 0 s")
        report_stage("measuring")
        wait_for(stream, "measuring… 0 s")
        logging.getLogger("etude").warning("a message")
        assert "\r\x1b[Ka message\n" in stream.getvalue(), "on a line of its own"
        Progress(3, stream=Terminal()).close()  # the progress of a run takes the place of the line
        before = stream.getvalue()
        time.sleep(0.1)
        assert stream.getvalue() == before and before.endswith(("\r\x1b[K", "a message\n"))


def test_a_log_has_one_line_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    with show_activity("evaluate runs/x"):
        wait_for(stream, "evaluate runs/x… 0 s\n")
        time.sleep(0.1)
    assert stream.getvalue() == "evaluate runs/x… 0 s\n"


def test_quiet_and_quick_commands_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(module, "FIRST_SECONDS", 60.0)
    with show_activity("fill"):
        pass
    with show_activity("fill", quiet=True) as nobody:
        assert nobody is None
    assert list(until_first(iter("abc"), "predict", quiet=False)) == ["a", "b", "c"]
    assert stream.getvalue() == ""


@pytest.mark.parametrize(("rank", "is_shown"), [("0", True), ("1", False)])
def test_of_several_processes_the_first_shows_the_line(
    rank: str, is_shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("RANK", rank)
    with show_activity("pretrain bert data/x") as activity:
        assert (activity is not None) == is_shown
        if is_shown:
            wait_for(stream, "pretrain bert data/x… 0 s")
        else:
            time.sleep(0.1)
            yield_to(activity, stream.write, goes_on=False)("a line of the work\n")
    assert stream.getvalue() == ("pretrain bert data/x… 0 s\n" if is_shown else "a line of the work\n")


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize(("rank", "times"), [("0", 1), ("1", 0)])
def test_of_several_processes_the_first_prints_warnings(rank: str, times: int, quiet: bool) -> None:
    code = (
        "import logging, warnings\n"
        "from etude.cli.activity import show_activity\n"
        f"with show_activity('pretrain', quiet={quiet}):\n"
        "    logging.getLogger('etude').warning('few rows')\n"
        "    logging.getLogger('etude.text.remote').warning('slow store')\n"
        "    warnings.warn_explicit('no graphs', UserWarning, 'loop.py', 1, module='etude.train.loop')\n"
        "    warnings.warn_explicit('of another package', UserWarning, 'other.py', 1, module='other')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(etude.__file__).parents[1]), "RANK": rank}
    environment.pop("PYTHONWARNINGS", None)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert [done.stderr.count(message) for message in ("few rows", "slow store", "no graphs")] == [times] * 3
    assert done.stderr.count("of another package") == 1


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_hook_prints_where_no_line_stands(goes_on: bool) -> None:
    stream = Terminal()
    line = Activity("study s.yaml", stream, clock=lambda: 0.0)
    received: list[Any] = []
    hook = yield_to(line, received.append, goes_on)
    wait_for(stream, "study")
    hook("a cell is done")
    assert received == ["a cell is done"]
    before = len(stream.getvalue())
    if goes_on:
        wait_for(stream, "study s.yaml… 0 s\x1b[K\r\x1b[K\rstudy")
    else:
        time.sleep(0.1)
        assert len(stream.getvalue()) == before
    line.close()


PROBE = """
import os, sys
import numpy
from pydantic import BaseModel  # as numpy, what most commands begin with: once, and not in each fork
import etude.cli.activity as activity
from etude.cli.main import main

class Probe(activity.Activity):
    def __init__(self, *arguments):
        print("torch" in sys.modules, flush=True)
        os._exit(0)

activity.Activity = Probe
for line in sys.stdin:
    child = os.fork()  # the command line is imported once
    if not child:
        sys.argv = ["etude", *line.split()]
        main()
    os.waitpid(child, 0)
"""
COMMANDS = """\
prepare text.txt -o data/x
check bert-toy data/x
pretrain bert-toy data/x -o runs/x
pretrain --resume runs/x
finetune runs/x classify --train a.csv -o runs/y
finetune --resume runs/x
evaluate runs/x a.csv
predict runs/x a.txt
distill tinybert data/x --teacher runs/x -o runs/y
export runs/x -o hf/x
import hf/x -o runs/x
study a.yaml --dry-run
study a.yaml
pick a.txt --task classify --train a.csv -o p
fill runs/x [MASK]
generate runs/x a
translate runs/x a.txt
demo -o d
bench bert-toy
verify runs/x
show batch bert-toy data/x
show attention runs/x a -o a.html
prompt runs/x a.yaml
features runs/x a.txt -o a.npz
"""


def test_the_line_begins_before_torch_is_loaded(tmp_path: Path) -> None:
    """Which takes seconds: nothing may load it before the command has said that it is at work."""
    (tmp_path / "runs" / "x").mkdir(parents=True)  # a run that is missing is told before anything begins
    environment = {**os.environ, "PYTHONPATH": str(Path(etude.__file__).parents[1])}
    command = [sys.executable, "-c", PROBE]
    done = subprocess.run(command, cwd=tmp_path, env=environment, input=COMMANDS, capture_output=True, text=True)
    answers = [line for line in done.stdout.splitlines() if line in ("True", "False")]
    assert len(answers) == len(COMMANDS.splitlines()), done.stdout + done.stderr
    late = [line for line, answer in zip(COMMANDS.splitlines(), answers, strict=True) if answer == "True"]
    assert not late, done.stdout + done.stderr

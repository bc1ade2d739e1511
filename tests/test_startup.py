"""Ctrl-C while a command loads ends it with one line, and the processes that it has started with none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from etude.startup import INTERRUPTED, interrupts_held_back

SOURCE = str(Path(__file__).resolve().parents[1] / "src")
# Modules after which the signal comes, in the order in which they are loaded: of the package, of its commands, and in
# torch, which takes the longest. Python prints what it has loaded, so the moments do not depend on the clock.
MOMENTS = ["etude.startup", "etude.verbs.limits", "typer.main", "etude.cli.adapter", "etude.cli.main", "torch._C"]


def signal_at(moment: str, number: int, *program: str) -> tuple[int, str]:
    """Start Python, send it a signal as soon as it has loaded a module; return its exit code and what it has said."""
    with subprocess.Popen(
        [sys.executable, "-X", "importtime", *program], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": SOURCE},
    ) as process:  # fmt: skip
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("import time:") and line.split()[-1] == moment:
                break
        process.send_signal(number)
        said = [line for line in process.stderr if not line.startswith("import time:")]
        return process.wait(), "".join(said)


@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_while_a_command_loads_is_one_line(moment: str) -> None:
    code, said = signal_at(moment, signal.SIGINT, "-m", "etude", "recipes", "bert-toy")
    # Python ends by the signal itself where it came while a line of code was made from a string
    assert code in (INTERRUPTED, -signal.SIGINT)
    assert said.strip() == "Stopped."


def test_ctrl_c_while_the_script_loads_is_one_line(tmp_path: Path) -> None:
    script = tmp_path / "etude"  # what pip writes into the folder of commands
    script.write_text("from etude.cli.main import main\nmain()\n")
    code, said = signal_at("etude.verbs.limits", signal.SIGINT, str(script), "recipes", "bert-toy")
    assert (code, said) == (INTERRUPTED, "\nStopped.\n")


@pytest.mark.parametrize("moment", ["etude.startup", "etude.cli.main"])
def test_sigterm_while_a_command_loads_prints_nothing(moment: str) -> None:
    assert signal_at(moment, signal.SIGTERM, "-m", "etude", "recipes", "bert-toy") == (-signal.SIGTERM, "")


@pytest.mark.parametrize("worker", ["text.prepare", "study", "pick"])
def test_a_worker_that_loads_ends_in_silence(worker: str) -> None:
    assert signal_at("etude.verbs.limits", signal.SIGINT, "-m", f"etude.{worker}.worker", ".") == (INTERRUPTED, "")


def test_a_program_of_ones_own_keeps_its_handling() -> None:
    program = "import etude, signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    for words in (["-c", program], ["-c", program, "-m", "etude"], ["-X", "utf8", "-c", program, "etude"]):
        done = subprocess.run(
            [sys.executable, *words],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": SOURCE},
        )
        assert done.stdout == "True\n"


def test_a_signal_that_is_held_back_comes_later() -> None:
    """Neither the new process, which could not handle it yet, nor this one loses it."""
    code = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    with pytest.raises(KeyboardInterrupt), interrupts_held_back():
        os.kill(os.getpid(), signal.SIGINT)
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"True\n"

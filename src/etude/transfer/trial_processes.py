"""Trials of a search in processes of their own, several at a time, so that small models share a GPU.

A small model leaves most of a GPU idle while the host launches its kernels; several processes launch at once. Each
trial has a new process (trial_worker.py), which gives all its memory back when it ends. What a trial computes lies in
its folder; its process says only how it ended, and hands on what it logged.

A child gets no Ctrl-C: this process passes it on as SIGTERM, which leaves a checkpoint. When this process dies, its
children see their input end, and stop at once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from etude.cores import count_cores
from etude.errors import UserError, WriteError
from etude.runs.task_plan import Plan
from etude.startup import interrupts_held_back
from etude.train import peak
from etude.train.progress import Progress
from etude.train.signals import handle_signals

SHOWN_CHARACTERS = 4000  # of what a process printed before it died, from the end


class TrialError(RuntimeError):
    """An unforeseen error in a trial's process, whose traceback is the text."""


ERRORS: dict[str, type[Exception]] = {  # by what a process calls them; a UserError has advice, too
    "system": WriteError,
    "memory": MemoryError,
    "unforeseen": TrialError,
}


def check_parallel(parallel: int) -> None:
    """Raise UserError where trials cannot run so many at a time."""
    if parallel < 1:
        raise UserError(f"parallel={parallel}: ask for one or more.")
    if parallel > 1 and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("--parallel starts processes, and torchrun has started several: take one of the two.")


def refuse_single(parallel: int) -> None:
    """Raise UserError where there is only one run, which `parallel` would not change."""
    if parallel > 1:
        raise UserError("--parallel is for several runs, and this is one: add --seeds or --vary, or leave it out.")


def count_threads(parallel: int) -> int:
    """Return the threads of each process: its share of the cores, or fewer where the user has set that."""
    share = max(1, count_cores() // parallel)
    own = os.environ.get("OMP_NUM_THREADS", "")
    return min(share, int(own)) if own.isdecimal() and int(own) else share


def run_trials(folder: Path, names: Sequence[str], total: int, parallel: int, quiet: bool) -> dict[str, str] | None:
    """Run the trials `names` of the search whose trials lie in `folder`, `parallel` at a time.

    Returns the errors of those that diverged, by name, or None where SIGTERM or Ctrl-C stopped them: those under way
    have left a checkpoint. Any other error of one stops the others in the same way, and is raised. No process is left.

    Args:
        folder: The folder of the trials.
        names: The names of those that are not finished.
        total: Number of all trials of the search, for the progress line.
        parallel: Number of processes.
        quiet: Print no progress.
    """
    processes = TrialProcesses(folder, parallel)
    with (
        handle_signals(processes.stop),
        contextlib.closing(processes),
        TrialProgress(total, total - len(names), parallel, quiet) as progress,
    ):
        return processes.run(names, progress)


class TrialProgress(Progress):
    """The progress line of a search: how many of its trials have ended.

    12/15 trials  5 at a time  3m12s
    """

    def __init__(self, total: int, done: int, parallel: int, quiet: bool) -> None:
        self.parallel, self.start = parallel, time.monotonic()
        super().__init__(total, step=done, quiet=quiet)

    def format_line(self) -> str:
        seconds = round(time.monotonic() - self.start)
        return f"{self._step}/{self.total} trials  {self.parallel} at a time  {seconds // 60}m{seconds % 60:02d}s"

    def count(self, trial: str) -> None:
        """Print that a trial has ended."""
        self._step += 1
        self.print(f"{self._step} of {self.total} trials: {trial}")

    @contextlib.contextmanager
    def cleared(self) -> Iterator[None]:
        """Take the line away while a message is logged."""
        with self._lock:
            self._clear()
            yield


@dataclass(eq=False)
class Child:
    """The process of a trial; what it prints goes to `printed`, a file without a name."""

    name: str
    process: subprocess.Popen[bytes]
    printed: IO[bytes]
    ending: dict[str, Any] | None = None  # how the trial ended; None as long as its process has not said it

    def explain_death(self) -> Exception:
        """Return the error of a process that ended without a word."""
        self.printed.seek(0)
        text = self.printed.read().decode(errors="replace").strip()[-SHOWN_CHARACTERS:]
        code = self.process.returncode
        if code == -signal.SIGKILL:
            return UserError(
                f"{self.name}: its process was killed, most often because memory ran out.",
                "Go on with --resume and a smaller --parallel.",
            )
        ending = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        return TrialError(f"{self.name}: its process {ending}\n{text}".rstrip())


class TrialProcesses:
    """Processes that run a trial each; one thread a process reads what it says, and this one acts on it."""

    def __init__(self, folder: Path, parallel: int) -> None:
        self.folder, self.parallel = folder, parallel
        self.children: list[Child] = []  # those that have not ended
        self.messages: queue.SimpleQueue[tuple[Child, dict[str, Any] | None]] = queue.SimpleQueue()
        self.logged: set[tuple[str, str]] = set()
        self.is_stopping = False

    def run(self, names: Sequence[str], progress: TrialProgress) -> dict[str, str] | None:
        """Run the trials to their end, or to the first error or signal; None after a signal."""
        waiting = deque(names)
        finished = 0
        errors: dict[str, str] = {}
        failure: Exception | None = None
        while self.children or (waiting and not self.is_stopping):
            while waiting and not self.is_stopping and len(self.children) < self.parallel:
                try:
                    self.start(waiting.popleft())
                except OSError as error:  # no memory for another process, or too many of them
                    failure = error
                    self.stop()
            if not self.children:
                break
            child, message = self.messages.get()
            if message is not None and "log" in message:
                self._log(message, progress)
                continue
            if message is not None:
                child.ending = message
                continue
            self.children.remove(child)
            ending = child.ending or {}
            if ending.get("kind") == "finished":
                finished += 1
                plan = Plan.read(self.folder / child.name)
                progress.count(f"{child.name}, {plan.score} {plan.scores[plan.score]['value']:.4f}")
            elif ending.get("kind") == "diverged":
                errors[child.name] = ending["text"]
                with progress.cleared():
                    logging.getLogger("etude").warning("%s has lost: %s", child.name, ending["text"])
                progress.count(f"{child.name}, diverged")
            else:
                failure = failure or self._find_failure(child)
                self.stop()
            child.printed.close()
        if failure is not None:
            raise failure
        return errors if finished + len(errors) == len(names) else None

    def start(self, name: str) -> None:
        """Start the process of a trial."""
        paths = [str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {
            "OMP_NUM_THREADS": str(count_threads(self.parallel)),
            "LOCAL_WORLD_SIZE": str(self.parallel),  # each builds batches with its share of the cores
            "PYTHONPATH": os.pathsep.join(paths),
        }
        level = logging.getLogger("etude").getEffectiveLevel()
        request = {
            "trial": name,
            "search": str(self.folder.parent),
            "level": level,
            "is_bf16_faster": peak.is_bf16_faster_on_cpu(),  # measured once, before any process is busy
        }
        printed = tempfile.TemporaryFile()  # noqa: SIM115 (closed where the child has ended)
        with interrupts_held_back():  # the child keeps Ctrl-C blocked: this process passes it on
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "etude.transfer.trial_worker"],  # -P: no module of the current folder
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=printed, env=environment,
            )  # fmt: skip
        child = Child(name, process, printed)
        self.children.append(child)
        if self.is_stopping:  # a signal came before it was in the list
            process.terminate()
        threading.Thread(target=self._read, args=(child,), daemon=True, name=f"etude-{name}").start()
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # it has died, which the thread sees
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()  # left open: its end says that this process is dead

    def stop(self) -> None:
        """Let all processes save a checkpoint and end; for a handler of signals, too."""
        if not self.is_stopping:
            self.is_stopping = True
            for child in self.children:
                child.process.terminate()

    def close(self) -> None:
        """Kill what still runs: nothing does unless something was raised, such as by a second Ctrl-C."""
        for child in self.children:
            child.process.kill()
        for child in self.children:
            child.process.wait()

    def _read(self, child: Child) -> None:
        assert child.process.stdin is not None and child.process.stdout is not None
        with child.process.stdout as lines:
            for line in lines:
                self.messages.put((child, json.loads(line)))
        child.process.wait()
        with contextlib.suppress(OSError):  # a request that it did not read
            child.process.stdin.close()
        self.messages.put((child, None))

    def _log(self, message: dict[str, Any], progress: TrialProgress) -> None:
        """Log what a trial has logged, unless another one has said it: all read the same files."""
        key = message["log"], message["text"]
        if key not in self.logged:
            self.logged.add(key)
            with progress.cleared():
                logging.getLogger(message["log"]).log(message["level"], "%s", message["text"])

    def _find_failure(self, child: Child) -> Exception | None:
        """Return what went wrong in a process; None where it was stopped."""
        ending = child.ending
        if ending is None:
            was_stopped = self.is_stopping or child.process.returncode == -signal.SIGTERM
            return None if was_stopped else child.explain_death()
        if ending["kind"] == "stopped":
            return None
        if ending["kind"] == "user":
            return UserError(ending["text"], ending["advice"])
        text = f"{child.name}: {ending['text']}" if ending["kind"] == "unforeseen" else ending["text"]
        return ERRORS[ending["kind"]](text)

"""Ctrl-C while a command loads: one line and exit code 130, as later on, where Python would print a traceback.

Loading takes seconds on a cold disk, and a terminal sends Ctrl-C to the processes that a command starts, too. So the
package begins with this file, and it has nothing to load itself. A program that imports Etude keeps its own handling.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130  # what a shell says of a command that Ctrl-C ended


def raise_interrupts() -> None:
    """Raise KeyboardInterrupt at Ctrl-C again: everything is loaded, and what is under way has an end to keep."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def quiet_interrupts() -> Iterator[None]:
    """Do the work of a worker inside: at Ctrl-C it ends what is under way, and no traceback is printed."""
    raise_interrupts()
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Start a worker inside: it gets no Ctrl-C before it has loaded this file; this process gets it afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(_number: int, _frame: FrameType | None) -> None:
    """End at once: an exception may be lost in what is half loaded, and nothing has been begun that has an end."""
    if IS_COMMAND and os.environ.get("RANK", "0") == "0":  # of the processes of torchrun the first
        os.write(2, b"\nStopped.\n")
    os._exit(INTERRUPTED)


def _find_program() -> str:
    """What Python was asked to run: the module behind -m, or else the name of a script."""
    words, first = sys.orig_argv, "".join(sys.argv[:1])
    if first not in words:  # a process of multiprocessing, which has the arguments of another one
        return ""
    if first == "-m":  # so it is while the package is loaded for one of its modules
        return "".join(words[words.index("-m") + 1 :][:1])
    return os.path.basename(first)  # noqa: PTH119 (pathlib is not loaded yet)


PROGRAM = _find_program()
IS_COMMAND = PROGRAM == "etude"
IS_WORKER = PROGRAM.startswith("etude.") and PROGRAM.endswith(".worker")  # started by a command


def _catch_interrupts() -> None:
    """End at Ctrl-C from now on, if this process is a command or a worker of one, and does not ignore it."""
    if not IS_COMMAND and not IS_WORKER:
        return
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # what `interrupts_held_back` has left to a worker


_catch_interrupts()

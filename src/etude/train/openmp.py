"""How the threads of a product wait for each other: asleep, so that another program costs its share and no more.

torch divides a product among threads and waits for the last of them, thousands of times a second where the model is
small. GNU's OpenMP lets those that are done spin for milliseconds, which is quickest as long as each has a core to
itself. As soon as another program runs, a thread that spins keeps its core from the one that it waits for, which has
to share the other program's: on two cores with one busy process beside it, `encoder-5min-cpu` trains at a thirtieth of
its speed, and at most of it when threads sleep (benchmarks/busy_machine.py).

OpenMP reads the environment when torch is loaded, so this is set as soon as Etude is imported. Whoever imports torch
first sets OMP_WAIT_POLICY=passive themselves. No number depends on it.
"""

from __future__ import annotations

import os

_OTHER_SETTINGS = ("GOMP_SPINCOUNT", "KMP_BLOCKTIME")  # of GNU's and of LLVM's OpenMP: how long threads spin


def configure_openmp() -> None:
    """Let threads that wait sleep, unless the user has said how they wait."""
    if not any(name in os.environ for name in _OTHER_SETTINGS):
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")

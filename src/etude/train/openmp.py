"""How the threads of a product wait for each other: asleep, so that another program costs its share and no more.

torch divides a product among threads and waits for the last of them, thousands of times a second where the model is
small. GNU's OpenMP lets those that are done spin for milliseconds, which is quickest as long as each has a core to
itself. As soon as another program runs, a thread that spins keeps its core from the one that it waits for, which has
to share the other program's: on two cores with one busy process beside it a small model then trains at less than a
tenth of its speed, and at more than half of it when threads sleep (benchmarks/busy_machine.py).

OpenMP reads the environment when torch is loaded, so this is set as soon as Etude is imported. Whoever imports torch
first sets OMP_WAIT_POLICY=passive themselves. No number depends on it.
"""

from __future__ import annotations

import os

# GNU's OpenMP looks so often (a few microseconds) before a thread sleeps, which is about what it takes to wake one;
# the number outranks the policy there. LLVM's knows the policy alone.
SETTINGS = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "200"}
_LLVM_SPIN_TIME = "KMP_BLOCKTIME"


def configure_openmp() -> None:
    """Let threads that wait sleep soon, unless the user has said how they wait."""
    if not any(name in os.environ for name in (*SETTINGS, _LLVM_SPIN_TIME)):
        os.environ.update(SETTINGS)

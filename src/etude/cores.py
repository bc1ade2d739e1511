"""The cores that this process may use: fewer than the machine has under `taskset`, a batch system or a container."""

from __future__ import annotations

import math
import os
from pathlib import Path

CONTROL_GROUPS = Path("/sys/fs/cgroup")  # a container sees its own group there
MEMBERSHIP = Path("/proc/self/cgroup")


def count_cores() -> int:
    """Return the cores of this process's affinity, or of its CPU quota where that is smaller."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(cores, _read_quota())))


def _read_quota() -> float:
    """Return the cores that a quota of version 2 of Linux's control groups leaves; infinite where there is none."""
    try:
        lines = MEMBERSHIP.read_text(encoding="utf-8").splitlines()
        group = next(line.removeprefix("0::/") for line in lines if line.startswith("0::/"))
    except (OSError, StopIteration):
        return math.inf
    folder, quotas = CONTROL_GROUPS / group, [math.inf]
    for ancestor in (folder, *folder.parents):  # that of a group holds for all groups in it
        try:
            quota, period = (ancestor / "cpu.max").read_text(encoding="utf-8").split()
            quotas.append(math.inf if quota == "max" else int(quota) / int(period))
        except (OSError, ValueError):
            pass  # the root has none
        if ancestor == CONTROL_GROUPS:
            break
    return min(quotas)

"""The folder of a study: the names of its files, the lock on it, and folders that are something else's."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from etude.errors import UserError
from etude.runs.run import RECIPE
from etude.text.run_checksums import CHECKSUMS

STUDY, RESULTS, REPORT, TABLE, REGISTERED = "study.yaml", "results.json", "report.html", "table.md", "registered.json"
REGISTRATIONS = "registrations.json"  # of all studies whose cells lie in a folder
MACHINE = "machine.json"
PICK = "pick.json"  # of a pick, whose report and results have the same names


def refuse_other_files(folder: Path) -> None:
    """Raise UserError for a folder that no study has begun in, and that holds what a study would write over.

    A study file is no sign of either: a person may have written it there.
    """
    if (folder / MACHINE).is_file() or (folder / REGISTERED).is_file():
        return
    taken = [name for name in (PICK, RECIPE, RESULTS, REPORT, TABLE, CHECKSUMS) if (folder / name).exists()]
    if taken:
        raise UserError(
            f"{folder} holds {taken[0]}, which no study has put there, and a study would write over what lies there. "
            "Choose another folder with -o."
        )


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold a folder for this process; UserError where another one works in it."""
    with open(folder / ".lock", "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{folder} is being worked on by another process. Wait for it, or choose another folder with -o."
            ) from None
        yield

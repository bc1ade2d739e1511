"""The exceptions that a user's input or a failing disk can cause.

Their text is the whole answer: what is wrong, where (file and line), and what to do. The command line prints it without
a traceback and exits with code 2; in Python they are ordinary exceptions.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

MOST_LISTED = 200  # names that a hint lists where none of them is like the one given


class UserError(Exception):
    """Invalid input, described in one message: what, where, what to do.

    `advice` is the part that only a user of the command line can follow, such as an option: the server leaves it out.
    """

    def __init__(self, message: str = "", advice: str = "") -> None:
        super().__init__(f"{message} {advice}".rstrip())
        self.message, self.advice = message, advice


class WriteError(OSError):
    """A write that the disk or the file system refused; what was complete before it is still there.

    No UserError: code that goes on after a user's mistake (a contender that fails, a cell of a study) must not go on
    without a disk, nor store the failure as that of the settings.
    """


def explain_no_file(path: str | Path) -> str:
    """Return what is wrong with a path that is no file: there is none, or it is a folder."""
    if Path(path).is_dir():
        return f"{path} is a folder, and a file is expected: name a file in it."
    return f"There is no file {path}."


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Return a hint for a mistyped name: " Did you mean 'width'?", all that are as near, or the few known ones."""
    known = sorted(known)
    listed = f" Known: {', '.join(known)}." if 0 < len(known) <= MOST_LISTED else ""
    return suggest_nearest(name, known) or listed


def suggest_nearest(name: str, known: Sequence[str]) -> str:
    """Return a hint that names those most like a mistyped name; empty where none is like it."""
    matches = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    scores = [difflib.SequenceMatcher(None, match, name).ratio() for match in matches]
    nearest = [f"'{match}'" for match, score in zip(matches, scores, strict=True) if score == scores[0]]
    return f" Did you mean {' or '.join(nearest)}?" if nearest else ""


# --- failing disks ------------------------------------------------------------------------------------

FULL = (errno.ENOSPC, errno.EDQUOT)
ADVICE = {
    errno.ENOSPC: "Free some space, then run the same command again.",
    errno.EDQUOT: "Free some space, then run the same command again.",
    errno.EFBIG: "Raise the limit on the size of files (ulimit -f), then run the same command again.",
    errno.EROFS: "It is read-only: choose another folder.",
    errno.EACCES: "Choose a folder that you may write to.",
    errno.EPERM: "Choose a folder that you may write to.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
    errno.ENOTDIR: "A part of the path is a file: choose another folder.",
    errno.EEXIST: "A file is where a folder is needed: choose another folder.",
    errno.EISDIR: "A folder is where a file is needed: choose another name.",
    errno.ENOENT: "The folder was removed or moved.",
    errno.EIO: "The disk fails: take another one.",
}


def explain_os_error(error: BaseException, path: str | Path | None = None) -> str | None:
    """Return the message of a failed write or read, or None where an error is none of a file system.

    `path` is what was written. Libraries report such failures in their own classes: safetensors and torch as texts,
    numpy as an OSError without a number.
    """
    if isinstance(error, WriteError):
        return str(error)
    if isinstance(error, ConnectionError | BlockingIOError | ChildProcessError | InterruptedError | TimeoutError):
        return None
    number = _error_number(error)
    if number is None:
        return None
    file = error.filename if isinstance(error, OSError) and error.filename is not None else path
    subject = "A file" if file is None else escape_path(file)
    if number in (errno.EACCES, errno.EPERM) and file is not None and _is_closed(file):
        return f"{subject} cannot be read: {os.strerror(number)}. Its owner can allow it: chmod a+r {subject}"
    reason = "no space is left on the disk" if number in FULL else os.strerror(number)
    return f"{subject} cannot be written or read: {reason}. {ADVICE.get(number, '')}".rstrip()


def _is_closed(path: str | Path | bytes | int) -> bool:
    """Whether a file is there that this user may not read."""
    return not isinstance(path, int) and Path(os.fsdecode(path)).is_file() and not os.access(path, os.R_OK)


def _error_number(error: BaseException) -> int | None:
    text = str(error)
    if isinstance(error, OSError):
        return errno.ENOSPC if error.errno is None and "requested and" in text else error.errno
    if type(error).__name__ == "SafetensorError":
        number = re.search(r"\(os error (\d+)\)", text)
        return int(number[1]) if number else None
    is_torch_writer = isinstance(error, RuntimeError) and ("unexpected pos" in text or "PytorchStreamWriter" in text)
    return errno.ENOSPC if is_torch_writer else None


@contextmanager
def explain_write_failure(path: str | Path, kind: type[UserError | WriteError] = WriteError) -> Iterator[None]:
    """Turn what a failing disk raises while `path` is written into a WriteError that names it.

    `kind` is UserError where nothing has begun, so that the path itself is the mistake.
    """
    try:
        yield
    except (UserError, WriteError):
        raise
    except Exception as error:
        message = explain_os_error(error, path)
        if message is None:
            raise
        raise kind(message) from error


def escape_path(path: str | Path | bytes | int) -> str:
    """Return a path as one printable line: bytes that are no UTF-8 and control characters are shown escaped."""
    text = os.fsdecode(path) if isinstance(path, str | Path | bytes) else str(path)
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def quote_path(path: str | Path) -> str:
    """Return a path as one word of a command that a message prints to be copied."""
    return shlex.quote(str(path))

"""Folders that appear complete or not at all: written aside, flushed, renamed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from etude.errors import UserError, explain_write_failure, quote_path
from etude.text.run_checksums import CHECKSUMS
from etude.train import checkpoint


def refuse_existing(folder: Path) -> None:
    """Raise UserError where `folder` holds something, or where nothing can be written there.

    Asked before anything is computed. The message says how to resume an unfinished run that lies there.
    """
    with explain_write_failure(folder, UserError):
        exists = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    if exists:
        is_export = (folder / "modeling_etude.py").is_file()  # of `etude export`: it holds the recipe, and cannot go on
        is_finished = (folder / CHECKSUMS).is_file()  # the last file of a run
        is_run = (folder / "recipe.yaml").is_file() and not is_export and not is_finished
        verb = "finetune" if (folder / "task.yaml").is_file() else "pretrain"
        advice = f"Resume it with 'etude {verb} --resume {quote_path(folder)}', or choose" if is_run else "Choose"
        raise UserError(f"{folder} exists already. {advice} another folder with -o.")
    try_writing(folder)


def try_writing(folder: Path, inside: bool = False) -> None:
    """Write a file without a name where `folder` is to be: permission bits alone do not say what will succeed.

    With `inside` it may be there already, and is to be written into. A process that dies here leaves nothing, which
    nobody would remove.
    """
    with explain_write_failure(folder, UserError):
        places = [*([folder.absolute()] if inside else []), *folder.absolute().parents]
        parent = next(parent for parent in places if parent.exists())
        if not parent.is_dir():
            raise UserError(f"{folder} cannot be written: {parent} is a file. Choose another folder with -o.")
        tempfile.TemporaryFile(prefix=".etude-", dir=parent).close()


@contextmanager
def staged_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `folder` that takes its place at the end; nothing stays after an error.

    It is locked while it is written. One that is not is of a process that died, and is removed by the next start.
    """
    refuse_existing(folder)
    with explain_write_failure(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        staging = folder.with_name(f".{folder.name}.creating-{os.getpid()}")
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
    handle = os.open(staging, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with explain_write_failure(folder):
            yield staging
            checkpoint.flush(staging)
            if folder.is_dir():  # empty: checked above
                folder.rmdir()
            os.rename(staging, folder)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    finally:
        os.close(handle)
    checkpoint.flush(folder.parent)


def _remove_leftovers(folder: Path) -> None:
    prefix = f".{folder.name}.creating-"
    for leftover in [path for path in folder.parent.iterdir() if path.name.startswith(prefix)]:
        handle = os.open(leftover, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(leftover, ignore_errors=True)
        except BlockingIOError:  # it is being written
            continue
        finally:
            os.close(handle)

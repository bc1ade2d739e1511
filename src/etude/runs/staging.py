"""Folders that appear complete or not at all: written aside, flushed, renamed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from etude.errors import UserError
from etude.train import checkpoint


def refuse_existing(folder: Path) -> None:
    """Raise UserError where `folder` holds something; the message says how to resume a run that lies there."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        is_run = (folder / "recipe.yaml").is_file()
        verb = "finetune" if (folder / "task.yaml").is_file() else "pretrain"
        advice = f"Resume it with 'etude {verb} --resume {folder}', or choose" if is_run else "Choose"
        raise UserError(f"{folder} exists already. {advice} another folder with -o.")


@contextmanager
def staged_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `folder` that takes its place at the end; nothing stays after an error."""
    refuse_existing(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = folder.with_name(f".{folder.name}.creating-{os.getpid()}")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    try:
        yield staging
        checkpoint.flush(staging)
        if folder.is_dir():  # empty: checked above
            folder.rmdir()
        os.rename(staging, folder)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    checkpoint.flush(folder.parent)

"""The folder beside a corpus in the making: `<out>.partial`, locked, and gone when the corpus is there."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import Any

from etude.errors import UserError
from etude.text.corpus.manifest import MANIFEST

SETTINGS, STATE, LOCK, CORPUS = "settings.json", "state.json", "lock", "corpus"


class WorkFolder:
    """Kept when interrupted, removed when the input is at fault."""

    def __init__(self, out: Path, settings: dict[str, Any]) -> None:
        self.out, self.settings = out, settings
        self.folder = out.parent / f"{out.name}.partial"
        self.made: list[Path] = []

    def __enter__(self) -> WorkFolder:
        parent = self.out.absolute().parent
        self.made = [folder for folder in (parent, *parent.parents) if not folder.exists()]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.lock = (self.folder / LOCK).open("w")
        except OSError as problem:
            raise UserError(f"{self.folder} cannot be written: {problem.strerror}.") from None
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.lock.close()
            raise UserError(
                f"Another process is preparing {self.out} right now. Wait for it, or choose another name."
            ) from None
        text = json.dumps(self.settings, sort_keys=True)
        kept = self.folder / SETTINGS
        if not kept.is_file() or kept.read_text() != text:  # nothing to go on from, or other text or settings
            for path in self.folder.iterdir():
                if path.is_dir():
                    shutil.rmtree(path)
                elif path.name != LOCK:
                    path.unlink()
            write_whole(kept, text)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: object) -> None:
        if kind is not None and issubclass(kind, UserError):
            shutil.rmtree(self.folder, ignore_errors=True)
            for folder in self.made:
                with contextlib.suppress(OSError):
                    folder.rmdir()
        self.lock.close()

    def path(self, name: str) -> Path:
        return self.folder / name

    def publish(self, manifest: dict[str, Any]) -> None:
        """Writes the manifest and puts the corpus in its place by a rename."""
        corpus = self.folder / CORPUS
        # without a state, what a process that dies in the next lines leaves is not taken for work to go on with
        (self.folder / STATE).unlink(missing_ok=True)
        write_whole(corpus / MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
        old = self.folder / "replaced"
        if self.out.exists():
            self.out.rename(old)
        corpus.rename(self.out)
        _sync_folder(self.out.absolute().parent)
        shutil.rmtree(self.folder)


def write_whole(path: Path, text: str) -> None:
    """The file is there with all of its text, or as it was before."""
    aside = path.with_name(path.name + ".new")
    with aside.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

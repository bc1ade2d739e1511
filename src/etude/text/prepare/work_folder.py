"""The work folder of a preparation: `<out>.partial`, locked, removed when the corpus is complete."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from etude.errors import UserError, WriteError, explain_os_error, explain_write_failure
from etude.text.checked_files import MANIFEST, write_atomically, write_manifest
from etude.text.corpus.split_writer import Upload

START_AGAIN = "What was prepared so far is removed: run the same command again."  # where it is damaged
WORK_FORMAT = 5  # of what an interrupted preparation leaves: that of another format is begun anew
SETTINGS, STATE, LOCK, CORPUS, LINKING = "settings.json", "state.json", "lock", "corpus", "linking"
PUBLISHED = "published.json"  # the settings, once the corpus is complete and only has to be moved to its place
REPLACED = "replaced"  # the corpus at whose place the new one goes


class WorkFolder:
    """The folder of one preparation: stays after an interruption, is removed after an error in the input."""

    def __init__(self, out: Path, settings: dict[str, object]) -> None:
        # a link to another disk stays one: work and corpus are where it points to
        self.out, self.settings = _resolve_link(out), settings
        self.folder = _find_work_folder(out)
        self.new_folders: list[Path] = []
        self.upload: Upload | None = None  # of a corpus that does not stay on this machine

    def finish(self) -> bool:
        """Move the corpus to its place if a process with the same settings died where that alone was left."""
        if not self._is_published():
            return False
        self._take_lock()
        with contextlib.closing(self.lock), explain_write_failure(self.folder):
            if not self._is_published():  # another process was faster
                return False
            self._move()
        return True

    def _is_published(self) -> bool:
        published = self.folder / PUBLISHED
        is_complete = published.is_file() and (self.folder / CORPUS / MANIFEST).is_file()
        return is_complete and published.read_text() == self._format_settings()

    def __enter__(self) -> WorkFolder:
        self._take_lock()
        try:
            with explain_write_failure(self.folder):
                self._continue_or_clear()
        except BaseException:
            self.lock.close()
            raise
        return self

    def _take_lock(self) -> None:
        parent = self.out.absolute().parent
        self.new_folders = [folder for folder in (parent, *parent.parents) if not folder.exists()]
        with explain_write_failure(self.folder, UserError):
            self.folder.mkdir(parents=True, exist_ok=True)
            self.lock = (self.folder / LOCK).open("w")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.lock.close()
            raise UserError(
                f"Another process is preparing {self.out} right now. Wait for it, or choose another name."
            ) from None

    def _format_settings(self) -> str:
        return json.dumps({"format": WORK_FORMAT, **self.settings}, sort_keys=True)

    def _continue_or_clear(self) -> None:
        """Keep what an interrupted preparation with the same settings left; remove anything else."""
        text, settings_file = self._format_settings(), self.folder / SETTINGS
        can_continue = settings_file.is_file() and settings_file.read_text() == text
        if not can_continue:
            _remove_content(self.folder)
            write_atomically(settings_file, text)

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: object) -> None:
        if kind is not None and issubclass(kind, UserError):
            self.remove(ignore_errors=True)
            for folder in self.new_folders:
                with contextlib.suppress(OSError):
                    folder.rmdir()
        self.lock.close()
        if isinstance(value, OSError) and not isinstance(value, WriteError):
            message = explain_os_error(value, self.folder)
            if message is not None:  # what is complete stays, and the same command goes on
                raise WriteError(message) from value

    def path(self, name: str) -> Path:
        return self.folder / name

    def publish(self, manifest: Mapping[str, object]) -> None:
        """Write the manifest and move the folder CORPUS to its place by a rename."""
        write_manifest(self.folder / CORPUS, manifest)
        (self.folder / SETTINGS).rename(self.folder / PUBLISHED)  # whoever dies behind this line leaves moves alone
        self._move()

    def _move(self) -> None:
        """Move the complete corpus to its place, and remove what it replaces and the work."""
        replaced = self.folder / REPLACED
        if self.out.exists():
            shutil.rmtree(replaced, ignore_errors=True)  # of a process that died behind the renames
            self.out.rename(replaced)
        (self.folder / CORPUS).rename(self.out)
        _sync_folder(self.out.absolute().parent)
        self.remove()

    def remove(self, ignore_errors: bool = False) -> None:
        """Remove the folder; its settings first, so that what a process leaves that dies here is not continued.

        The lock goes last: by it `_remove_leftovers` knows such a folder.
        """
        with contextlib.suppress(OSError):  # what resists is met again below
            for name in (SETTINGS, PUBLISHED):
                (self.folder / name).unlink(missing_ok=True)
            _remove_content(self.folder)
        shutil.rmtree(self.folder, ignore_errors=ignore_errors)


def refuse_existing(out: Path, force: bool) -> None:
    """Raise UserError if something is at `out` that only --force may replace, or that was not prepared here at all."""
    if out.name in ("", ".."):  # the folder in which one works cannot be replaced by a rename
        raise UserError(f"{out} names no new folder. Write the name of one, such as {out / 'corpus'}.")
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / MANIFEST).is_file():
        raise UserError(f"{out} exists already, and is neither a corpus nor a graph. Choose another name.")
    _remove_leftovers(out)
    if not force:
        raise UserError(f"{out} exists already. Choose another name, or replace it with --force.")


def _resolve_link(out: Path) -> Path:
    return out.resolve() if out.is_symlink() else out


def _find_work_folder(out: Path) -> Path:
    place = _resolve_link(out)
    return place.parent / f"{place.name}.partial"


def _remove_content(folder: Path) -> None:
    """Remove all but the lock."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


def _remove_leftovers(out: Path) -> None:
    """Remove the work folder of a process that was killed while it did so itself, with its corpus at its place."""
    folder = _find_work_folder(out)
    if (folder / SETTINGS).exists() or (folder / CORPUS).exists():
        return
    with contextlib.suppress(OSError):
        if (folder / LOCK).is_file():
            with (folder / LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove_content(folder)
                (folder / LOCK).unlink()
        folder.rmdir()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

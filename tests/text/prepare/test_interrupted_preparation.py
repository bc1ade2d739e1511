"""The same bytes whatever the interruptions: stopped, killed, damaged or changed in between."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from tests.text.prepare.small_texts import as_bytes, documents_of, some_text

from etude.errors import UserError
from etude.graph.prepare.prepare import prepare_graph
from etude.text.prepare import work_folder
from etude.text.prepare.prepare import Progress, prepare


def test_two_at_once_are_refused(text: Path, tmp_path: Path) -> None:
    interrupts = []

    def again(_: Progress) -> None:
        if not interrupts:
            with pytest.raises(UserError, match="Another process"):
                prepare(text, tmp_path / "c", "char", workers=0)
            interrupts.append(1)

    prepare(text, tmp_path / "c", "char", workers=0, progress=again)
    assert interrupts


class Stop(Exception):
    """Ends a preparation from within, as a crash would."""


@pytest.mark.parametrize("moment", ["before", "between"])
def test_a_complete_corpus_is_only_moved(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """A death at the last renames cost all of the work."""
    prepare(text, tmp_path / "whole", "word:25", workers=0)
    prepare(text, tmp_path / "c", "char", workers=0)
    rename = Path.rename

    def die(path: Path, target: Path) -> Path:
        if path.name == ("c" if moment == "before" else "corpus"):
            raise Stop
        return rename(path, target)

    with monkeypatch.context() as patch, pytest.raises(Stop):
        patch.setattr(Path, "rename", die)
        prepare(text, tmp_path / "c", "word:25", workers=0, force=True)
    assert (tmp_path / "c").exists() == (moment == "before")
    if moment == "before":  # what is there can be used, and nothing of what replaces it is lost by asking
        with pytest.raises(UserError, match="exists already"):
            prepare(text, tmp_path / "c", "word:25", workers=0)
    with monkeypatch.context() as patch:
        patch.setattr("etude.text.prepare.prepare._Preparation.scan", Mock(side_effect=Stop))
        with pytest.raises(Stop):  # another text is another corpus
            prepare(text, tmp_path / "other", "word:25", workers=0)
        prepare(text, tmp_path / "c", "word:25", workers=0, force=True)
    assert as_bytes(tmp_path / "c") == as_bytes(tmp_path / "whole")
    assert not (tmp_path / "c.partial").exists()


def test_a_complete_corpus_of_other_settings_is_not_taken(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(Stop):
        patch.setattr(work_folder.WorkFolder, "_move", Mock(side_effect=Stop))
        prepare(text, tmp_path / "c", "char", workers=0)
    assert (tmp_path / "c.partial" / "published.json").is_file()
    text.write_text(text.read_text() + "\n\nOne more document.")
    prepare(text, tmp_path / "c", "char", workers=0)
    prepare(text, tmp_path / "whole", "char", workers=0)
    assert as_bytes(tmp_path / "c") == as_bytes(tmp_path / "whole")


@pytest.mark.parametrize("moment", ["renamed", "removing", "removed"])
@pytest.mark.parametrize("kind", ["corpus", "graph"])
def test_what_a_death_behind_the_last_rename_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, moment: str
) -> None:
    """The work folder stayed beside the finished corpus for ever."""
    (tmp_path / "a.tsv").write_text("a\tb\tc\n1\t2\t3\n")
    remove = shutil.rmtree

    def run() -> None:
        if kind == "graph":
            prepare_graph(tmp_path / "a.tsv", tmp_path / "c")
        else:
            prepare(tmp_path / "a.tsv", tmp_path / "c", "char", text_field="a", workers=0)

    def die(path: Path, **options: Any) -> None:
        if path.name != "c.partial":
            remove(path, **options)
            return
        if moment == "removing":
            (path / "work").write_bytes(bytes(100))
        else:
            (path / "lock").unlink()
        raise Stop

    with monkeypatch.context() as patch, pytest.raises(Stop):
        patch.setattr(work_folder.shutil, "rmtree", die)
        if moment == "renamed":
            patch.setattr(work_folder, "_sync_folder", Mock(side_effect=Stop))
        run()
    assert (tmp_path / "c" / "manifest.json").is_file() and (tmp_path / "c.partial").is_dir()
    with pytest.raises(UserError, match="exists already"):
        run()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tsv", "c"]


@pytest.mark.parametrize("name", ["state.json", "scan.json", "counts-train-*.npy", "streams-*.npy"])
def test_what_is_damaged_while_nobody_works_is_refused_by_name(tmp_path: Path, small_blocks: None, name: str) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join(some_text(100, seed=1)))
    commits = []

    def stop(progress: Progress) -> None:
        commits.append(progress.phase)
        if commits.count("encoding") >= 4:
            raise Stop

    options: dict[str, Any] = {"workers": 0, "shard_tokens": 4000, "commit_seconds": 0}
    with pytest.raises(Stop):
        prepare(tmp_path / "a.txt", tmp_path / "c", "word:25", progress=stop, **options)
    [path] = (tmp_path / "c.partial").glob(name)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"{path.name} .*run the same command again"):
        prepare(tmp_path / "a.txt", tmp_path / "c", "word:25", **options)
    assert not (tmp_path / "c.partial").exists()
    expected = prepare(tmp_path / "a.txt", tmp_path / "whole", "word:25", **options)
    assert prepare(tmp_path / "a.txt", tmp_path / "c", "word:25", **options).total == expected.total


@pytest.mark.parametrize("problem", [Stop, KeyboardInterrupt])
def test_an_interrupted_preparation_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_blocks: None, problem: type[BaseException]
) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join(some_text(100, seed=1)))
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in some_text(100, seed=2)))
    sources = {str(tmp_path / "a.txt"): 1.5, str(tmp_path / "b.jsonl"): 1.0}
    options: dict[str, Any] = {"valid": 0.2, "workers": 0, "shard_tokens": 4000, "unique": True}
    whole = prepare(sources, tmp_path / "whole", "word:25", **options)
    assert len(whole.manifest["parts"]["train"]["shards"]) > 2
    monkeypatch.setattr(os, "fsync", lambda _: None)
    seen: list[Progress] = []
    prepare(sources, tmp_path / "count", "word:25", progress=seen.append, **options)
    steps = len(seen)
    assert steps > 20
    reached: list[int] = []
    for stops in range(3, steps, 3):  # chained: each attempt is stopped after three more steps
        calls = 0

        def stop(progress: Progress) -> None:
            nonlocal calls
            calls += 1
            if progress.phase == "encoding":
                reached.append(progress.text)
            if calls >= 4:
                raise problem

        try:
            prepare(sources, tmp_path / "c", "word:25", progress=stop, commit_seconds=0, **options)
        except problem:
            assert not (tmp_path / "c").exists() and (tmp_path / "c.partial").exists(), stops
        else:
            break
    else:
        prepare(sources, tmp_path / "c", "word:25", **options)
    assert as_bytes(tmp_path / "c") == as_bytes(tmp_path / "whole") == as_bytes(tmp_path / "count")
    assert not (tmp_path / "c.partial").exists()
    assert len(reached) < 3 * steps  # it went on, and did not start anew each time


def test_changed_text_or_settings_start_anew(text: Path, tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.phase == "encoding":
            raise Stop

    for change in (lambda: None, lambda: text.write_text("\n\n".join(some_text(80, seed=9)))):
        with pytest.raises(Stop):
            prepare(text, tmp_path / "c", "char", workers=0, progress=stop)
        change()
    corpus = prepare(text, tmp_path / "c", "bytebpe:300", valid=0, workers=0)
    assert documents_of(corpus) == some_text(80, seed=9)


def test_work_of_another_format_is_begun_anew(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def list_phases(work_format: int) -> list[str]:
        phases: list[str] = []

        def stop(progress: Progress) -> None:
            phases.append(progress.phase)
            if progress.phase == "encoding":
                raise Stop

        monkeypatch.setattr("etude.text.prepare.work_folder.WORK_FORMAT", work_format)
        with pytest.raises(Stop):
            prepare(text, tmp_path / "c", "char", workers=0, progress=stop)
        return phases

    first = list_phases(1)
    assert "reading" in first
    assert "reading" not in list_phases(1)
    assert list_phases(2) == first


def test_text_that_changes_between_the_passes_is_noticed(text: Path, tmp_path: Path) -> None:
    def change(progress: Progress) -> None:
        if progress.phase == "training":
            text.write_text(text.read_text().replace("king", "ling"))

    with pytest.raises(UserError, match="changed while it was read"):
        prepare(text, tmp_path / "c", "char", workers=0, progress=change)
    assert not (tmp_path / "c.partial").exists()


@pytest.mark.parametrize("removed", [(), ("hashes.u64",), ("scan.json", "hashes.u64")])
def test_killed_while_the_work_folder_is_removed(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: tuple[str, ...]
) -> None:
    """A corpus that was replaced may take long to remove: the same command after a kill there does all of it again."""
    prepare(text, tmp_path / "c", "char", workers=0)
    remove = shutil.rmtree

    def die(path: Path, **options: bool) -> None:
        if path.name != "replaced" or not path.exists():
            remove(path, **options)
            return
        for name in removed:
            (path.parent / name).unlink(missing_ok=True)
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr("etude.text.prepare.work_folder.shutil.rmtree", die)
        with pytest.raises(Stop):
            prepare(text, tmp_path / "c", "word:25", workers=0, force=True)
    assert (tmp_path / "c.partial" / "replaced").exists()
    prepare(text, tmp_path / "c", "word:25", workers=0, force=True)
    prepare(text, tmp_path / "whole", "word:25", workers=0)
    assert as_bytes(tmp_path / "c") == as_bytes(tmp_path / "whole")
    assert not (tmp_path / "c.partial").exists()


KILLED = """
import sys
from etude.text.prepare import readers
from etude.text.prepare.prepare import prepare
readers.BLOCK_BYTES = 1 << 12
if __name__ == "__main__":
    prepare(sys.argv[1], sys.argv[2], "wordpiece:200", workers=2, commit_seconds=0.02,
            progress=lambda p: print(p.phase, p.text, flush=True))
"""


def test_a_killed_preparation_goes_on(tmp_path: Path, small_blocks: None) -> None:
    """SIGKILL at arbitrary moments, workers and all, then the same call again: byte for byte the undisturbed corpus."""
    text = tmp_path / "a.txt"
    text.write_text("\n\n".join(some_text(800)))
    prepare(text, tmp_path / "whole", "wordpiece:200", workers=0)
    kills = 0
    for lines in (40, 115, 25, 25):  # of progress before the kill: in the scan, then three times in the encoding
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(text), str(tmp_path / "c")], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        last = [process.stdout.readline() for _ in range(lines)][-1]
        assert last.startswith("reading" if lines == 40 else "encoding")
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
        process.stdout.close()
        assert not (tmp_path / "c").exists() and (tmp_path / "c.partial").exists()
    assert kills == 4
    prepare(text, tmp_path / "c", "wordpiece:200", workers=0)
    assert as_bytes(tmp_path / "c") == as_bytes(tmp_path / "whole")

"""Fuzzed files: a value or one message, never another exception; what is written is complete, or is not there."""

from __future__ import annotations

import math
import os
import random
import shutil
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import etude
from etude.errors import UserError
from tests.hostile.commands import list_leftovers
from tests.hostile.samples import Samples
from tests.hostile.targets import OUT, Target, make_targets
from tests.hostile.writing_targets import make_writing_targets

FAST, SLOW = 3, 52_000


@pytest.fixture(scope="module")
def targets(samples: Samples, tmp_path_factory: pytest.TempPathFactory) -> list[Target]:
    read = make_targets(samples, tmp_path_factory.mktemp("targets"))
    return [*read, *make_writing_targets(samples, tmp_path_factory.mktemp("written"))]


@dataclass
class Faults:
    counts: Counter[str] = field(default_factory=Counter)
    messages: list[str] = field(default_factory=list)
    refusals: int = 0
    written: int = 0  # complete folders

    def add(self, fault: str, detail: str) -> None:
        self.counts[fault] += 1
        if self.counts[fault] == 1:
            self.messages.append(f"{fault}: {detail}")


def list_names(folder: Path) -> set[str]:
    return {entry.path for entry in _walk(folder)}


def _walk(folder: str | Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            yield entry
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(entry.path)


def fuzz(target: Target, count: int, seed: str, faults: Faults) -> None:
    """Change a file some times and read it: no exception but UserError, and nothing half-written in its folder."""
    path = target.folder / target.file
    whole, manifest = path.read_bytes(), target.folder / "manifest.json"
    former = manifest.read_bytes() if manifest.is_file() else None
    names = list_names(target.folder)
    for number in range(count):
        content = target.mutate(whole, random.Random(f"{seed} {target.name} {number}"))
        path.write_bytes(content)
        is_refused = False
        try:
            target.fix(target.folder)
            target.read(target.folder)
        except UserError as error:
            is_refused, faults.refusals = True, faults.refusals + 1
            if not str(error):
                faults.add(f"{target.name}: empty message", repr(content[:150]))
        except Exception as error:
            is_refused, last = True, traceback.extract_tb(error.__traceback__)
            place = next((frame for frame in reversed(last) if "/etude/" in frame.filename), last[-1])
            fault = f"{target.name}: {type(error).__name__} at {Path(place.filename).name}:{place.lineno}"
            faults.add(fault, f"{str(error)[:150]} <- {content[:150]!r}")
        check_written(target, names, is_refused, content, faults)
        if former is not None:
            manifest.write_bytes(former)
    path.write_bytes(whole)


def check_written(target: Target, names: set[str], is_refused: bool, content: bytes, faults: Faults) -> None:
    """After a refusal nothing new lies in the folder; otherwise `out` is complete, and nothing was put aside."""
    new = sorted(list_names(target.folder) - names)
    if not new:
        return
    out = target.folder / OUT
    if is_refused or list_leftovers(target.folder):
        faults.add(f"{target.name}: half-written", f"{new[:5]} <- {content[:150]!r}")
    elif out.exists():
        try:
            etude.verify(out)
            faults.written += 1
        except UserError as error:
            faults.add(f"{target.name}: half-written", f"{error} <- {content[:150]!r}")
    for name in new:
        if Path(name).is_dir():
            shutil.rmtree(name)
        else:
            Path(name).unlink(missing_ok=True)


def test_a_few_changed_files_of_every_kind(targets: list[Target]) -> None:
    faults = Faults()
    for target in targets:
        names = list_names(target.folder)
        target.read(target.folder)  # what is not changed is read
        check_written(target, names, False, b"", faults)
        fuzz(target, FAST if target.share >= 0.5 else 1, "fast", faults)
    assert not faults.counts, "\n".join(faults.messages)


@pytest.mark.slow
def test_fifty_thousand_changed_files(targets: list[Target]) -> None:
    total = int(os.environ.get("ETUDE_FUZZ", SLOW))
    parts, done, faults = sum(target.share for target in targets), 0, Faults()
    for target in targets:
        count = math.ceil(total * target.share / parts)
        fuzz(target, count, "slow", faults)
        done += count
    print(f"{done:,} files of {len(targets)} kinds: {faults.refusals:,} refused, {faults.written:,} folders written "
          f"whole; {sum(faults.counts.values())} faults")  # fmt: skip
    assert not faults.counts, "\n".join(f"{faults.counts.total()}\n{line}" for line in faults.messages)


def test_names_of_targets_differ(targets: list[Target]) -> None:
    assert len({target.folder for target in targets}) == len(targets) >= 80

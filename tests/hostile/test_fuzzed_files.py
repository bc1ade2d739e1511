"""Fuzzed files: every reader answers with a value or one message, never with another exception."""

from __future__ import annotations

import os
import random
import traceback
from collections import Counter
from pathlib import Path

import pytest

from etude.errors import UserError
from tests.hostile.samples import Samples
from tests.hostile.targets import Target, make_targets

FAST, SLOW = 8, 52_000


@pytest.fixture(scope="module")
def targets(samples: Samples, tmp_path_factory: pytest.TempPathFactory) -> list[Target]:
    return make_targets(samples, tmp_path_factory.mktemp("targets"))


def fuzz(target: Target, count: int, seed: str, faults: Counter[str], messages: list[str]) -> None:
    path = target.folder / target.file
    whole, manifest = path.read_bytes(), target.folder / "manifest.json"
    former = manifest.read_bytes() if manifest.is_file() else None
    for number in range(count):
        content = target.mutate(whole, random.Random(f"{seed} {target.name} {number}"))
        path.write_bytes(content)
        try:
            target.fix(target.folder)
            target.read(target.folder)
        except UserError as error:
            if not str(error):
                faults[f"{target.name}: empty message"] += 1
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)
            place = next((frame for frame in reversed(last) if "/etude/" in frame.filename), last[-1])
            fault = f"{target.name}: {type(error).__name__} at {os.path.basename(place.filename)}:{place.lineno}"  # noqa: PTH119
            faults[fault] += 1
            if faults[fault] == 1:
                messages.append(f"{fault}: {str(error)[:150]} <- {content[:150]!r}")
        if former is not None:
            manifest.write_bytes(former)
    path.write_bytes(whole)


def check_whole(targets: list[Target]) -> None:
    for target in targets:
        target.read(target.folder)  # what is not changed is read


def test_a_few_changed_files_of_every_kind(targets: list[Target]) -> None:
    check_whole(targets)
    faults, messages = Counter[str](), list[str]()
    for target in targets:
        fuzz(target, FAST, "fast", faults, messages)
    assert not faults, "\n".join(messages)


@pytest.mark.slow
def test_fifty_thousand_changed_files(targets: list[Target]) -> None:
    total = int(os.environ.get("ETUDE_FUZZ", SLOW))
    parts, done = sum(target.share for target in targets), 0
    faults, messages = Counter[str](), list[str]()
    for target in targets:
        count = -(-total * target.share // parts)
        fuzz(target, count, "slow", faults, messages)
        done += count
    print(f"{done:,} files of {len(targets)} kinds; {sum(faults.values())} faults")
    assert not faults, "\n".join(messages)


def test_names_of_targets_differ(targets: list[Target], tmp_path: Path) -> None:
    assert len({target.folder for target in targets}) == len(targets) >= 50

"""The cores of a process: those of its affinity, and of the quota of its control group."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from etude import cores
from etude.cores import count_cores


@pytest.fixture
def sixteen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Sixteen cores without a quota; the folder of the control groups."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr(cores, "CONTROL_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(cores, "MEMBERSHIP", tmp_path / "membership")
    return tmp_path / "groups"


def limit(groups: Path, name: str, content: str) -> None:
    (groups / name).mkdir(parents=True, exist_ok=True)
    (groups / name / "cpu.max").write_text(content)


def test_those_of_the_affinity(sixteen: Path) -> None:
    assert count_cores() == 16, "no control groups, as elsewhere than on Linux"
    (sixteen.parent / "membership").write_text("4:memory:/jobs/7\n")
    assert count_cores() == 16, "version 1 has another file"


def test_those_of_a_quota(sixteen: Path) -> None:
    (sixteen.parent / "membership").write_text("4:memory:/x\n0::/pods/one\n")
    limit(sixteen, "pods/one", "max 100000\n")
    assert count_cores() == 16
    limit(sixteen, "pods/one", "250000 100000\n")
    assert count_cores() == 3, "two and a half"
    limit(sixteen, "pods", "50000 100000\n")
    assert count_cores() == 1, "the group around it has less"
    limit(sixteen, "pods", "6400000 100000\n")
    limit(sixteen, "pods/one", "nonsense\n")
    assert count_cores() == 16, "never more than there are"


def test_a_container_sees_its_own_group_as_the_root(sixteen: Path) -> None:
    (sixteen.parent / "membership").write_text("0::/\n")
    limit(sixteen, ".", "200000 100000\n")
    assert count_cores() == 2


def test_without_an_affinity(sixteen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 10)
    assert count_cores() == 10, "as on a Mac"

"""Threads that wait for each other sleep, unless the user has said how they wait."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from etude.train.openmp import configure_openmp

SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "passive"),
        ({"OMP_WAIT_POLICY": "active"}, "active"),
        ({"GOMP_SPINCOUNT": "300000"}, None),
        ({"KMP_BLOCKTIME": "200"}, None),
    ],
)
def test_what_the_user_says_stays(given: dict[str, str], expected: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    configure_openmp()
    assert os.environ.get("OMP_WAIT_POLICY") == expected


def test_the_library_of_torch_reads_it() -> None:
    """It does so once, when torch is loaded: set later, it would have no effect."""
    environment = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    environment["OMP_DISPLAY_ENV"] = "verbose"
    shown = []
    for code in ("import torch", "import etude, torch"):
        command = [sys.executable, "-c", code]
        shown.append(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stderr)
    if "GOMP_SPINCOUNT" not in shown[0]:
        pytest.skip("torch has another OpenMP here than GNU's")
    assert "GOMP_SPINCOUNT = '0'" not in shown[0], "else there is nothing to gain here"
    assert "GOMP_SPINCOUNT = '0'" in shown[1]

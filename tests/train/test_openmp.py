"""Threads that wait for each other sleep, unless the user has said how they wait."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from etude.train.openmp import configure_openmp

NAMES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


@pytest.mark.parametrize("given", [{"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "9"}, {"KMP_BLOCKTIME": "200"}])
def test_what_the_user_says_stays(given: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "environ", {**os.environ, **given})
    configure_openmp()
    assert {name: os.environ[name] for name in NAMES if name in os.environ} == given


def test_the_library_of_torch_reads_it() -> None:
    """It does so once, when torch is loaded: set later, it would have no effect."""
    environment = {name: value for name, value in os.environ.items() if name not in NAMES}
    environment["OMP_DISPLAY_ENV"] = "verbose"
    shown = []
    for code in ("import torch", "import etude, torch"):
        command = [sys.executable, "-c", code]
        shown.append(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stderr)
    if "GOMP_SPINCOUNT" not in shown[0]:
        pytest.skip("torch has another OpenMP here than GNU's")
    assert "GOMP_SPINCOUNT = '200'" not in shown[0], "else there is nothing to gain here"
    assert "GOMP_SPINCOUNT = '200'" in shown[1] and "OMP_WAIT_POLICY = 'PASSIVE'" in shown[1]

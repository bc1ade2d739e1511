"""The tutorials, executed block by block as they stand: files are written, commands and Python run, in one folder."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.code_blocks import DOCS, PAGES, ROOT, read_blocks

pytestmark = pytest.mark.slow
TUTORIALS = [page for page in PAGES if page.parent.name == "tutorials" and page.stem != "index"]


def environment(folder: Path) -> dict[str, str]:
    """With a command `etude` that runs this source tree."""
    program = folder / "bin" / "etude"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m etude "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: str(page.relative_to(DOCS)))
def test_tutorial(page: Path, tmp_path: Path) -> None:
    variables = environment(tmp_path)
    work = tmp_path / "work"
    work.mkdir()
    executed = 0
    for block in read_blocks(page.read_text(encoding="utf-8")):
        if block.title:
            (work / block.title).parent.mkdir(parents=True, exist_ok=True)
            (work / block.title).write_text(block.text, encoding="utf-8")
            continue
        if block.language == "sh":
            script = block.text.replace("PYTHONPATH=$PWD", "PYTHONPATH=$PWD:$PYTHONPATH")
            command = ["bash", "-euo", "pipefail", "-c", script]
        elif block.language == "python":
            command = [sys.executable, "-c", block.text]
        else:
            continue
        done = subprocess.run(command, cwd=work, env=variables, capture_output=True, text=True)
        told = (done.stdout + done.stderr)[-2000:]
        assert done.returncode == 0, f"{page.name}, line {block.line}:\n{block.text}\n{told}"
        executed += 1
    assert executed

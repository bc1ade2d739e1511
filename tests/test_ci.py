"""The script that brings a browser for the tests of pages: what it calls, and its word where it gets none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / ".ci" / "install-browser"
TOOLS = ("bash", "cat", "dirname", "mktemp", "rm", "tail", "timeout")


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A PATH without a browser, with a root user, and a playwright that cannot download."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in TOOLS:
        real = next(p for base in ("/bin", "/usr/bin", "/usr/local/bin") if (p := Path(base) / name).exists())
        (folder / name).symlink_to(real)
    write_program(folder / "id", "echo 0")
    write_program(
        folder / "python",  # without its packages, so that a browser of playwright's is none of this test
        f'case "$2" in playwright) echo no network; exit 1;; esac\nexec {sys.executable} -S "$@"',
    )
    return folder


def write_program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)


def install(programs: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": str(programs), "PYTHON": str(programs / "python"), "BROWSER_SECONDS": "0.5"}
    return subprocess.run(["/bin/bash", SCRIPT], env=environment, capture_output=True, text=True)


def test_debian_brings_the_browser(programs: Path) -> None:
    write_program(programs / "apt-get", f'[ "$1" = install ] && printf "#!/bin/bash\\n" > {programs}/chromium'
                  f' && /bin/chmod +x {programs}/chromium; true')  # fmt: skip
    done = install(programs)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"browser: {programs}/chromium"
    assert "NO BROWSER" not in done.stderr


def test_a_registry_that_does_not_answer_is_left(programs: Path) -> None:
    write_program(programs / "apt-get", "exec /bin/sleep 60")
    done = install(programs)
    assert done.returncode == 1
    assert "'apt-get install -y -q --no-install-recommends chromium' failed" in done.stderr
    assert "playwright install chromium' failed:\nno network" in done.stderr
    assert "NO BROWSER" in done.stderr and "SKIPPED" in done.stderr


def test_the_tests_run_without_a_browser() -> None:
    """A failed installation does not end .ci/run; its word stands at the end too."""
    text = (ROOT / ".ci" / "run").read_text()
    assert ".ci/install-browser || browser=no" in text and text.rstrip().endswith("fi")
    assert subprocess.run(["bash", "-n", ROOT / ".ci" / "run"]).returncode == 0

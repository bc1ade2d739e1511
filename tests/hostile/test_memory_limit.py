"""Files that ask for more memory than there is are answered within a limit of 2 GB."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import etude
from tests.hostile.samples import Samples

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_five_hundred_files_stay_below_two_gigabytes(samples: Samples, tmp_path: Path) -> None:
    if not (samples.folder / "exported").exists():
        etude.export(samples.folder / "run", out=samples.folder / "exported")
    line = [sys.executable, "-m", "tests.hostile.limited_reading", str(samples.folder), str(tmp_path), "1"]
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    process = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-2000:]
    result = json.loads(process.stdout.splitlines()[-1])
    print(f"{result['files']} files, peak {result['peak'] / 1e9:.2f} GB, {len(result['faults'])} faults")
    assert result["files"] >= 500 and result["peak"] < 2 << 30
    assert not result["faults"], "\n".join(result["faults"])

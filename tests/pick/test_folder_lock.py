"""Two picks never work in one folder, and a lock does not outlive the process that held it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from etude.errors import UserError
from etude.pick.folder_lock import lock_folder

# holds the lock, forks a child that lives longer, and says so
HOLD = """
import os, sys, time
from pathlib import Path
from etude.pick.folder_lock import lock_folder
with lock_folder(Path(sys.argv[1])):
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    print(child, flush=True)
    time.sleep(60)
"""


def test_one_pick_at_a_time(tmp_path: Path) -> None:
    with lock_folder(tmp_path):
        pass
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    child = int(holder.stdout.readline())
    try:
        with pytest.raises(UserError, match="being worked on by another pick"), lock_folder(tmp_path):
            pass
        holder.kill()
        holder.wait()
        with lock_folder(tmp_path):
            pass
    finally:
        holder.kill()
        os.kill(child, signal.SIGKILL)

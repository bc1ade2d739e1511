"""Processes that share a GPU: errors come back, deadlines are kept, a dead process is replaced."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from etude.pick import worker_pool
from etude.pick.worker_pool import Job, WorkerPool, count_slots

ECHO = """
import json, os, sys, time
for line in sys.stdin:
    job = json.loads(line)
    if job["work"].get("die"):
        sys.exit(3)
    if meet := job["work"].get("meet"):
        open(f"{meet}/{time.monotonic_ns()}", "w").close()
        while len(os.listdir(meet)) < 3:
            time.sleep(0.01)
    time.sleep(job["work"].get("sleep", 0))
    print(json.dumps({"error": job["work"].get("error")}), flush=True)
"""


class EchoPool(WorkerPool):
    """A pool whose processes do what the job says, without torch."""

    def _start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.processes.append(process)
        return process


def make_job(**work: object) -> Job:
    return Job("pretrain", dict(work), Path("cells"), time.monotonic() + 300)


def test_jobs_run_at_once_and_report(tmp_path: Path) -> None:
    pool, place = EchoPool(3, tmp_path), tmp_path / "place"
    place.mkdir()
    # each waits until the others are there: one after another would end at their deadline
    jobs = [pool.submit(make_job(meet=str(place), error=error)) for error in (None, "too long a text", None)]
    assert [job.result() for job in jobs] == [None, "too long a text", None]
    pool.submit(make_job()).result()
    assert len(pool.processes) == 3, "a process does one job after another"
    pool.close()
    assert all(process.poll() is not None for process in pool.processes)


def test_a_dead_process_loses_its_job_only(tmp_path: Path) -> None:
    pool = EchoPool(1, tmp_path)
    assert pool.submit(make_job(die=True)).result() == "its process ended with code 3"
    assert pool.submit(make_job()).result() is None
    pool.close()


def test_a_process_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "GRACE", 0.3)
    pool = EchoPool(1, tmp_path)
    job = Job("pretrain", {"sleep": 600}, Path("cells"), time.monotonic() + 2)
    assert pool.submit(job).result() == "it did not end by its deadline"
    slow = Job("pretrain", {"sleep": 600}, Path("cells"), time.monotonic() + 600, seconds=0.5)
    assert pool.submit(slow).result() == "it did not end by its deadline", "its own seconds count, too"
    late = Job("pretrain", {}, Path("cells"), time.monotonic() - 1)
    assert pool.submit(late).result() == "there was no time for it"
    pool.close()


def test_a_real_process_answers(tmp_path: Path) -> None:
    """What it was told to do is nonsense, and it says so and lives."""
    pool = WorkerPool(1, tmp_path)
    error = pool.submit(Job("pretrain", {"nonsense": 1}, tmp_path, time.monotonic() + 60)).result()
    assert error is not None and "TypeError" in error
    assert pool.processes[0].poll() is None
    pool.close()


def test_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    assert count_slots("cpu") == 1
    monkeypatch.setattr("etude.pick.worker_pool.count_cores", lambda: 16)
    assert count_slots("cuda") == 4
    monkeypatch.setattr("etude.pick.worker_pool.count_cores", lambda: 2)
    assert count_slots("cuda") == 1

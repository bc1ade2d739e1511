"""Picks as a user starts them: a process of `etude pick` with its own cores, timed from outside, scored on the test."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .data import Split, draw_labels, write_records, write_text, write_wiki
from .results import Result, ResultStore, describe_machine, stamp
from .scoring import Answer, score_answers

LATE = 1.1  # a pick ends within 110 % of its minutes
GIVE_UP = 2.0  # times its minutes: then it is ended, and has failed
PIN = "import os, sys; os.sched_setaffinity(0, map(int, sys.argv[1].split(','))); os.execv(sys.argv[2], sys.argv[2:])"
SCORING_MINUTES = 0.5  # to answer the test afterwards


@dataclass(frozen=True)
class Mode:
    """What a pick is given beside text and labels."""

    minutes: float
    has_start: bool
    device: str | None  # None: whatever is there


MODES = {
    "text": Mode(6, False, "cpu"),
    "start": Mode(6, True, "cpu"),
    "gpu": Mode(10, False, None),
    "gpu-start": Mode(10, True, None),
}


@dataclass(frozen=True)
class Job:
    split: Split
    labels: int
    draw: int
    mode: str
    minutes: float

    @property
    def side(self) -> str:
        return f"pick-{self.mode}"

    @property
    def name(self) -> str:
        return f"{self.split.task.name}-{self.labels}-{self.draw}-{self.mode}"


@dataclass(frozen=True)
class Bench:
    """Where picks run: `groups` are the cores of those that run at once."""

    data: Path
    work: Path
    minilm: Path | None  # of modes with a start
    store: ResultStore
    commit: str
    groups: Sequence[Sequence[int]]
    keeps_folders: bool
    program: Sequence[str] = (sys.executable, "-m", "etude")
    say: Callable[[str], None] = print
    at_once: int | None = None  # with those that other processes run; None: those of `groups`


def group_cores(parallel: int, cores: int, share: int = 1) -> list[list[int]]:
    """Cut the cores this process may use into groups: one for every `share` picks that run at once."""
    usable, count = sorted(os.sched_getaffinity(0)), -(-parallel // share)
    if count * cores > len(usable):
        shared = f" --share {share}" if share > 1 else ""
        sys.exit(
            f"--parallel {parallel} --cores {cores}{shared} need {count * cores} cores, and {len(usable)} are usable."
        )
    groups = [usable[number * cores : (number + 1) * cores] for number in range(count)]
    return [groups[number % count] for number in range(parallel)]


def run_jobs(bench: Bench, jobs: Sequence[Job], end: float | None) -> int:
    """Run jobs, as many at once as there are groups of cores; `end` is a time of the monotonic clock.

    Returns how many were not begun, because they would not have ended in time.
    """
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    unstarted: list[Job] = []
    errors: list[BaseException] = []
    lock, written = threading.Lock(), set()

    def prepare(split: Split) -> None:
        """Before the first pick of a task: the others go on meanwhile."""
        with lock:
            if split.task.name not in written:
                _write_shared(bench, split)
                written.add(split.task.name)

    def work(cores: Sequence[int]) -> None:
        try:
            while not errors and not waiting.empty():
                try:
                    job = waiting.get_nowait()
                except queue.Empty:
                    return
                if end is not None and time.monotonic() + 60 * (LATE * job.minutes + SCORING_MINUTES) > end:
                    unstarted.append(job)
                    continue
                prepare(job.split)
                result = run_job(bench, job, cores)
                bench.store.add(result)
                bench.say(_describe(result))
        except BaseException as error:  # of this script, not of a pick: the others end what they have begun
            errors.append(error)

    threads = [threading.Thread(target=work, args=(cores,)) for cores in bench.groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return len(unstarted)


def run_job(bench: Bench, job: Job, cores: Sequence[int]) -> Result:
    """Run one pick from an empty folder, and score its best model on the test."""
    task, mode = job.split.task, MODES[job.mode]
    folder, shared = bench.work / job.name, bench.work / task.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    labels = draw_labels(job.split, job.labels, job.draw)
    write_records(labels, folder / "labels.jsonl")
    write_text(job.split, labels, folder / "text.txt")
    command = [*bench.program, "pick", str(folder / "text.txt"), str(shared / "wiki.txt"), "--task", task.kind]
    command += ["--train", str(folder / "labels.jsonl"), "-o", str(folder / "out"), "--minutes", f"{job.minutes:g}"]
    for role, column in task.columns.items():
        command += ["-c", f"{role}={column}"]
    command += ["--start", str(bench.minilm)] if mode.has_start else []
    command += ["--device", mode.device] if mode.device else []
    score, error, seconds = None, None, 0.0
    start_time = time.monotonic()
    try:
        _run(command, cores, mode.device, folder / "pick.log", 60 * GIVE_UP * job.minutes)
        seconds = time.monotonic() - start_time
        answers = folder / "answers.jsonl"
        evaluate = [*bench.program, "evaluate", str(folder / "out" / "best"), str(shared / "test.jsonl")]
        _run([*evaluate, "--predictions", str(answers)], cores, mode.device, folder / "evaluate.log", 600)
        score = score_answers(task, job.split.test, read_answers(answers))
    except subprocess.SubprocessError as failure:
        seconds = seconds or time.monotonic() - start_time
        error = f"{type(failure).__name__}: {_last_lines(folder)}"
    details, winner = _read_outcome(folder / "out" / "results.json")
    sharing = sum(group == cores for group in bench.groups)
    hardware = describe_machine(len(cores), mode.device or "gpu") + f", {bench.at_once or len(bench.groups)} at once"
    hardware += f", {sharing} on the same cores" if sharing > 1 else ""
    if not bench.keeps_folders and error is None:
        shutil.rmtree(folder)
    return Result(
        task.name, job.labels, job.draw, job.side, score, round(seconds, 1), len(job.split.test), job.minutes, winner,
        error, details, **stamp(bench.commit, hardware),
    )  # fmt: skip


def read_answers(path: Path) -> list[Answer]:
    """The labels or tags that `etude evaluate --predictions` wrote."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    return [line["tags"] if "tags" in line else str(line["label"]) for line in lines]


def _run(command: Sequence[str], cores: Sequence[int], device: str | None, log: Path, seconds: float) -> None:
    """Run a process on these cores alone; CalledProcessError or TimeoutExpired where it fails."""
    environment = os.environ | {"OMP_NUM_THREADS": str(len(cores)), "PYTHONUNBUFFERED": "1"}
    if device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    with log.open("w", encoding="utf-8") as file:
        subprocess.run(
            [sys.executable, "-c", PIN, ",".join(map(str, cores)), *command], env=environment, stdout=file,
            stderr=subprocess.STDOUT, timeout=seconds, check=True,
        )  # fmt: skip


def _write_shared(bench: Bench, split: Split) -> None:
    """Write the test and the Wikipedia text of a task; once, for all its draws."""
    folder = bench.work / split.task.name
    folder.mkdir(parents=True, exist_ok=True)
    write_records(split.test, folder / "test.jsonl")
    copies = write_wiki(split, bench.data, folder / "wiki.txt")
    if copies:
        bench.say(f"{split.task.name}: {copies} documents of Wikipedia quote the test and are left out.")


def _read_outcome(path: Path) -> tuple[dict[str, object], str | None]:
    """What a pick says of itself: its winner, its table, the score it tells and the seconds it counted."""
    if not path.is_file():
        return {}, None
    results = json.loads(path.read_text(encoding="utf-8"))
    rows = [
        {"name": row["name"], "score": row["score"], "error": row["error"], "fit_seconds": row["fit_seconds"]}
        for row in results["rows"]
    ]
    return {"held_out": results["held_out"], "seconds": results["seconds"], "rows": rows}, results["winner"]


def _last_lines(folder: Path) -> str:
    logs = [path for name in ("evaluate.log", "pick.log") if (path := folder / name).is_file()]
    return logs[0].read_text(encoding="utf-8", errors="replace")[-1500:] if logs else ""


def _describe(result: Result) -> str:
    place = f"{result.task} {result.labels} draw {result.draw} {result.side}"
    if result.score is None or result.minutes is None:
        return f"{place}: failed after {result.seconds:.0f} s: {result.error}"
    share = result.seconds / (60 * result.minutes)
    return f"{place}: {100 * result.score:.1f} by {result.winner}, {result.seconds:.0f} s ({share:.0%})"

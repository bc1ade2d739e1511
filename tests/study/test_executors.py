"""Executors: whoever waits for a cell hears of it, whatever becomes of its process."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from etude.errors import UserError
from etude.study import executors
from etude.study.cells import Cell, CellStore
from etude.study.execute import CellResult
from etude.study.executors import ProcessExecutor, RayExecutor, SerialExecutor, Worker
from etude.study.queue import run_cells
from tests.study.forked_workers import ForkedWorker, share_a_gpu
from tests.study.test_queue import make_cell


def test_a_process_that_cannot_start_is_an_error_of_its_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: ProcessExecutor, number: int) -> Worker:
        raise OSError("Cannot allocate memory")

    monkeypatch.setattr(ProcessExecutor, "_start_worker", refuse)
    with ProcessExecutor(tmp_path, workers=1) as executor:
        for title in ("first", "second"):
            executor.submit(make_cell(title))
            result = executor.results.get(timeout=120)
            assert result.key == make_cell(title).key and "Cannot allocate memory" in str(result.error)


# a worker without torch: what a cell's arguments say becomes of it, and the id of the process as its message
OBEDIENT = """
import json, os, sys, time
for line in sys.stdin:
    cell = json.loads(line)
    time.sleep(cell["arguments"].get("seconds", 0))
    if cell["arguments"].get("dies"):
        os._exit(3)
    flags = {name: cell["arguments"].get(name, False) for name in ("lost", "retains_memory")}
    print(json.dumps({"key": cell["key"], "error": str(os.getpid()), **flags}), flush=True)
"""


@pytest.fixture
def obedient(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], ProcessExecutor]:
    """Executors of so many quick workers, on two GPUs in turn."""

    def start(self: ProcessExecutor, number: int) -> Worker:
        process = subprocess.Popen(
            [sys.executable, "-c", OBEDIENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return Worker(number, process, self._choose_gpu(number))

    monkeypatch.setattr(ProcessExecutor, "_start_worker", start)
    monkeypatch.setattr(executors, "_list_gpus", lambda: ["0", "1"])
    return lambda workers: ProcessExecutor(Path(), workers)


def order(title: str, **arguments: Any) -> Cell:
    return Cell(title, "majority", title, arguments, {})


def collect(executor: ProcessExecutor, *cells: Cell) -> dict[str, str]:
    """Submit cells, each before the next, and return the processes that ran them, by title."""
    for cell in cells:
        executor.submit(cell)
        time.sleep(0.1)  # for its thread to take it
    results = [executor.results.get(timeout=60) for _ in cells]
    return {result.key: str(result.error) for result in results}


def test_a_process_that_lost_its_gpu_is_replaced(obedient: Callable[[int], ProcessExecutor]) -> None:
    with obedient(1) as executor:
        first = collect(executor, order("a"), order("b", lost=True))
        assert first["a"] == first["b"]
        second = collect(executor, order("c"), order("d"))
        assert second["c"] == second["d"] != first["a"]


def test_a_process_that_cannot_give_its_memory_back_is_replaced(obedient: Callable[[int], ProcessExecutor]) -> None:
    with obedient(1) as executor:
        first = collect(executor, order("a"), order("b", retains_memory=True))
        assert first["a"] == first["b"] != collect(executor, order("c"))["c"]


def test_processes_that_wait_lose_the_same_gpu(obedient: Callable[[int], ProcessExecutor]) -> None:
    """Under MPS nobody gets the device back before all of them have ended; those of another GPU are not concerned."""
    with obedient(4) as executor:
        collect(executor, *(order(name, seconds=0.5) for name in "abcd"))
        before = {number: worker.process for number, worker in executor.workers.items()}
        lost = collect(executor, order("e", lost=True))["e"]
        loser = next(number for number, process in before.items() if str(process.pid) == lost)
        for number, process in before.items():
            is_alike = number % 2 == loser % 2
            assert (process.poll() is not None) == is_alike


def test_a_new_process_waits_for_those_that_may_have_lost_the_gpu(obedient: Callable[[int], ProcessExecutor]) -> None:
    with obedient(3) as executor:  # the first and the third share a GPU
        for number in range(3):
            executor.workers[number] = executor._start_worker(number)
        slow = executor.workers[0]
        slow.is_busy = True
        loser = executor.workers[2].process
        executor._put_back(2, CellResult("a", "its GPU failed", lost=True))
        assert slow.is_suspect and slow.process.poll() is None and loser.poll() is not None
        thread = threading.Thread(target=executor._take_worker, args=(2,), daemon=True)
        thread.start()
        thread.join(0.3)
        assert thread.is_alive(), "it waits"
        executor._put_back(0, CellResult("b"))
        thread.join(60)
        assert not thread.is_alive() and executor.workers[2].process.poll() is None
        assert not slow.is_suspect and slow.process.poll() is None, "its cell ended well: it has its GPU"
        slow.is_busy = True
        executor._put_back(2, CellResult("a", "its GPU failed", lost=True))
        executor.lost_at = time.monotonic() - executors.RECOVERY
        executor._take_worker(2)  # not for ever: a cell that goes on for so long has its GPU
        assert slow.is_suspect and executor.workers[2].process.poll() is None


def test_a_worker_that_dies_is_replaced(obedient: Callable[[int], ProcessExecutor]) -> None:
    with obedient(1) as executor:
        answers = collect(executor, order("a"), order("b", dies=True))
        assert "ended with code 3" in answers["b"]
        assert collect(executor, order("c"))["c"] != answers["a"]


def test_processes_share_memory_where_they_share_a_gpu(obedient: Callable[[int], ProcessExecutor]) -> None:
    assert [obedient(workers).shares_memory(order("a")) for workers in (1, 2, 3)] == [False, False, True]


def test_a_process_without_its_gpu_does_not_fail_cell_after_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here no other process can be had: the study stops, and the next call goes on."""
    monkeypatch.setattr(executors, "run_cell", lambda cell, *_: CellResult(cell.key, "its GPU failed.", lost=True))
    with SerialExecutor(tmp_path) as executor:
        executor.submit(make_cell("first"))
        with pytest.raises(UserError, match="first: its GPU failed"):
            executor.wait()


class ProcessEndError(Exception):
    """What stands for the end of a process of the cluster."""


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A cluster of one machine that runs each task when it is waited for."""
    module: Any = ModuleType("ray")
    module.options = []

    def make_remote(function: Callable[..., str]) -> Any:
        remote = SimpleNamespace(remote=lambda *arguments: (function, arguments))
        return SimpleNamespace(options=lambda **options: module.options.append(options) or remote)

    def get(task: tuple[Callable[..., str], tuple[Any, ...]]) -> str:
        function, arguments = task
        return function(*arguments)

    module.is_initialized, module.remote, module.get = lambda: True, make_remote, get
    module.wait = lambda tasks, num_returns: (tasks[:num_returns], tasks[num_returns:])
    module.nodes = lambda: [{"NodeID": "here", "Alive": True}]
    monkeypatch.setitem(sys.modules, "ray", module)
    monkeypatch.setattr(executors, "require", lambda *_: None)

    def end_process(code: int) -> None:
        raise ProcessEndError

    monkeypatch.setattr(executors.os, "_exit", end_process)
    return module


def test_a_process_of_a_cluster_that_lost_its_gpu_ends(
    ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray would give it the next cells, too. The cell is tried once more, and then reported."""
    tries: list[str] = []
    releases: list[bool] = []

    def run(cell: Cell, folder: Path) -> CellResult:
        tries.append(cell.key)
        is_lost = cell.title == "always" or (cell.title == "once" and tries.count(cell.key) == 1)
        return CellResult(cell.key, "its GPU failed." if is_lost else None, lost=is_lost)

    monkeypatch.setattr(executors, "run_cell", run)
    monkeypatch.setattr(executors, "release_memory", lambda: releases.append(True))
    executor = RayExecutor(tmp_path)
    for title, expected in (("never", None), ("once", None), ("always", "its GPU failed.")):
        tries.clear()
        executor.submit(cell := make_cell(title))
        assert executor.wait() == CellResult(cell.key, expected)
        assert len(tries) == (1 if title == "never" else 2)
    assert len(releases) == 5, "after each of them"


def test_a_cell_of_a_cluster_that_runs_out_gets_a_larger_part_of_a_gpu(
    ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole machines need not be emptied for it. On a GPU of its own it fails, and where none was asked for."""
    monkeypatch.setattr(executors, "run_cell", lambda cell, _: CellResult(cell.key, "no memory", out_of_memory=True))
    executor = RayExecutor(tmp_path)
    for asked, expected in ((0.3, [0.3, 0.6, 1.0]), (1.0, [1.0]), (0.0, [0.0])):
        cell = Cell(str(asked), "majority", "", {}, {}, needs={"gpus": asked})
        ray.options.clear()
        while True:
            executor.submit(cell)
            assert executor.wait().out_of_memory
            if not executor.shares_memory(cell):
                break
        assert [options["num_gpus"] for options in ray.options] == expected


def test_a_queue_over_processes_that_share_a_gpu_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CellStore(tmp_path / "cells")
    store.folder.mkdir()

    def start(self: ProcessExecutor, number: int) -> Worker:
        return Worker(number, cast(subprocess.Popen[str], ForkedWorker(share_a_gpu, self.folder)))

    monkeypatch.setattr(ProcessExecutor, "_start_worker", start)
    monkeypatch.setattr(executors, "RECOVERY", 1.0)
    cells = [make_cell("lost"), *(make_cell(f"cell {number}") for number in range(3))]
    messages: list[str] = []
    with ProcessExecutor(store.folder, workers=2) as executor:
        assert run_cells(store, cells, executor, messages.append) == {}
    assert {store.state(cell.key) for cell in cells} == {"done"}
    assert any("memory ran out beside 1 other cell;" in message for message in messages)
    assert "lost: its GPU failed; it is tried once more, in a new process" in messages
    assert messages[-1].startswith("[4/4]") and not list(store.folder.glob("*.failed"))

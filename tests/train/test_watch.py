"""A run of several processes ends soon, with one message, whatever happens to one of them; none hangs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from etude.train import checkpoint
from etude.train.watch import Beat, is_alive
from tests.train.forked_ranks import RankServer
from tests.train.test_sharding import write_recipe

STOPPED = 3


def run_with_fault(server: RankServer, folder: Path, corpus: Path, moment: str) -> tuple[list[int], str, float]:
    """Return exit codes, what was printed, and the seconds from a kill or a stop to the end, of a run of two ranks."""
    recipe = write_recipe(folder, "gpt2", parallel="fsdp", steps=3, micro_tokens=128, eval_every=0, save_every=1)
    (server.logs / "fault").unlink(missing_ok=True)
    codes = server.run(2, "start", recipe, corpus, folder / "run", moment)
    ended, fault = time.time(), server.logs / "fault"
    return codes, server.output(), ended - (fault.stat().st_mtime if fault.is_file() else ended)


def test_a_killed_rank_is_named_by_another(server: RankServer, tmp_path: Path, prepared) -> None:
    codes, output, seconds = run_with_fault(server, tmp_path, prepared("wordpiece:600"), "step:2@1")
    assert codes[1] == -9 and codes[0] == 2, output
    assert output.count("Rank 1 (process ") == 1 and "ended without a word" in output
    assert "--max-restarts" in output and 0 < seconds < 45
    # the parts of step 1 may still have been in the making: then there is no such checkpoint
    assert checkpoint.list_steps(tmp_path / "run" / "checkpoints") in ([], [1])


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_stopped_rank_is_named_and_nothing_hangs(server: RankServer, tmp_path: Path, prepared, rank: int) -> None:
    codes, output, seconds = run_with_fault(server, tmp_path, prepared("wordpiece:600"), f"stop:2@{rank}")
    assert codes[rank] == -9 and codes[1 - rank] == 1, output
    assert output.count("The run ends.") == 1 and 0 < seconds < 45
    expected = "Rank 1 (process " if rank else "has not answered for 2 s: rank 0"  # which keeps the store here
    assert expected in output


def test_a_failing_loader_is_told_by_its_rank_alone(server: RankServer, tmp_path: Path, prepared) -> None:
    codes, output, _ = run_with_fault(server, tmp_path, prepared("wordpiece:600"), "loader:2@1")
    assert codes == [1, 1], output
    assert output.count("OSError: the disk of this rank fails") == 1 and "This was rank 1" in output
    assert "Connection closed" not in output


def test_a_slow_loader_is_told_and_the_run_goes_on(server: RankServer, tmp_path: Path, prepared) -> None:
    codes, output, _ = run_with_fault(server, tmp_path, prepared("wordpiece:600"), "slow:2@1")
    assert codes == [0, 0], output
    assert output.count("loads step 2 for") == 1 and "Rank 1 (process " in output


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_sigterm_to_any_rank_saves_once(server: RankServer, tmp_path: Path, prepared, rank: int) -> None:
    codes, output, _ = run_with_fault(server, tmp_path, prepared("wordpiece:600"), f"term:2@{rank}")
    assert codes == [STOPPED, STOPPED], output
    assert checkpoint.list_steps(tmp_path / "run" / "checkpoints") == [1, 2]


def test_a_process_that_ended_is_not_alive(server: RankServer) -> None:
    assert is_alive(server.process.pid) and not is_alive(2**22 + 1)
    assert "Rank 3 (process 7 on host)" in Beat(1, "host", 7, "starts", 0.0).describe(3)

"""One process writes to a run, and shows where it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

import etude
from etude.errors import UserError
from etude.runs.run import Run
from etude.runs.training import LOCK, lock_run, train_loop
from etude.train.loop import Loop
from etude.train.metrics_log import MetricsLog
from etude.train.parallel import Ranks
from etude.train.progress import Progress
from etude.world import World

TINY = {"train.steps": 3, "model.layers": 1, "model.width": 16, "model.heads": 2, "train.batch_tokens": 256}
HOLD = "import fcntl,sys; f=open(sys.argv[1],'a'); fcntl.flock(f,fcntl.LOCK_EX); print('held',flush=True); input()"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("lock")
    (folder / "town.txt").write_text("\n\n".join(World().text(0.05)), encoding="utf-8")
    etude.prepare(str(folder / "town.txt"), out=folder / "corpus", tokenizer="wordpiece:300")
    run = etude.pretrain("bert-toy", folder / "corpus", out=folder / "run", settings=TINY, quiet=True)
    (run.folder / "model.safetensors").unlink()  # as if it had been killed before its end
    (run.folder / "checksums.json").unlink()
    return run


def test_the_line_begins_at_the_last_checkpoint(run: Run) -> None:
    """What is there to be read and built before a checkpoint is loaded takes minutes at size."""

    class Built(Exception):
        pass

    def build(progress: Progress) -> Loop:
        raise Built(progress.format_line())

    with pytest.raises(Built, match=r"^step 3/3 "):
        train_loop(run, build, run.recipe.train, torch.device("cpu"), Ranks(), quiet=True)


def test_the_log_is_closed_however_training_ends(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs: list[MetricsLog] = []

    def build(progress: Progress) -> Loop:
        model = run.recipe.build_model()
        objective = run.recipe.build_objective(model, run.tokenizer.special)
        rows = objective.rows(run.corpus(), 0)
        loop = Loop(tmp_path / str(len(logs)), model, objective, rows, run.recipe.train, total=3, progress=progress)
        assert loop.log is not None
        logs.append(loop.log)
        return loop

    def train() -> None:
        train_loop(run, build, run.recipe.train, torch.device("cpu"), Ranks(), quiet=True)

    train()
    for error in (UserError, KeyboardInterrupt):
        monkeypatch.setattr(Loop, "advance", Mock(side_effect=error))
        with pytest.raises(error):
            train()
    assert len(logs) == 3
    for log in logs:
        with pytest.raises(ValueError, match="closed file"):
            log.position()


def test_a_second_resume_is_refused_while_another_process_trains(run: Run) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run.folder / LOCK)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    before = {path.name for path in run.folder.iterdir()}
    with pytest.raises(UserError, match="being trained by another process"):
        etude.resume(run.folder, quiet=True)
    assert {path.name for path in run.folder.iterdir()} == before
    process.kill()  # a lock ends with its process, however that ends
    process.wait()
    assert etude.resume(run.folder, quiet=True).finished


def test_ranks_other_than_the_first_do_not_lock(run: Run) -> None:
    with lock_run(run, Ranks()), lock_run(run, Ranks(rank=1, size=2)):
        pass
    with lock_run(run, Ranks()), pytest.raises(UserError), lock_run(run, Ranks()):
        pass


def test_the_lock_lies_in_the_run(run: Run) -> None:
    assert Path(LOCK).name.startswith(".") and (run.folder / LOCK).is_file()

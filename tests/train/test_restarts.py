"""A run whose processes are killed again and again, and started again by torchrun's agent, ends with the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from etude.errors import UserError
from etude.pretraining.restart import is_own_run, is_restarted
from etude.runs.run import Run
from tests.train.forked_ranks import RankServer
from tests.train.test_sharding import write_recipe

HERE = Path(__file__).parent


def run_with_kills(folder: Path, corpus: Path, kills: int, steps: int) -> Path:
    """Train on four processes through so many kills, and return the run."""
    recipe = write_recipe(folder, "gpt2", parallel="fsdp", steps=steps, save_every=1, eval_every=0)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", "--monitor-interval",
        "0.05", "--max-restarts", str(kills + 2), "--redirects", "3", "--log-dir", str(folder / "logs"),
        str(HERE / "restarting.py"), str(recipe), str(corpus), str(folder / "run"), str(kills),
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0, result.stderr[-5000:]
    notes = [path.read_text(encoding="utf-8") for path in (folder / "logs").rglob("stdout.log")]
    assert sum("start " in note for note in notes) == kills
    return folder / "run"


@pytest.mark.slow
def test_forty_kills_end_with_the_same_bits(server: RankServer, tmp_path: Path, prepared) -> None:
    kills = int(os.environ.get("ETUDE_KILLS", "40"))
    steps = 5 * kills + 4
    corpus = prepared("wordpiece:600")
    run = run_with_kills(tmp_path, corpus, kills, steps)
    recipe = write_recipe(tmp_path, "gpt2", parallel="fsdp", steps=steps, save_every=1, eval_every=0)
    assert server.run(4, "start", recipe, corpus, tmp_path / "whole", "never") == [0] * 4, server.output()
    left, right = load_file(run / "model.safetensors"), load_file(tmp_path / "whole" / "model.safetensors")
    assert left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_only_its_own_run_is_gone_on_with(
    server: RankServer, tmp_path: Path, prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = prepared("wordpiece:600")
    recipe = write_recipe(tmp_path, "gpt2", steps=1, eval_every=0)
    assert server.run(1, "start", recipe, corpus, tmp_path / "run", "never") == [0], server.output()
    own = Run.open(tmp_path / "run").recipe
    assert not is_restarted() and not is_own_run(tmp_path / "run", own)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert is_restarted() and is_own_run(tmp_path / "run", own)
    assert is_own_run(tmp_path / "run", own.with_settings({"train.tokens": 10**6}))
    assert not is_own_run(tmp_path / "new", own)
    with pytest.raises(UserError, match="exists already"):
        is_own_run(tmp_path / "run", own.with_settings({"train.lr": 0.5}))

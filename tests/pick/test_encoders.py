"""Starts of a pick: what their earlier training cost is told where it is known."""

from __future__ import annotations

import json
from pathlib import Path

from etude.pick.encoders import open_start


def write_run(folder: Path) -> Path:
    folder.mkdir()
    (folder / "recipe.yaml").write_text("name: mine\n")
    (folder / "model.safetensors").write_bytes(b"weights")
    line = {"step": 5, "tokens": 50, "flops": 500, "seconds": 1.5, "split": "train", "loss": 2.0}
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    return folder


def test_the_cost_of_a_start_is_that_of_all_its_pretraining(tmp_path: Path) -> None:
    """That of a fine-tuned run was its fine-tuning, and that of one that went on its last part."""
    run = write_run(tmp_path / "run")
    assert open_start(run, "run").cost == {"flops": 500, "tokens": 50, "seconds": 1.5}
    continued = write_run(tmp_path / "continued")
    origin = {"corpus": "c", "fingerprint": "f", "start": {"folder": "run", "fingerprint": "f"}}
    (continued / "origin.json").write_text(json.dumps(origin))
    tuned = write_run(tmp_path / "tuned")
    (tuned / "task.yaml").write_text("kind: classify\n")
    unknown = {"flops": None, "tokens": None, "seconds": None}
    assert open_start(continued, "continued").cost == unknown and open_start(tuned, "tuned").cost == unknown

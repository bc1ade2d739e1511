"""Starts: contenders of a study that come with their weights, `contenders: {minilm: {run: runs/minilm}}`.

A run of ours or a folder of `transformers`. It spends nothing of the budget: what its earlier training cost is shown
where the run has a log of it, and as unknown where it was published. Its cell copies it into the store, under a key
that carries the fingerprint of its weights, and its transfers start from there like those of everybody else.
"""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from typing import Any

from etude.errors import UserError, quote_path
from etude.hub.importer import import_folder
from etude.pretraining.continued import StartWeights, holds_model, read_start
from etude.pretraining.first_weights import FirstWeights
from etude.runs.run import METRICS, RECIPE, Run
from etude.train.metrics_log import read_metrics


def open_start(folder: str | Path) -> StartWeights:
    """Read a start; raise UserError where the folder holds no model."""
    path = Path(folder)
    if not holds_model(path):
        raise UserError(f"{path} holds no model to start from: give a run, or a folder of transformers.")
    weights = path / "model.safetensors"
    return _read(path.resolve(), weights.stat().st_mtime_ns if weights.is_file() else 0)


@cache
def _read(folder: Path, modified: int) -> StartWeights:
    return read_start(folder)


@cache
def open_first(start: str | None, entities: str | None) -> FirstWeights | None:
    """Read the weights that a contender's pre-training begins with; None where it begins with new ones."""
    return None if start is None and entities is None else FirstWeights.read(start, entities)


def copy_start(folder: Path, out: Path) -> dict[str, Any]:
    """Write the start as the run of a cell; return its earlier cost, None where it is not known."""
    shutil.rmtree(out, ignore_errors=True)
    if (folder / RECIPE).is_file():
        shutil.copytree(folder, out, ignore=shutil.ignore_patterns("checkpoints", "tensorboard"))
        if not Run(out).finished:
            raise UserError(
                f"{folder} is not finished. 'etude pretrain --resume {quote_path(folder)}' trains it to its end."
            )
    else:
        import_folder(folder, out)
    lines = read_metrics(out / METRICS) if (out / METRICS).is_file() else []
    earlier = {name: lines[-1][name] for name in ("tokens", "flops", "seconds")} if lines else None
    return {"step": 0, "tokens": 0, "flops": 0, "seconds": 0.0, "valid": {}, "curve": [], "earlier": earlier}

"""A baseline as a folder that needs numpy alone: JSON, arrays, and a short script that predicts.

model.json       labels, features, vocabulary
weights.npz      arrays
predict.py       reads lines, writes answers; its functions can be imported
...              files that it uses, copied from this package, so that both give the same answers
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from etude.baselines.registry import load
from etude.runs.checksums import write_checksums
from etude.runs.staging import staged_folder
from etude.train import checkpoint


def export_baseline(folder: str | Path, out: str | Path) -> list[Path]:
    """Write the exported folder and return its files; UserError where it exists already."""
    baseline = load(folder)
    out = Path(out)
    content = {"name": baseline.name, "kind": baseline.task.kind, "facts": baseline.task.facts}
    content["model"] = baseline.describe()
    with staged_folder(out) as staging:
        checkpoint.write_text(staging / "model.json", json.dumps(content, ensure_ascii=False, allow_nan=False))
        np.savez_compressed(staging / "weights.npz", **baseline.arrays())  # type: ignore[arg-type]
        for name, source in baseline.standalone().items():
            checkpoint.write_text(staging / name, source)
        write_checksums(staging)
    return sorted(path for path in out.iterdir() if path.is_file())

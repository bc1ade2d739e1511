"""Sequences of a task that are longer than those of pre-training.

A learned position that pre-training never read is as it was drawn: BERT's first 900k steps, which its recipes are, read
128 of the 512. A fine-tuning puts such positions under its long texts and teaches them with what few it has.

A run that went on from other weights, or was fine-tuned before, may have learnt them there.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np

from etude.inference.opening import Pretrained
from etude.objectives.base import Rows
from etude.runs.run import TASK
from etude.runs.source import ORIGIN, read_origin

SAMPLE = 1000  # examples that are looked at, at most

log = logging.getLogger("etude")


def warn_untrained_positions(start: Pretrained, rows: Rows[Any], source: str) -> None:
    """Log how many examples reach beyond the sequences of pre-training."""
    length = getattr(start.recipe.objective, "length", None)
    if not start.model.has_learned_positions or length is None or length >= start.model.max_length:
        return
    if _has_earlier_weights(Path(start.folder)):
        return
    count = min(SAMPLE, len(rows))
    longer = sum(int(np.diff(rows[number].bounds).max()) > length for number in range(count))
    if longer:
        log.warning(
            "%s: %d of %s%d examples are longer than %d tokens, the sequences of pre-training: positions beyond have "
            "learnt nothing there. Set task.length=%d, or pre-train with objective.length=%d.",
            source, longer, "the first " if count < len(rows) else "", count, length, length, start.model.max_length,
        )  # fmt: skip


def _has_earlier_weights(folder: Path) -> bool:
    """Whether the weights of a run are not of its own pre-training alone."""
    if (folder / TASK).is_file() or not (folder / ORIGIN).is_file():
        return True
    origin = read_origin(folder)
    return origin.get("start") is not None or "imported" in origin

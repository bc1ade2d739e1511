"""What a task reads and pre-training never did: vectors that are as they were drawn.

Positions: BERT's first 900k steps, which its recipes are, read 128 of the 512. The second segment: a masked model that
read single texts has a vector for the second text of a pair, and it learnt nothing. A fine-tuning puts them under its
texts and teaches them with what few it has.

A run that went on from other weights, or was fine-tuned before, may have learnt them there.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from etude.inference.opening import Pretrained
from etude.objectives.base import Rows
from etude.runs.run import TASK
from etude.runs.source import ORIGIN, read_origin

SAMPLE = 1000  # examples that are looked at, at most

log = logging.getLogger("etude")


def warn_untrained_inputs(start: Pretrained, rows: Rows[Any], source: str) -> None:
    """Log what examples need and pre-training never read."""
    sample = [rows[number] for number in range(min(SAMPLE, len(rows)))]
    warnings = [_find_long_examples(start, sample, len(rows)), _find_pairs(start, sample)]
    if any(warnings) and not _has_earlier_weights(Path(start.folder)):
        for warning in filter(None, warnings):
            log.warning("%s: %s", source, warning)


def _find_long_examples(start: Pretrained, sample: Sequence[Any], count: int) -> str | None:
    """Examples that reach beyond the sequences of pre-training."""
    length = getattr(start.recipe.objective, "length", None)
    if not start.model.has_learned_positions or length is None or length >= start.model.max_length:
        return None
    longer = sum(int(np.diff(row.bounds).max()) > length for row in sample)
    first = "the first " if len(sample) < count else ""
    if not longer:
        return None
    return (
        f"{longer} of {first}{len(sample)} examples are longer than {length} tokens, the sequences of pre-training: "
        f"positions beyond have learnt nothing there. Set task.length={length}, or pre-train with "
        f"objective.length={start.model.max_length}."
    )


def _find_pairs(start: Pretrained, sample: Sequence[Any]) -> str | None:
    """Pairs, where pre-training read single texts."""
    objective = start.recipe.objective
    if getattr(objective, "pair_rate", 1.0) or getattr(objective, "sentence", "none") != "none":
        return None
    if not any(row.segments is not None and row.segments.any() for row in sample):
        return None
    return (
        "the examples are pairs, and pre-training read single texts (objective.sentence=none, objective.pair_rate=0): "
        "what marks the second text has learnt nothing there. Pre-train with objective.pair_rate=0.9, or without "
        "segments (model.segments=0)."
    )


def _has_earlier_weights(folder: Path) -> bool:
    """Whether the weights of a run are not of its own pre-training alone."""
    if (folder / TASK).is_file() or not (folder / ORIGIN).is_file():
        return True
    origin = read_origin(folder)
    return origin.get("start") is not None or "imported" in origin

"""Resamples of examples for a bootstrap (Efron 1979), in parts that fit into memory however many examples there are."""

from __future__ import annotations

import numpy as np

from etude.tasks.outcomes import Outcome

PART = 2**22  # weights that are held at once: 32 MB
DRAWN_AT_ONCE = 2**16  # numbers of examples: one resample at a time took longest in a pick of a few hundred labels


def draw_resamples(rng: np.random.Generator, count: int, draws: int) -> np.ndarray:
    """(draws, count) uint16: how often each resample holds each example."""
    resamples = np.empty((draws, count), np.uint16)
    step = max(1, DRAWN_AT_ONCE // count)
    for start in range(0, draws, step):
        part = resamples[start : start + step]
        cells = rng.integers(count, size=part.shape) + count * np.arange(len(part))[:, None]  # one bin an example
        part[:] = np.bincount(cells.ravel(), minlength=part.size).reshape(part.shape)
    return resamples


def score_resamples(outcome: Outcome, resamples: np.ndarray, members: np.ndarray | None = None) -> np.ndarray:
    """(draws,) scores; `members` are the examples of the answers where one example may have several."""
    step = count_at_once(len(outcome.parts))
    scores = []
    for start in range(0, len(resamples), step):
        part = resamples[start : start + step]
        scores.append(outcome.score((part if members is None else part[:, members]).astype(np.float64)))
    return np.concatenate(scores)


def draw_scores(outcome: Outcome, rng: np.random.Generator, draws: int) -> np.ndarray:
    """(draws,) scores of new resamples, none of which are kept."""
    count = len(outcome.parts)
    step = count_at_once(count)
    return np.concatenate([
        score_resamples(outcome, draw_resamples(rng, count, min(step, draws - start)))
        for start in range(0, draws, step)
    ])  # fmt: skip


def count_at_once(answers: int) -> int:
    """How many resamples of so many answers are weighed at once."""
    return max(1, PART // max(1, answers))

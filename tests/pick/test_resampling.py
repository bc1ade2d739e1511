"""Resamples are drawn and scored in parts, with the scores of all at once."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from etude.pick import resampling
from etude.pick.final import bound_score
from etude.pick.resampling import draw_resamples, draw_scores, score_resamples
from etude.tasks.outcomes import Outcome


def make_outcome(examples: int) -> Outcome:
    rng = np.random.default_rng(0)
    return Outcome("macro", rng.integers(2, size=(examples, 6)).astype(np.float64))


def test_parts_give_the_scores_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = make_outcome(40)
    whole = draw_scores(outcome, np.random.default_rng(1), 50)
    resamples = draw_resamples(np.random.default_rng(1), 40, 50)
    assert (resamples.sum(1) == 40).all(), "as many examples as there are, some of them twice"
    np.testing.assert_allclose(outcome.score(resamples.astype(np.float64)), whole)
    monkeypatch.setattr(resampling, "PART", 100)
    np.testing.assert_allclose(draw_scores(outcome, np.random.default_rng(1), 50), whole)


@pytest.mark.parametrize("count", [1, 7, 40])
def test_draws_are_those_of_one_resample_after_the_other(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a pick of the same seed stays the same however many are drawn at once."""
    monkeypatch.setattr(resampling, "DRAWN_AT_ONCE", 100)  # of 40 examples two at once, and one at the end
    drawn, alone = draw_resamples(np.random.default_rng(1), count, 51), np.random.default_rng(1)
    for resample in drawn:
        np.testing.assert_array_equal(resample, np.bincount(alone.integers(count, size=count), minlength=count))


def test_answers_to_one_example_go_together() -> None:
    outcome, members = make_outcome(6), np.array([0, 1, 2, 0, 1, 2])
    resamples = draw_resamples(np.random.default_rng(1), 3, 20)
    weights = np.concatenate([resamples, resamples], axis=1).astype(np.float64)
    np.testing.assert_allclose(score_resamples(outcome, resamples, members), outcome.score(weights))


def test_a_large_test_file_needs_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """All resamples at once of 100,000 examples were 8 GB."""
    monkeypatch.setattr("etude.pick.final.DRAWS", 1_000)
    outcome = make_outcome(20_000)
    tracemalloc.start()
    low, high = bound_score(outcome, seed=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert low < outcome.score() < high
    assert peak < 100e6, f"{peak / 1e6:.0f} MB for 1000 resamples of 20,000 examples"

"""Holm's correction, effect sizes, and when a claim holds."""

from __future__ import annotations

import numpy as np
import pytest

from etude.study.sections import Rule
from etude.study.statistics import Difference, compare, decide_verdict, hedges_g, holm_adjust, summarize
from etude.study.uncertainty import Estimate, estimate_mean


def test_a_difference_is_one_of_pairs() -> None:
    """Seeds that move both contenders alike, and examples that are hard for both, do not blur a difference."""
    rng = np.random.default_rng(0)
    right = rng.random(400) < np.array([[0.4], [0.5], [0.6]])  # the second seed is better, the third better still
    left = right | (np.arange(400) % 20 == 0)
    scores = [values.mean(1) for values in (left, right)]
    paired = estimate_mean(scores[0] - scores[1], [(1.0, left.astype(float) - right)])
    alone = estimate_mean(scores[0], [(1.0, left.astype(float))])
    assert paired.error < alone.error / 2
    difference = compare(list(scores[0]), list(scores[1]), paired, 0.95)
    assert difference.low < difference.mean < difference.high and difference.pretrainings == 3
    assert summarize([0.99, 0.98], Estimate(0.985, 1e-4, 1e-4, 2), 0.95).high == 1.0
    near_zero = Estimate(0.015, 1e-4, 1e-4, 2)
    assert summarize([0.01, 0.02], near_zero, 0.95).low == 0.0
    assert -1.0 < summarize([0.01, 0.02], near_zero, 0.95, -1.0).low < 0.0, "of a correlation"


def test_holm() -> None:
    assert holm_adjust([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm_adjust([0.9, 0.8]) == [1.0, 1.0] and holm_adjust([]) == []


def test_effect_size() -> None:
    one, other = [1.0, 2.0, 3.0], [3.0, 4.0, 5.0]
    assert hedges_g(one, other) == pytest.approx(-2.0 * (1 - 3 / 15))
    assert hedges_g([1.0], [2.0]) is None and hedges_g([1.0, 1.0], [2.0, 2.0]) is None


def difference(seeds: list[float], pretrainings: int = 3) -> Difference:
    mean = float(np.mean(seeds))
    return Difference(mean, mean - 0.01, mean + 0.01, 0.001, None, seeds, 0.005, 0.5, pretrainings)


def test_a_claim_holds_fails_or_is_not_settled() -> None:
    rule, unanimous = Rule(), Rule(seeds="all")
    above, below, mixed = [0.02, 0.03, 0.04], [-0.02, -0.03, -0.04], [0.06, 0.06, -0.01]
    assert decide_verdict(difference(above), 0.001, rule) == "holds"
    assert decide_verdict(difference(below), 0.001, rule) == "fails"
    assert decide_verdict(difference(above), 0.08, rule) == "not settled", "not after the correction"
    assert decide_verdict(difference(mixed), 0.001, rule) == "holds", "the spread of seeds is in p already"
    assert decide_verdict(difference(mixed), 0.001, unanimous) == "not settled", "a seed disagrees"
    assert decide_verdict(difference([0.01, 0.0, -0.01]), 0.001, rule, margin=-0.02) == "holds", "not worse by 2 points"
    assert decide_verdict(difference(above), 0.001, rule, margin=0.05) == "fails", "better, but not by 5 points"


def test_a_single_seed_settles_nothing_about_methods() -> None:
    single = difference([0.2], pretrainings=1)
    assert decide_verdict(single, 1e-9, Rule()) == "not settled"
    assert decide_verdict(single, 1e-9, Rule(over="examples")) == "holds", "said to be about these runs alone"

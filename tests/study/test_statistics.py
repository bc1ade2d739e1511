"""Intervals that know of seeds and examples, Holm's correction, and when a claim holds."""

from __future__ import annotations

import numpy as np
import pytest

from etude.study.settings import Rule
from etude.study.statistics import (
    Bootstrap,
    Difference,
    compare,
    decide_verdict,
    hedges_g,
    holm_adjust,
    percentile_interval,
)
from etude.tasks.outcomes import Outcome

UNITS = [(first, second) for first in range(3) for second in range(2)]


def means(values: np.ndarray) -> Outcome:
    return Outcome("mean", np.stack([values.astype(float), np.ones(len(values))], axis=1))


def test_examples_alone_give_the_textbook_interval() -> None:
    """With seeds that agree in everything, what is left is the error of a mean over examples."""
    values = np.arange(400) % 4 == 0  # 25 %
    draws = Bootstrap(UNITS, 4000).resample("test", {unit: means(values) for unit in UNITS})
    expected = np.sqrt(0.25 * 0.75 / 400)
    assert draws.mean() == pytest.approx(0.25, abs=0.002)
    assert draws.std() == pytest.approx(expected, rel=0.05)


def test_seeds_that_differ_widen_it() -> None:
    chance = np.random.default_rng(0)
    shared = chance.random(400)
    by_seed = {unit: means(shared < 0.5 + 0.1 * (unit[0] - 1)) for unit in UNITS}  # 40, 50 and 60 %
    draws = Bootstrap(UNITS, 4000).resample("test", by_seed)
    alone = np.sqrt(0.25 / 400)
    spread = 0.0816 / np.sqrt(3)  # of a mean over three draws of .4, .5, .6
    assert draws.std() == pytest.approx(np.hypot(alone, spread), rel=0.08)
    only_transfer = {unit: means(shared < 0.5 + 0.1 * (unit[1] - 0.5)) for unit in UNITS}
    assert Bootstrap(UNITS, 4000).resample("test", only_transfer).std() < draws.std(), (
        "inner seeds average within outer ones"
    )


def test_everybody_meets_the_same_draws() -> None:
    values = np.random.default_rng(1).random(200) < 0.6
    draws = Bootstrap(UNITS, 1000)
    one = draws.resample("test", {unit: means(values) for unit in UNITS})
    other = draws.resample("test", {unit: means(np.concatenate([values[:-4], [0, 0, 0, 0]])) for unit in UNITS})
    paired = compare([0.6] * 6, [0.59] * 6, one - other, 0.95)
    assert paired.high - paired.low < 0.05, "a pair differs in four examples: the interval of the difference is narrow"
    low, high = percentile_interval(one, 0.95)
    assert high - low > 0.1, "the score itself is not known that well"
    assert (Bootstrap(UNITS, 1000).resample("test", {unit: means(values) for unit in UNITS}) == one).all(), "a function"
    assert (Bootstrap(UNITS, 1000).resample("else", {unit: means(values) for unit in UNITS}) != one).any()


def test_holm() -> None:
    assert holm_adjust([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm_adjust([0.9, 0.8]) == [1.0, 1.0] and holm_adjust([]) == []


def test_effect_size() -> None:
    one, other = [1.0, 2.0, 3.0], [3.0, 4.0, 5.0]
    assert hedges_g(one, other) == pytest.approx(-2.0 * (1 - 3 / 15))
    assert hedges_g([1.0], [2.0]) is None and hedges_g([1.0, 1.0], [2.0, 2.0]) is None


def found(low: float, high: float, seeds: list[float]) -> Difference:
    return Difference(float(np.mean(seeds)), low, high, 0.001, None, seeds)


def test_a_claim_holds_fails_or_is_not_settled() -> None:
    rule = Rule()
    assert decide_verdict(found(0.01, 0.05, [0.02, 0.03, 0.04]), 0.001, rule) == "holds"
    assert decide_verdict(found(0.01, 0.05, [0.06, 0.06, -0.01]), 0.001, rule) == "not settled", "a seed disagrees"
    assert decide_verdict(found(0.01, 0.05, [0.06, 0.06, -0.01]), 0.001, Rule(seeds="ignored")) == "holds"
    assert decide_verdict(found(-0.01, 0.05, [0.02, 0.03, 0.04]), 0.2, rule) == "not settled"
    assert decide_verdict(found(-0.05, -0.01, [-0.02, -0.03, -0.04]), 0.001, rule) == "fails"
    assert decide_verdict(found(0.01, 0.05, [0.02, 0.03, 0.04]), 0.08, rule) == "not settled", (
        "not after the correction"
    )
    assert decide_verdict(found(-0.01, 0.02, [0.01, 0.0, 0.0]), 0.001, rule, margin=-0.02) == "holds", (
        "not worse by 2 points"
    )
    assert decide_verdict(found(0.01, 0.05, [0.02, 0.03, 0.04]), 0.001, rule, margin=0.03) == "not settled"

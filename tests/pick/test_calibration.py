"""Temperature, calibration error and threshold, each against a search over everything."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from etude.pick.calibration import (
    COVERAGES,
    MAX_TEMPERATURE,
    MIN_LOG_PROB,
    MIN_TEMPERATURE,
    choose_threshold,
    clopper_pearson_bound,
    expected_calibration_error,
    fit_temperature,
    negative_log_likelihood,
)


def draw_answers(count: int, classes: int, sharpness: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits whose softmax at temperature `sharpness` is the distribution that the labels are drawn from."""
    draw = np.random.default_rng(seed)
    logits = draw.normal(0, 2, (count, classes))
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = np.array([draw.choice(classes, p=row) for row in probs])
    return logits * sharpness, labels


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_the_temperature_of_drawn_answers_is_recovered(temperature: float) -> None:
    logits, labels = draw_answers(4000, 5, temperature, 0)
    assert fit_temperature(logits, labels) == pytest.approx(temperature, rel=0.08)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 40), classes=st.integers(2, 5), sharp=st.floats(0.1, 9))
def test_no_temperature_has_a_smaller_loss(seed: int, count: int, classes: int, sharp: float) -> None:
    logits, labels = draw_answers(count, classes, sharp, seed)
    logits = np.maximum(logits - logits.max(1, keepdims=True), MIN_LOG_PROB)
    temperature = fit_temperature(logits, labels)
    assert MIN_TEMPERATURE <= temperature <= MAX_TEMPERATURE + 1e-9
    assert negative_log_likelihood(logits, labels, temperature) <= negative_log_likelihood(logits, labels) + 1e-12
    if temperature == 1.0:
        return
    smoothing = 1 / (count + 2)  # of the targets: 1 - smoothing for the gold class

    def loss(value: float) -> float:
        scores = logits / value
        log_probs = scores - np.log(np.exp(scores - scores.max(1, keepdims=True)).sum(1, keepdims=True))
        log_probs -= scores.max(1, keepdims=True)
        targets = np.full(logits.shape, smoothing / (classes - 1))
        targets[np.arange(count), labels] = 1 - smoothing
        return float(-(targets * log_probs).sum(1).mean())

    grid = np.exp(np.linspace(np.log(MIN_TEMPERATURE), np.log(MAX_TEMPERATURE), 400))
    assert loss(temperature) <= min(map(loss, grid)) + 1e-7


def test_probabilities_of_zero_and_right_answers_only() -> None:
    with np.errstate(divide="ignore"):
        log_probs = np.log(np.array([[1.0, 0.0], [0.9, 0.1], [0.2, 0.8], [0.0, 1.0]]))
    assert np.isfinite(fit_temperature(log_probs, np.array([1, 0, 1, 1])))
    sure = np.log(np.array([[0.6, 0.4], [0.4, 0.6]] * 50))
    labels = np.array([0, 1] * 50)
    temperature = fit_temperature(sure, labels)
    confidence = 1 / (1 + (0.4 / 0.6) ** (1 / temperature))
    assert 0.95 < confidence < 0.995, "a hundred right answers are no proof that all will be"
    assert fit_temperature(np.zeros((4, 3)), np.array([0, 1, 2, 0])) > 0
    assert fit_temperature(np.zeros((0, 3)), np.zeros(0)) == 1.0
    assert fit_temperature(np.zeros((3, 1)), np.zeros(3)) == 1.0


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="expected"):
        fit_temperature(np.zeros((3, 2)), np.zeros(2))
    with pytest.raises(ValueError, match="NaN"):
        fit_temperature(np.full((3, 2), np.nan), np.zeros(3))
    with pytest.raises(ValueError, match="both"):
        choose_threshold(np.zeros(3), np.zeros(2), 0.9)
    with pytest.raises(ValueError, match="probability"):
        expected_calibration_error(np.array([2.0]), np.array([1]))


@settings(max_examples=50, deadline=None)
@given(
    answers=st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60),
    bins=st.sampled_from([1, 5, 15]),
)
def test_calibration_error_by_its_definition(answers: list[tuple[float, bool]], bins: int) -> None:
    confidence, correct = (np.array(values, float) for values in zip(*answers, strict=True))
    total = 0.0
    for number in range(bins):
        low, high = number / bins, (number + 1) / bins
        inside = (np.ceil(confidence * bins) == number + 1) | ((number == 0) & (confidence == 0))
        if inside.any():
            assert ((confidence[inside] > low - 1e-9) & (confidence[inside] <= high + 1e-9)).all()
            total += abs(correct[inside].mean() - confidence[inside].mean()) * inside.sum()
    assert expected_calibration_error(confidence, correct, bins) == pytest.approx(total / len(answers), abs=1e-9)


def test_calibration_error_of_known_cases() -> None:
    assert expected_calibration_error(np.array([1.0, 1.0]), np.array([1, 0])) == pytest.approx(0.5)
    assert expected_calibration_error(np.full(10, 0.8), np.array([1] * 8 + [0] * 2)) == pytest.approx(0)
    assert expected_calibration_error(np.zeros(0), np.zeros(0)) == 0


@pytest.mark.parametrize(("hits", "count"), [(1, 1), (5, 9), (58, 60), (60, 60), (0, 5)])
def test_the_bound_is_where_the_binomial_tail_is_the_error(hits: int, count: int) -> None:
    bound = clopper_pearson_bound(hits, count, 0.05)
    if hits:
        assert binom.sf(hits - 1, count, bound) == pytest.approx(0.05, abs=1e-9)
    else:
        assert bound == 0


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(1, 200),
    accuracy=st.sampled_from([0.5, 0.8, 0.9]),
    ties=st.booleans(),
)
def test_the_threshold_is_the_smallest_of_all_that_pass(seed: int, count: int, accuracy: float, ties: bool) -> None:
    draw = np.random.default_rng(seed)
    confidence = draw.beta(4, 1, count)
    if ties:
        confidence = confidence.round(1)
    correct = draw.random(count) < confidence
    passing = []
    for tenth in range(1, COVERAGES + 1):
        value = np.sort(confidence)[::-1][-(-count * tenth // COVERAGES) - 1]
        answered = confidence >= value
        if clopper_pearson_bound(int(correct[answered].sum()), int(answered.sum()), 0.05) >= accuracy:
            passing.append(float(value))
    assert choose_threshold(confidence, correct, accuracy) == (min(passing) if passing else None)


def test_no_threshold_where_the_accuracy_is_out_of_reach() -> None:
    assert choose_threshold(np.full(20, 0.9), np.ones(20), 0.9) is None, "twenty right answers are too few for 90 %"
    assert choose_threshold(np.full(60, 0.9), np.ones(60), 0.95) == 0.9
    assert choose_threshold(np.full(60, 0.9), np.ones(60), 1.0) is None
    assert choose_threshold(np.zeros(0), np.zeros(0), 0.9) is None
    with pytest.raises(ValueError, match="accuracy"):
        choose_threshold(np.full(3, 0.9), np.ones(3), 1.5)


def test_a_threshold_is_seldom_luck() -> None:
    """Where confidence says nothing and 89 % are right, 90 % must not be promised often."""
    draw = np.random.default_rng(0)
    promised = sum(choose_threshold(draw.random(300), draw.random(300) < 0.89, 0.9) is not None for _ in range(200))
    assert promised <= 20

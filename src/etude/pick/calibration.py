"""Probabilities that mean what they say: a temperature, the calibration error, a threshold for "don't know".

All three are computed from out-of-fold answers, which no model gave on its own training examples: on those every model
is sure of itself.
"""

from __future__ import annotations

import numpy as np

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.05, 20.0
MIN_LOG_PROB = -50.0  # a probability of 0 is taken for this: one such answer must not decide the temperature
BINS = 15  # of the calibration error, as in Guo et al. 2017
CONFIDENCE_LEVEL = 0.95  # of the bound that a threshold must reach
COVERAGES = 10  # thresholds that are tried, from all answers down to a tenth of them


def fit_temperature(log_probs: np.ndarray, labels: np.ndarray) -> float:
    """Return the temperature T whose softmax(log_probs / T) has the smallest NLL (Guo et al. 2017, section 4.2).

    log_probs: (S, C) of out-of-fold answers; logits do as well. labels: (S,) numbers of the gold classes.

    The NLL is convex in 1/T, so its one minimum is found by bisection of the slope, within bounds. As in Platt (1999)
    the gold class has a target a little below 1: where every answer is right the NLL alone would ask for T = 0. The NLL
    of the answers never becomes larger than without a temperature: then 1 is returned.
    """
    scores, labels = _check_scores(log_probs, labels)
    sequences, classes = scores.shape
    if classes < 2 or not sequences:
        return 1.0
    smoothing = 1 / (sequences + 2)
    gold = scores[np.arange(sequences), labels]
    others = (scores.sum(1) - gold) / (classes - 1)
    target = float(((1 - smoothing) * gold + smoothing * others).mean())

    def slope(inverse: float) -> float:
        """The derivative of the smoothed NLL by 1/T: the mean score under the model, less that of the targets."""
        probs = np.exp(_log_softmax(scores * inverse))
        return float((probs * scores).sum(1).mean()) - target

    low, high = 1 / MAX_TEMPERATURE, 1 / MIN_TEMPERATURE
    if slope(low) >= 0:
        inverse = low
    elif slope(high) <= 0:
        inverse = high
    else:
        while high - low > 1e-9 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if slope(middle) < 0 else (low, middle)
        inverse = (low + high) / 2
    temperature = 1 / inverse
    if negative_log_likelihood(scores, labels, temperature) > negative_log_likelihood(scores, labels):
        return 1.0
    return float(temperature)


def negative_log_likelihood(log_probs: np.ndarray, labels: np.ndarray, temperature: float = 1.0) -> float:
    """Return the mean NLL of softmax(log_probs / temperature)."""
    scores, labels = _check_scores(log_probs, labels)
    return float(-_log_softmax(scores / temperature)[np.arange(len(labels)), labels].mean())


def expected_calibration_error(confidence: np.ndarray, correct: np.ndarray, bins: int = BINS) -> float:
    """Return the mean gap of confidence and accuracy over bins of equal width, weighted by their answers (ECE)."""
    confidence, correct = _check_answers(confidence, correct)
    if not len(confidence):
        return 0.0
    numbers = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)  # bins are open on the left
    gaps = np.abs(np.bincount(numbers, correct - confidence, bins))
    return float(gaps.sum() / len(confidence))


def choose_threshold(confidence: np.ndarray, correct: np.ndarray, accuracy: float) -> float | None:
    """Return the smallest confidence from which on answers reach the asked accuracy; None where none does.

    Not the observed accuracy must reach it but its lower Clopper-Pearson bound: one-sided, 95 %, exact for any number
    of answers. Ten thresholds are tried, that answer all examples, nine tenths ... one tenth of them, since the best of
    hundreds would be luck: with every example as a threshold, answers of 89 % accuracy and confidences that mean
    nothing were taken for 90 % in 9 to 13 of 100 draws; with ten it was 3 to 6.
    """
    confidence, correct = _check_answers(confidence, correct)
    if not 0 < accuracy <= 1:
        raise ValueError(f"an accuracy lies above 0 and up to 1, not {accuracy:g}")
    order = np.argsort(-confidence, kind="stable")
    ranked, right = confidence[order], np.cumsum(correct[order])
    for count in count_answers(ranked):
        hits = int(right[count - 1])
        if clopper_pearson_bound(hits, count, 1 - CONFIDENCE_LEVEL) >= accuracy:
            return float(ranked[count - 1])
    return None


def count_answers(ranked: np.ndarray) -> list[int]:
    """Numbers of answers of the thresholds that are tried, most first; equal confidences are answered together."""
    counts = []
    for tenth in range(COVERAGES, 0, -1):
        count = -(-len(ranked) * tenth // COVERAGES)
        if count:
            counts.append(int(np.searchsorted(-ranked, -ranked[count - 1], side="right")))
    return sorted(set(counts), reverse=True)


def clopper_pearson_bound(hits: int, count: int, error: float) -> float:
    """Return the lower bound of a share, exceeded by the true one with a chance of at least 1 - error."""
    from scipy.stats import beta  # takes longer to import than torch

    return float(beta.ppf(error, hits, count - hits + 1)) if hits else 0.0


def _log_softmax(scores: np.ndarray) -> np.ndarray:
    """Of rows of finite scores; scipy's takes several times as long for the few hundred of a pick."""
    shifted: np.ndarray = scores - scores.max(1, keepdims=True)
    normalised: np.ndarray = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return normalised


def _check_scores(log_probs: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Float scores with their largest at 0 in each row, so that a clip touches what is next to impossible only."""
    scores, numbers = np.asarray(log_probs, np.float64), np.asarray(labels, np.int64)
    if scores.ndim != 2 or numbers.shape != scores.shape[:1]:
        raise ValueError(f"log_probs (S, C) and labels (S,) are expected, not {scores.shape} and {numbers.shape}")
    if np.isnan(scores).any():
        raise ValueError("log_probs hold NaN")
    if scores.size:
        scores = np.maximum(scores - scores.max(1, keepdims=True), MIN_LOG_PROB)
    return scores, numbers


def _check_answers(confidence: np.ndarray, correct: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    values, hits = np.asarray(confidence, np.float64), np.asarray(correct, np.float64)
    if values.ndim != 1 or values.shape != hits.shape:
        raise ValueError(f"confidence and correct are (S,) both, not {values.shape} and {hits.shape}")
    if len(values) and not (np.isfinite(values).all() and values.min() >= 0 and values.max() <= 1 + 1e-6):
        raise ValueError("a confidence is a probability, from 0 to 1")
    return values, hits

"""BLEU and chrF from the sums of their counts, for many resamples at once.

The counts are sacrebleu's, sentence by sentence, and so are the formulas (BLEU with its `exp` smoothing, chrF over
characters); here they work on arrays. A mean of sentence scores would be something else: the score of a corpus is that
of the sums, which is what a bootstrap and a jackknife of sentences ask for. Scores are from 0 to 1.
"""

from __future__ import annotations

import numpy as np

ORDERS = 4  # of BLEU: words in a row
BETA = 2.0  # of chrF: recall counts so many times as much


def bleu(sums: np.ndarray) -> np.ndarray:
    """(..., 10): length, length of the reference, correct n-grams, all n-grams -> (...)."""
    length, reference = sums[..., 0], sums[..., 1]
    correct, total = sums[..., 2 : 2 + ORDERS], sums[..., 2 + ORDERS :]
    # an order without a match counts a half, then a quarter, ... of one match
    halvings = np.cumsum((correct == 0) & (total > 0), axis=-1)
    matched = np.where(correct == 0, 0.5**halvings, correct)
    # a translation that is too short for an order has no score; orders behind it are too long as well
    is_scored = np.asarray((total > 0).all(-1) & (correct > 0).any(-1))
    precisions = matched / np.maximum(total, 1e-300)
    mean = np.log(np.where(is_scored[..., None], precisions, 1.0)).mean(-1)
    short = np.minimum(0.0, 1 - reference / np.maximum(length, 1e-300))
    return np.where(is_scored & (length > 0), np.exp(mean + short), 0.0)


def chrf(sums: np.ndarray) -> np.ndarray:
    """(..., 18): n-grams of the translation, of the reference, and of both, for each order -> (...)."""
    counts = sums.reshape(*sums.shape[:-1], -1, 3)
    written, reference, matched = np.moveaxis(counts, -1, 0)
    is_there = (written > 0) & (reference > 0)
    orders = np.maximum(is_there.sum(-1), 1)
    precision, recall = (
        (np.where(is_there, matched / np.maximum(side, 1e-300), 0.0)).sum(-1) / orders for side in (written, reference)
    )
    weighted = BETA**2 * precision + recall
    return np.where(weighted > 0, (1 + BETA**2) * precision * recall / np.maximum(weighted, 1e-300), 0.0)

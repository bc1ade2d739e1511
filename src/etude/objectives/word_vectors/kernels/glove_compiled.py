"""GloVe's loop, compiled by numba: one entry after another, AdaGrad on all parameters (Pennington et al. 2014) [code].

    e = w_i . w~_j + b_i + b~_j - log x,    J = sum of f(x) e^2

The factor 2 of the gradient is left out, as in the released program. There (`scaled`) the step eta * g is what is
squared into the accumulators of the vectors, and biases take no eta at all; in the paper's AdaGrad g is squared, and
eta is in front of every step. A component of f(x) e w is cut at +-`clip`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

PARALLEL = True
ROUGHLY = {"reassoc", "contract", "nsz", "arcp"}  # see windows_compiled.py


def glove(
    rows: np.ndarray, columns: np.ndarray, logs: np.ndarray, weights: np.ndarray, start: int, stop: int,
    vectors: tuple[np.ndarray, np.ndarray], biases: tuple[np.ndarray, np.ndarray],
    vector_squares: tuple[np.ndarray, np.ndarray], bias_squares: tuple[np.ndarray, np.ndarray], symmetric: bool,
    rate: float, clip: float, scaled: bool,
) -> float:  # fmt: skip
    """Learns the entries start..stop, a symmetric one of two words both ways; returns the sum of f(x) e^2.

    rows, columns (E,) int64; logs, weights (E,) float32, log x and f(x); vectors (V, D) and biases (V,) of words and
    of contexts, and the sums of squares of each, all float32 and changed.
    """
    return _glove(
        rows, columns, logs, weights, start, stop, *vectors, *biases, *vector_squares, *bias_squares, symmetric,
        np.float32(rate), np.float32(clip), scaled,
    )  # fmt: skip


@njit(fastmath=ROUGHLY, error_model="numpy", inline="always")
def _entry(
    i: Any, j: Any, log: Any, weight: Any, words: Any, contexts: Any, word_bias: Any, context_bias: Any,
    word_squares: Any, context_squares: Any, word_bias_squares: Any, context_bias_squares: Any, rate: Any, clip: Any,
    scaled: Any,
) -> Any:  # fmt: skip
    error = word_bias[i] + context_bias[j] - log
    for d in range(words.shape[1]):
        error += words[i, d] * contexts[j, d]
    grad = weight * error
    inside, bias_rate = rate, np.float32(1)
    if not scaled:
        inside, bias_rate = np.float32(1), rate
    outside = rate / inside
    for d in range(words.shape[1]):
        word, context = words[i, d], contexts[j, d]
        of_word = min(max(grad * context, -clip), clip) * inside
        of_context = min(max(grad * word, -clip), clip) * inside
        words[i, d] = word - outside * of_word / np.sqrt(word_squares[i, d])
        contexts[j, d] = context - outside * of_context / np.sqrt(context_squares[j, d])
        word_squares[i, d] += of_word * of_word
        context_squares[j, d] += of_context * of_context
    word_bias[i] -= bias_rate * grad / np.sqrt(word_bias_squares[i])
    context_bias[j] -= bias_rate * grad / np.sqrt(context_bias_squares[j])
    word_bias_squares[i] += grad * grad
    context_bias_squares[j] += grad * grad
    return grad * error


@njit(nogil=True, fastmath=ROUGHLY, error_model="numpy")
def _glove(
    rows: Any, columns: Any, logs: Any, weights: Any, start: Any, stop: Any, words: Any, contexts: Any, word_bias: Any,
    context_bias: Any, word_squares: Any, context_squares: Any, word_bias_squares: Any, context_bias_squares: Any,
    symmetric: Any, rate: Any, clip: Any, scaled: Any,
) -> Any:  # fmt: skip
    total = 0.0
    for place in range(2 * start, 2 * stop):  # even: as it stands; odd: turned around
        entry = place // 2
        i, j = rows[entry], columns[entry]
        if place % 2:
            if not symmetric or i == j:
                continue
            i, j = j, i
        total += _entry(
            i, j, logs[entry], weights[entry], words, contexts, word_bias, context_bias, word_squares, context_squares,
            word_bias_squares, context_bias_squares, rate, clip, scaled,
        )  # fmt: skip
    return total

"""GloVe's loop in numpy, for where numba is not installed: see glove_compiled.py."""

from __future__ import annotations

import numpy as np

PARALLEL = False


def glove(
    rows: np.ndarray, columns: np.ndarray, logs: np.ndarray, weights: np.ndarray, start: int, stop: int,
    vectors: tuple[np.ndarray, np.ndarray], biases: tuple[np.ndarray, np.ndarray],
    vector_squares: tuple[np.ndarray, np.ndarray], bias_squares: tuple[np.ndarray, np.ndarray], symmetric: bool,
    rate: float, clip: float, scaled: bool,
) -> float:  # fmt: skip
    total = 0.0
    inside, outside = (np.float32(rate), np.float32(1)) if scaled else (np.float32(1), np.float32(rate))
    bias_rate = np.float32(1) if scaled else np.float32(rate)
    for entry in range(start, stop):
        i, j = int(rows[entry]), int(columns[entry])
        for place in [(i, j), (j, i)] if symmetric and i != j else [(i, j)]:
            old = [table[row].copy() for table, row in zip(vectors, place, strict=True)]
            error = old[0] @ old[1] + sum(bias[row] for bias, row in zip(biases, place, strict=True)) - logs[entry]
            grad = np.float32(weights[entry] * error)
            for side, row in enumerate(place):
                step = np.clip(grad * old[1 - side], -clip, clip) * inside
                vectors[side][row] -= outside * step / np.sqrt(vector_squares[side][row])
                vector_squares[side][row] += step * step
                biases[side][row] -= bias_rate * grad / np.sqrt(bias_squares[side][row])
                bias_squares[side][row] += grad * grad
            total += float(grad * error)
    return total

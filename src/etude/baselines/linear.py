"""Linear models with an L2 penalty: multinomial logistic regression, the penalty chosen by cross-validation.

    minimise   C * sum of losses + |W|^2 / 2      (bias free), by L-BFGS (Liu & Nocedal 1989)

N examples span at most N directions, and the best W lies among them. So where examples are few, features X (N, V) are
replaced by the Cholesky factor Z (N, N) of X X' once: the same losses and penalties, and each of the many fits of a
cross-validation costs N x N whatever the number of n-grams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from scipy import sparse
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import minimize

from etude.baselines.text_features import SparseVector

PENALTIES = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)  # values of C, weakest first
KERNEL_ROWS = 2000  # up to so many examples the Cholesky factor takes the place of the features
JITTER = 1e-8  # on the diagonal: equal texts make X X' singular
Matrix: TypeAlias = np.ndarray | sparse.csr_matrix
Loss = Callable[[np.ndarray], tuple[float, np.ndarray]]  # (N, outputs) scores -> sum of losses, its gradient


@dataclass
class Linear:
    """(V, outputs) weights and (outputs,) bias."""

    weight: np.ndarray
    bias: np.ndarray

    def scores(self, features: Matrix) -> np.ndarray:
        return np.asarray(features @ self.weight) + self.bias


def stack_vectors(vectors: Sequence[SparseVector], columns: int) -> sparse.csr_matrix:
    """Sparse vectors as the rows of a matrix (N, V)."""
    bounds = np.concatenate([[0], np.cumsum([len(values) for _, values in vectors])])
    indices = np.concatenate([vector[0] for vector in vectors])
    values = np.concatenate([vector[1] for vector in vectors])
    return sparse.csr_matrix((values, indices, bounds), shape=(len(vectors), columns))


def fit_linear(
    features: Matrix, loss: Loss, outputs: int, penalty: float, start: Linear | None = None, iterations: int = 300
) -> Linear:
    """Minimise `penalty` * loss + |W|^2 / 2; `start` is where to begin."""
    columns = features.shape[1]
    transposed = np.ascontiguousarray(features.T) if isinstance(features, np.ndarray) else features.T.tocsr()

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        table = flat.reshape(columns + 1, outputs)
        weight, bias = table[:-1], table[-1]
        value, slope = loss(np.asarray(features @ weight) + bias)
        gradient = np.empty_like(table)
        gradient[:-1] = transposed @ slope
        gradient[-1] = slope.sum(0)
        gradient *= penalty
        gradient[:-1] += weight
        return penalty * value + 0.5 * float(np.vdot(weight, weight)), gradient.ravel()

    first = np.zeros((columns + 1, outputs))
    if start is not None:
        first[:-1], first[-1] = start.weight, start.bias
    options = {"maxiter": iterations, "maxcor": 10, "gtol": 1e-4, "ftol": 1e-7}
    best = minimize(objective, first.ravel(), jac=True, method="L-BFGS-B", options=options)
    table = best.x.reshape(columns + 1, outputs)
    return Linear(table[:-1].copy(), table[-1].copy())


def cross_entropy(labels: np.ndarray) -> Loss:
    """The loss of multinomial logistic regression, for (N,) numbers of classes."""
    rows = np.arange(len(labels))

    def loss(scores: np.ndarray) -> tuple[float, np.ndarray]:
        log_probs = log_softmax(scores)
        slope = np.exp(log_probs)
        slope[rows, labels] -= 1
        return -float(log_probs[rows, labels].sum()), slope

    return loss


def log_softmax(scores: np.ndarray) -> np.ndarray:
    shifted = scores - scores.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


# --- few examples: a factor in place of the features ----------------------------------------------------


@dataclass
class Factor:
    """Features, and what stands for them in a fit."""

    features: sparse.csr_matrix
    rows: Matrix  # (N, N) lower triangular with rows @ rows' = X X', or the features themselves

    @classmethod
    def of(cls, features: sparse.csr_matrix) -> Factor:
        count, columns = features.shape
        if count > KERNEL_ROWS or columns <= count:
            return cls(features, features)
        gram = (features @ features.T).toarray()
        gram[np.diag_indices(count)] += JITTER * max(float(gram.trace()) / count, 1e-12)
        return cls(features, cholesky(gram, lower=True))

    def restore(self, fitted: Linear) -> Linear:
        """The same model over the features."""
        if self.rows is self.features:
            return fitted
        combination = solve_triangular(self.rows, fitted.weight, lower=True, trans="T")  # (N, outputs)
        return Linear(np.asarray(self.features.T @ combination), fitted.bias)


# --- choosing the penalty -------------------------------------------------------------------------------


def stratified_folds(labels: np.ndarray, folds: int, seed: int) -> np.ndarray:
    """(N,) the fold of each example; every class is dealt out evenly."""
    draw = np.random.default_rng(seed)
    assigned = np.empty(len(labels), dtype=np.int64)
    offset = 0
    for label in np.unique(labels):
        members = draw.permutation(np.flatnonzero(labels == label))
        assigned[members] = (np.arange(len(members)) + offset) % folds
        offset += len(members)  # so that classes of one example do not all fall into the first fold
    return assigned


def fit_logistic(features: sparse.csr_matrix, labels: np.ndarray, classes: int, seed: int = 0) -> tuple[Linear, float]:
    """Multinomial logistic regression, and the C that had the least log loss in cross-validation."""
    factor = Factor.of(features)
    penalty = choose_penalty(factor.rows, labels, classes, seed)
    return factor.restore(fit_linear(factor.rows, cross_entropy(labels), classes, penalty)), penalty


def choose_penalty(rows: Matrix, labels: np.ndarray, classes: int, seed: int) -> float:
    """The C of the least log loss over held-out folds; of one fold where examples are many."""
    count = len(labels)
    if count < 4:
        return PENALTIES[len(PENALTIES) // 2]
    folds = min(5, count // 2)
    assigned = stratified_folds(labels, folds, seed)
    losses = np.zeros(len(PENALTIES))
    for fold in range(folds if count <= KERNEL_ROWS else 1):
        train, valid = np.flatnonzero(assigned != fold), np.flatnonzero(assigned == fold)
        train_rows, valid_rows = rows[train], rows[valid]
        fitted: Linear | None = None
        for number, penalty in enumerate(PENALTIES):  # each starts where the one before it ended
            fitted = fit_linear(train_rows, cross_entropy(labels[train]), classes, penalty, fitted)
            losses[number] += cross_entropy(labels[valid])(fitted.scores(valid_rows))[0]
    return PENALTIES[int(losses.argmin())]

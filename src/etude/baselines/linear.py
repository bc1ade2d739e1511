"""Linear models with an L2 penalty: multinomial logistic regression, the penalty chosen by cross-validation.

    minimise   C * sum of losses + |W|^2 / 2      (bias free), by L-BFGS (Liu & Nocedal 1989)

N examples span at most N directions, and the best W lies among them. So where examples are few, features X (N, V) are
replaced by the Cholesky factor Z (N, N) of X X' once: the same losses and penalties, and each of the many fits of a
cross-validation costs N x N whatever the number of n-grams.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from scipy import sparse
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import minimize

from etude.baselines.blas_threads import with_one_blas_thread
from etude.baselines.text_features import SparseVector

PENALTIES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)  # values of C
FOLDS = 5
FOLDS_OF_ROWS = ((800, 5), (1500, 3), (math.inf, 1))  # (rows at most, folds that are looked at)
KERNEL_ROWS = 1500  # up to so many examples the Cholesky factor takes the place of the features
LARGE_ITERATIONS = 60  # of L-BFGS over the features themselves: an early end is one more penalty
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


@with_one_blas_thread
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
    is_small = columns <= KERNEL_ROWS
    options: dict[str, float] = {
        "maxiter": iterations if is_small else LARGE_ITERATIONS,
        "maxcor": 10 if is_small else 5,
    }
    options |= {"gtol": 1e-4, "ftol": 1e-7 if is_small else 1e-5}
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


def squares(targets: np.ndarray) -> Loss:
    """The loss of ridge regression, for (N,) values."""

    def loss(scores: np.ndarray) -> tuple[float, np.ndarray]:
        error = scores[:, 0] - targets
        return 0.5 * float(error @ error), error[:, None]

    return loss


def candidate_cross_entropy(targets: Sequence[np.ndarray]) -> Loss:
    """The loss of a softmax over the candidates of each question, for their shares of the right answer."""
    starts = np.concatenate([[0], np.cumsum([len(shares) for shares in targets])[:-1]])
    sizes = np.array([len(shares) for shares in targets])
    right = np.concatenate(targets)

    def loss(scores: np.ndarray) -> tuple[float, np.ndarray]:
        flat = scores[:, 0]
        shifted = flat - np.repeat(np.maximum.reduceat(flat, starts), sizes)
        log_probs = shifted - np.repeat(np.log(np.add.reduceat(np.exp(shifted), starts)), sizes)
        return -float(right @ log_probs), (np.exp(log_probs) - right)[:, None]

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


@dataclass(frozen=True)
class Problem:
    """What is to be learnt: a loss over units (examples, or questions with several rows each)."""

    outputs: int
    loss: Callable[[np.ndarray], Loss]  # (units,) numbers -> the loss over their rows, in that order
    strata: np.ndarray  # (units,) which folds deal out evenly
    bounds: np.ndarray | None = None  # (units + 1,) rows of each unit; None: one each
    groups: np.ndarray | None = None  # (units,) equal inputs, never on both sides of an inner fold; None: all differ

    def rows(self, units: np.ndarray) -> np.ndarray:
        """The rows of some units."""
        if self.bounds is None:
            return units
        return np.concatenate([np.arange(self.bounds[unit], self.bounds[unit + 1]) for unit in units])


def classification(labels: np.ndarray, classes: int, groups: np.ndarray | None = None) -> Problem:
    """Multinomial logistic regression."""
    return Problem(classes, lambda units: cross_entropy(labels[units]), labels, groups=groups)


def number_equal(inputs: Iterable[Hashable]) -> np.ndarray:
    """(N,) the same number where inputs are equal."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(each, len(numbers)) for each in inputs], np.int64)


def stratified_folds(strata: np.ndarray, folds: int, seed: int) -> np.ndarray:
    """(N,) the fold of each example; every class is dealt out evenly."""
    draw = np.random.default_rng(seed)
    assigned = np.empty(len(strata), dtype=np.int64)
    offset = 0
    for label in np.unique(strata):
        members = draw.permutation(np.flatnonzero(strata == label))
        assigned[members] = (np.arange(len(members)) + offset) % folds
        offset += len(members)  # so that classes of one example do not all fall into the first fold
    return assigned


@dataclass(frozen=True)
class Choice:
    """What had the least held-out loss."""

    model: Linear
    features: int  # the number of the features among those that were tried
    penalty: float


@with_one_blas_thread
def fit_best(
    candidates: Sequence[sparse.csr_matrix], problem: Problem, seed: int = 0, penalties: Sequence[float] | None = None
) -> Choice:
    """Fit with the features and the C of the least held-out loss; of PENALTIES, every second where rows are many."""
    factors = [Factor.of(features) for features in candidates]
    if penalties is None:
        penalties = PENALTIES if factors[0].rows.shape[0] <= KERNEL_ROWS else PENALTIES[::2]
    losses = np.array([held_out_losses(factor.rows, problem, seed, penalties) for factor in factors])
    best, penalty = np.unravel_index(int(losses.argmin()), losses.shape)
    factor, chosen = factors[int(best)], penalties[int(penalty)]
    fitted = fit_linear(factor.rows, problem.loss(np.arange(len(problem.strata))), problem.outputs, chosen)
    return Choice(factor.restore(fitted), int(best), chosen)


def held_out_losses(rows: Matrix, problem: Problem, seed: int, penalties: Sequence[float] = PENALTIES) -> np.ndarray:
    """(penalties,) summed over folds, of which fewer are looked at where rows are many.

    C grows until the loss has risen twice: what lies behind is never better, and takes the longest. It stays infinite.
    """
    count = len(problem.strata)
    losses = np.full(len(penalties), np.inf)
    folds = min(FOLDS, count // 2)
    splits = []
    if count >= 4:
        assigned = stratified_folds(problem.strata, folds, seed)
        if problem.groups is not None:  # a text that stands twice must not be held out from itself
            _, firsts, group_of = np.unique(problem.groups, return_index=True, return_inverse=True)
            assigned = assigned[firsts[group_of]]
        used = next(number for limit, number in FOLDS_OF_ROWS if rows.shape[0] <= limit)
        for fold in range(min(folds, used)):
            train, valid = np.flatnonzero(assigned != fold), np.flatnonzero(assigned == fold)
            if len(train) and len(valid):  # else nearly all inputs are equal
                splits.append(
                    (rows[problem.rows(train)], problem.loss(train), rows[problem.rows(valid)], problem.loss(valid))
                )
    if not splits:
        losses[len(penalties) // 2] = 0.0  # too few to hold any out: a penalty in the middle
        return losses
    fitted: list[Linear | None] = [None] * len(splits)
    tried: list[float] = []
    for number, penalty in enumerate(penalties):
        losses[number] = 0.0
        for fold, (train_rows, train_loss, valid_rows, valid_loss) in enumerate(splits):
            # from where the penalty before it ended
            model = fit_linear(train_rows, train_loss, problem.outputs, penalty, fitted[fold])
            losses[number] += valid_loss(model.scores(valid_rows))[0]
            fitted[fold] = model
        tried.append(losses[number])
        if len(tried) > 2 and tried[-1] > tried[-2] > tried[-3]:
            break
    return losses

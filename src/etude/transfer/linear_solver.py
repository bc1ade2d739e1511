"""The linear layer that fits fixed features best under an L2 penalty: the head of a linear probe.

    softmax      multinomial logistic regression, by L-BFGS
    candidates   the softmax runs over the units of an example, as in multiple choice (McFadden 1974), by L-BFGS
    squares      ridge regression, in closed form

Features are standardised by their training mean and deviation, and both are folded into weight and bias afterwards,
so that the layer reads features as they are. The penalty is `penalty * width / 2 * |W|^2` beside a sum over units: a
prior under which a logit has the variance 1 / penalty, whatever the number of features; so one grid suits all widths,
and a penalty that was chosen on folds holds for the whole set. The bias is free.

Penalty (and features, where several are given) are chosen by the held-out loss of inner folds, which is smoother than
accuracy on some hundred labels and rewards calibrated probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

import numpy as np
from scipy.optimize import minimize

from etude.baselines.blas_threads import with_one_blas_thread
from etude.chance import fold
from etude.tasks.linear_task import TargetLoss, Targets

PENALTIES = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003)  # from strong to weak: each starts from the one before
INNER_FOLDS = 5
# of an example, beside those that are right: a uniform sample of alternatives keeps the estimate consistent (McFadden
# 1978), and the tokens of a text are hundreds
SAMPLED_CANDIDATES = 32
MANY_UNITS = 4000  # beyond it one held-out fifth is enough to tell penalties apart, and folds take long
# of words with a tag each, of which a text has many; Wikigold, 100 sentences: the same penalty in two of three draws,
# F1 +0.3 in the third, in a quarter of the time
MANY_WORDS = 1000

Name = TypeVar("Name")
Layer = tuple[np.ndarray, np.ndarray]  # weight (outputs, D), bias (outputs,)


@dataclass(frozen=True)
class LinearLayer:
    """logits = features @ weight.T + bias, over features as they are."""

    weight: np.ndarray  # (outputs, D) float32
    bias: np.ndarray  # (outputs,) float32

    def logits(self, features: np.ndarray) -> np.ndarray:
        """(U, D) -> (U, outputs) float32."""
        return features @ self.weight.T + self.bias


@dataclass(frozen=True)
class Fit(Generic[Name]):
    """What cross-validation chose, and the layer that was then fitted to all units."""

    name: Name  # of the features
    penalty: float
    loss: float  # held out, a mean over units (over examples where candidates compete)
    layer: LinearLayer


@dataclass(frozen=True)
class Problem:
    """Units with their targets: what a layer is fitted to."""

    loss: TargetLoss
    features: np.ndarray  # (U, D) float64, standardised
    values: np.ndarray  # (U,), or (U, outputs) of candidates
    counts: np.ndarray  # (examples,) units of each
    outputs: int
    width: int  # D, before any rotation: what the penalty is a multiple of
    groups: np.ndarray | None = None  # (examples,) equal inputs, never on both sides of an inner fold; None: all differ

    def rotate(self) -> tuple[Problem, np.ndarray]:
        """The same problem in the span of its features, and the rotation (K, D) back: fewer unknowns, one optimum."""
        units, width = self.features.shape
        if width <= units:
            return self, np.eye(width)
        squares, left = np.linalg.eigh(self.features @ self.features.T)
        spanned = squares > 1e-10 * max(squares[-1], 1e-300)
        scale, left = np.sqrt(squares[spanned]), left[:, spanned]
        return replace(self, features=left * scale), (left / scale).T @ self.features

    def take(self, examples: np.ndarray) -> Problem:
        """The problem of some examples."""
        starts = np.concatenate([[0], np.cumsum(self.counts)])
        units = np.concatenate([np.arange(starts[n], starts[n + 1]) for n in examples])
        return replace(
            self, features=self.features[units], values=self.values[units], counts=self.counts[examples],
            groups=None if self.groups is None else self.groups[examples],
        )  # fmt: skip

    def mean_loss(self, weight: np.ndarray, bias: np.ndarray) -> float:
        """Of a layer over these standardised features."""
        logits = self.features @ weight.T + bias
        if self.loss == "softmax":
            return float(-np.mean(_log_softmax(logits)[np.arange(len(logits)), self.values.astype(int)]))
        if self.loss == "squares":
            return float(np.mean((logits[:, 0] - self.values) ** 2))
        losses = [_candidate_loss(logits[:, number], self.column(number))[0] for number in range(self.outputs)]
        return sum(losses) / max(1, len(self.counts))

    def column(self, number: int) -> Problem:
        """The problem of one output, where each has values of its own."""
        return self if self.values.ndim == 1 else replace(self, values=self.values[:, number], outputs=1)


@with_one_blas_thread
def choose_and_fit(
    features: Mapping[Name, np.ndarray], targets: Targets, outputs: int, seed: int = 0, groups: np.ndarray | None = None
) -> Fit[Name]:
    """Choose features (U, D) and penalty by inner cross-validation, then fit to all units.

    `groups` (examples,) are equal where inputs are: a text that stands twice must not be held out from itself.
    """
    useful = np.ones(len(targets.values), dtype=bool)
    if targets.loss == "candidates":  # an example whose candidates are all right, or all wrong, says nothing
        useful = np.array([np.all((part.sum(0) > 0) & (part.sum(0) < len(part))) for part in targets.values])
        targets, units = _sample_candidates(targets, seed)
        features = {name: array[units] for name, array in features.items()}
    values, counts = np.concatenate(targets.values).astype(np.float64), np.array([len(v) for v in targets.values])
    best: tuple[Name, float, float] | None = None
    problems: dict[Name, tuple[Problem, np.ndarray, np.ndarray]] = {}
    for name, array in features.items():
        problem, mean, deviation = _standardise(array, targets.loss, values, counts, outputs, groups)
        problem = problem.take(np.flatnonzero(useful))
        problems[name] = problem, mean, deviation
        losses = cross_validate(problem.rotate()[0], seed)
        place = int(np.argmin(losses))
        if best is None or losses[place] < best[2]:
            best = name, PENALTIES[place], float(losses[place])
    if best is None:
        raise ValueError("no features were given to choose from")
    name, penalty, loss = best
    problem, mean, deviation = problems[name]
    problem, rotation = problem.rotate()
    (weight, bias), *_ = solve_path(problem, (penalty,))
    weight = weight @ rotation / deviation
    layer = LinearLayer(weight.astype(np.float32), (bias - weight @ mean).astype(np.float32))
    return Fit(name, penalty, loss, layer)


def _sample_candidates(targets: Targets, seed: int) -> tuple[Targets, np.ndarray]:
    """The targets of the right candidates and some others of each example, and (U,) which units they are."""
    draw = np.random.default_rng(fold(seed, "candidates"))
    values, units, start = [], [], 0
    for part in targets.values:
        is_right = part.reshape(len(part), -1).any(1)
        others = np.flatnonzero(~is_right)
        if len(others) > SAMPLED_CANDIDATES:
            others = draw.choice(others, SAMPLED_CANDIDATES, replace=False)
        numbers = np.sort(np.concatenate([np.flatnonzero(is_right), others]))
        values.append(part[numbers])
        units.append(start + numbers)
        start += len(part)
    return Targets(targets.loss, values), np.concatenate(units)


def cross_validate(problem: Problem, seed: int) -> np.ndarray:
    """(penalties,) the mean held-out loss of each.

    Penalties become weaker until the loss has risen twice: what lies behind is never better, and takes the longest. It
    stays infinite.
    """
    groups = len(problem.counts) if problem.groups is None else len(np.unique(problem.groups))
    folds = min(INNER_FOLDS, groups)
    if folds < 2:
        return np.where(np.array(PENALTIES) == 1.0, 0.0, 1.0)  # nothing to hold out: a logit of variance 1
    parts = _fold_numbers(problem, folds, seed)
    splits = []
    has_words = problem.loss == "softmax" and len(problem.values) > len(problem.counts)
    for number in range(folds if len(problem.values) <= (MANY_WORDS if has_words else MANY_UNITS) else 1):
        train, valid = problem.take(np.flatnonzero(parts != number)), problem.take(np.flatnonzero(parts == number))
        splits.append((_walk_path(train, PENALTIES), valid, np.sum(parts == number)))
    held_out = sum(count for *_, count in splits)  # not all examples where they are many
    losses = np.full(len(PENALTIES), np.inf)
    for number in range(len(PENALTIES)):
        losses[number] = sum(count * valid.mean_loss(*next(path)) for path, valid, count in splits) / held_out
        if number > 1 and losses[number] > losses[number - 1] > losses[number - 2]:
            break
    return losses


def _fold_numbers(problem: Problem, folds: int, seed: int) -> np.ndarray:
    """(examples,) the fold of each, one for a group; where examples have one label, labels are spread evenly."""
    groups = np.arange(len(problem.counts)) if problem.groups is None else problem.groups
    _, firsts, group_of = np.unique(groups, return_index=True, return_inverse=True)
    order = np.random.default_rng(fold(seed, "inner folds")).permutation(len(firsts))
    if problem.loss == "softmax" and len(problem.values) == len(problem.counts):
        order = order[np.argsort(problem.values[firsts[order]], kind="stable")]
    parts = np.empty(len(firsts), dtype=np.int64)
    parts[order] = np.arange(len(firsts)) % folds
    return parts[group_of]


# --- solving ----------------------------------------------------------------------------------------


def solve_path(problem: Problem, penalties: Sequence[float]) -> list[Layer]:
    """The layer (weight, bias) of each penalty over standardised features; each starts from the one before."""
    return list(_walk_path(problem, penalties))


def _walk_path(problem: Problem, penalties: Sequence[float]) -> Iterator[Layer]:
    """The same, each solved when it is asked for."""
    strengths = [penalty * problem.width for penalty in penalties]
    if problem.loss == "squares":
        return _solve_squares(problem, strengths)
    return _solve_softmax(problem, strengths) if problem.loss == "softmax" else _solve_candidates(problem, strengths)


def _solve_softmax(problem: Problem, strengths: Sequence[float]) -> Iterator[Layer]:
    """Multinomial logistic regression over the labels that occur; others get what half an example would give them."""
    labels, numbers = np.unique(problem.values.astype(int), return_inverse=True)
    features, (units, width), present = problem.features, problem.features.shape, len(labels)
    gold = np.eye(present)[numbers]

    def value_and_slope(flat: np.ndarray, strength: float) -> tuple[float, np.ndarray]:
        weight, bias = flat[: present * width].reshape(present, width), flat[present * width :]
        logs = _log_softmax(features @ weight.T + bias)
        error = np.exp(logs) - gold
        value = -float((logs * gold).sum()) + strength / 2 * float((weight**2).sum())
        slope = np.concatenate([(error.T @ features + strength * weight).ravel(), error.sum(0)])
        return value / units, slope / units

    flat = np.concatenate([np.zeros(present * width), np.log(gold.mean(0))])
    for strength in strengths:
        flat = _minimise(value_and_slope, flat, strength)
        weight = np.zeros((problem.outputs, width))
        weight[labels] = flat[: present * width].reshape(present, width)
        bias = np.full(problem.outputs, flat[present * width :].mean() - np.log(2.0 * units))
        bias[labels] = flat[present * width :]
        yield weight, bias


def _solve_candidates(problem: Problem, strengths: Sequence[float]) -> Iterator[Layer]:
    """Each output by itself: they share features, and no weights."""
    features, columns = problem.features, [problem.column(number) for number in range(problem.outputs)]

    def value_and_slope(weight: np.ndarray, strength: float, own: Problem) -> tuple[float, np.ndarray]:
        value, slope = _candidate_loss(features @ weight, own)
        total = value + strength / 2 * float(weight @ weight)
        return total / len(own.counts), (slope @ features + strength * weight) / len(own.counts)

    weights = [np.zeros(features.shape[1]) for _ in columns]
    for strength in strengths:
        weights = [
            _minimise(partial(value_and_slope, own=own), weight, strength)
            for weight, own in zip(weights, columns, strict=True)
        ]
        yield np.stack(weights), np.zeros(len(weights))


def _candidate_loss(scores: np.ndarray, problem: Problem) -> tuple[float, np.ndarray]:
    """The sum over examples of -log of the share of the right candidates, and its slope (U,)."""
    starts = np.concatenate([[0], np.cumsum(problem.counts)[:-1]])
    top = np.repeat(np.maximum.reduceat(scores, starts), problem.counts)
    shares = np.exp(scores - top)
    right = np.where(problem.values > 0, np.exp(np.maximum(scores - top, -700.0)), 0.0)  # never 0 where it is right
    among_all, among_right = np.add.reduceat(shares, starts), np.add.reduceat(right, starts)
    slope = shares / np.repeat(among_all, problem.counts) - right / np.repeat(among_right, problem.counts)
    return float(np.log(among_all).sum() - np.log(among_right).sum()), slope


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis."""
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def _solve_squares(problem: Problem, strengths: Sequence[float]) -> Iterator[Layer]:
    mean, centre = problem.features.mean(0), problem.values.mean()
    features, values = problem.features - mean, problem.values - centre
    left, scale, right = np.linalg.svd(features, full_matrices=False)
    for strength in strengths:
        weight = right.T @ (scale / (scale**2 + strength) * (left.T @ values))
        yield weight[None], np.array([centre - weight @ mean])


def _minimise(
    value_and_slope: Callable[[np.ndarray, float], tuple[float, np.ndarray]], start: np.ndarray, strength: float
) -> np.ndarray:
    options = {"maxiter": 500, "maxfun": 1000, "gtol": 1e-5, "ftol": 1e-10}
    result = minimize(value_and_slope, start, args=(strength,), jac=True, method="L-BFGS-B", options=options)
    solution: np.ndarray = result.x
    return solution


def _standardise(
    features: np.ndarray,
    loss: TargetLoss,
    values: np.ndarray,
    counts: np.ndarray,
    outputs: int,
    groups: np.ndarray | None,
) -> tuple[Problem, np.ndarray, np.ndarray]:
    """The problem over standardised features, with their mean and deviation; constant ones are only centred."""
    array = features.astype(np.float64)
    mean, deviation = array.mean(0), array.std(0)
    deviation[deviation < 1e-6 * max(1e-12, float(deviation.max(initial=0.0)))] = 1.0
    problem = Problem(loss, (array - mean) / deviation, values, counts, outputs, array.shape[1], groups)
    return problem, mean, deviation

"""A linear-chain conditional random field, fitted by L-BFGS (Lafferty et al. 2001; Sha & Pereira 2003).

    score(tags) = start[y1] + sum of x_t W[:, y_t] + sum of transitions[y_t, y_t+1] + end[yn]
    minimise    C * sum of -log p(tags | words) + |parameters|^2 / 2

Sentences are read side by side, the longest first, so that one step of the recursion is one product for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.optimize import minimize

from etude.baselines.blas_threads import with_one_blas_thread

PENALTIES = (0.3, 1.0, 3.0)
SMALLEST = 1e-300


@dataclass
class Chain:
    """Weights of features (F, K) and of transitions."""

    weight: np.ndarray
    start: np.ndarray  # (K,)
    transitions: np.ndarray  # (K, K), [from, to]
    end: np.ndarray  # (K,)

    @classmethod
    def zeros(cls, features: int, tags: int) -> Chain:
        return cls(np.zeros((features, tags)), np.zeros(tags), np.zeros((tags, tags)), np.zeros(tags))

    @classmethod
    def unpack(cls, flat: np.ndarray, features: int, tags: int) -> Chain:
        table = flat.reshape(features + tags + 2, tags)
        return cls(table[:features], table[features], table[features + 1 : -1], table[-1])

    def pack(self) -> np.ndarray:
        return np.concatenate([self.weight, self.start[None], self.transitions, self.end[None]]).ravel()


@dataclass
class Sequences:
    """Words of all sentences end to end, with their tags."""

    features: sparse.csr_matrix  # (N, F)
    tags: np.ndarray  # (N,)
    lengths: np.ndarray  # (S,)

    def part(self, numbers: np.ndarray) -> Sequences:
        starts = np.concatenate([[0], np.cumsum(self.lengths)])
        rows = np.concatenate([np.arange(starts[n], starts[n + 1]) for n in numbers])
        return Sequences(self.features[rows], self.tags[rows], self.lengths[numbers])


@with_one_blas_thread
def fit_chain(
    sequences: Sequences, tags: int, penalty: float, start: Chain | None = None, iterations: int = 80
) -> Chain:
    """Minimise the penalised negative log-likelihood."""
    features = sequences.features.shape[1]
    transposed = sequences.features.T.tocsr()
    steps = _steps(sequences.lengths)

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        chain = Chain.unpack(flat, features, tags)
        value, gradient, slope = _likelihood(chain, sequences, steps)
        gradient.weight = transposed @ slope
        return penalty * value + 0.5 * float(flat @ flat), penalty * gradient.pack() + flat

    first = start or Chain.zeros(features, tags)
    options = {"maxiter": iterations, "maxcor": 6, "ftol": 1e-5, "gtol": 1e-3}
    best = minimize(objective, first.pack(), jac=True, method="L-BFGS-B", options=options)
    return Chain.unpack(best.x, features, tags)


def choose_chain(sequences: Sequences, tags: int, seed: int = 0) -> tuple[Chain, float]:
    """Fit with the C of the least loss on a fifth of the sentences, which is held out for that."""
    count = len(sequences.lengths)
    if count < 10:
        return fit_chain(sequences, tags, 1.0), 1.0
    order = np.random.default_rng(seed).permutation(count)
    valid, train = sequences.part(order[: count // 5]), sequences.part(order[count // 5 :])
    steps, losses = _steps(valid.lengths), []
    chain: Chain | None = None
    for penalty in PENALTIES:
        chain = fit_chain(train, tags, penalty, chain, iterations=40)
        losses.append(_likelihood(chain, valid, steps)[0])
    best = PENALTIES[int(np.argmin(losses))]
    return fit_chain(sequences, tags, best), best


def _steps(lengths: np.ndarray) -> list[np.ndarray]:
    """Rows of the words number t of all sentences that are so long, the longest sentence first."""
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    order = np.argsort(-lengths, kind="stable")
    return [starts[order[lengths[order] > step]] + step for step in range(int(lengths.max()))]


def _likelihood(chain: Chain, sequences: Sequences, steps: Sequence[np.ndarray]) -> tuple[float, Chain, np.ndarray]:
    """-log p of all tags, its gradient but for the weights of features, and (N, K) its slope in the emissions."""
    scores = np.asarray(sequences.features @ chain.weight)  # (N, K)
    scores[steps[0]] += chain.start
    lasts = _last_rows(sequences.lengths)
    scores[lasts] += chain.end
    shift = scores.max(1)
    potential = np.exp(scores - shift[:, None])
    moves = np.exp(chain.transitions - chain.transitions.max())
    forward, scale = np.empty_like(potential), np.empty(len(potential))
    for number, rows in enumerate(steps):
        ahead = potential[rows]
        if number:
            ahead = ahead * (forward[steps[number - 1][: len(rows)]] @ moves)
        sums = np.maximum(ahead.sum(1), SMALLEST)
        forward[rows], scale[rows] = ahead / sums[:, None], sums
    backward = np.ones_like(potential)
    pairs = np.zeros_like(moves)
    for number in range(len(steps) - 1, 0, -1):
        rows = steps[number]
        before = steps[number - 1][: len(rows)]
        behind = potential[rows] * backward[rows] / scale[rows][:, None]
        pairs += forward[before].T @ behind
        backward[before] = behind @ moves.T
    marginals = forward * backward
    marginals /= marginals.sum(1, keepdims=True)
    pairs *= moves
    slope = marginals.copy()
    slope[np.arange(len(slope)), sequences.tags] -= 1
    gold = float(scores[np.arange(len(scores)), sequences.tags].sum())
    counts = np.zeros_like(moves)
    for number in range(1, len(steps)):
        rows = steps[number]
        np.add.at(counts, (sequences.tags[steps[number - 1][: len(rows)]], sequences.tags[rows]), 1)
    gold += float((counts * chain.transitions).sum())
    moved = len(scores) - len(sequences.lengths)
    partition = float(np.log(scale).sum() + shift.sum()) + moved * float(chain.transitions.max())
    gradient = Chain(np.zeros((0, 0)), slope[steps[0]].sum(0), pairs - counts, slope[lasts].sum(0))
    return partition - gold, gradient, slope


def _last_rows(lengths: np.ndarray) -> np.ndarray:
    return np.cumsum(lengths) - 1

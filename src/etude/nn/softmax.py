"""Output layers over a large vocabulary: full, sampled and adaptive softmax.

    full       the logit of every word, a chunk of tokens at a time (nn/losses.py)
    sampled    the logit of the true word against those of a few thousand candidates, one set for all tokens (Jean et
               al. 2015); in evaluation the full softmax, since a sampled loss is no likelihood
    adaptive   frequent words first, rare ones in clusters with narrower layers (Grave et al. 2017): torch's own

Candidates are drawn log-uniformly over words sorted by frequency, without repetition. From every logit the logarithm
of the expected count of its word among the candidates is subtracted, and a candidate that is the true word does not
compete with itself: as in TensorFlow, with which ELMo was trained [code]. All losses are sums.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etude.chance import random_bits
from etude.nn.initialization import fill_constant
from etude.nn.losses import linear_cross_entropy
from etude.nn.precision import upcast

SoftmaxKind = Literal["full", "sampled", "adaptive"]
BLOCK = 4096  # draws at once


class FrequencyOrder:
    """Words by falling frequency; rank r is drawn with probability log((r + 2) / (r + 1)) / log(V + 1)."""

    def __init__(self, counts: np.ndarray) -> None:
        self.words_by_rank = np.argsort(-counts, kind="stable")  # (V,) the word of each rank
        self.ranks = np.argsort(self.words_by_rank)  # (V,) the rank of each word
        ranks = np.arange(len(counts))
        self.probs = np.log1p(1 / (ranks + 1)) / np.log(len(counts) + 1)

    def draw(self, key: int, count: int) -> tuple[np.ndarray, int]:
        """Draw `count` distinct words; return them and the number of draws that took."""
        vocab = len(self.words_by_rank)
        if count > vocab:
            raise ValueError(f"cannot draw {count} distinct words from {vocab}")
        ranks: np.ndarray = np.zeros(0, np.int64)
        while True:
            index = np.arange(len(ranks), len(ranks) + max(BLOCK, 2 * count))
            uniform = (random_bits(key, index) >> np.uint64(11)).astype(np.float64) * 2.0**-53
            draws = np.exp(uniform * np.log(vocab + 1)).astype(np.int64) - 1
            ranks = np.concatenate([ranks, draws.clip(0, vocab - 1)])
            _, first = np.unique(ranks, return_index=True)
            if len(first) >= count:
                chosen = np.sort(first)[:count]
                return self.words_by_rank[ranks[chosen]], int(chosen[-1]) + 1

    def expected_counts(self, words: np.ndarray, draws: int) -> np.ndarray:
        """Return how often each word is expected among the candidates after so many draws: at most once each."""
        return -np.expm1(draws * np.log1p(-self.probs[self.ranks[words]]))


class Candidates(NamedTuple):
    """The candidates of a sampled softmax and their expected counts, drawn on the host."""

    words: Tensor  # (K,) int64
    log_expected: Tensor  # (K,) float32, log of the expected count
    log_expected_targets: Tensor  # (...) float32, the same for the targets

    @classmethod
    def draw(cls, order: FrequencyOrder, key: int, count: int, targets: np.ndarray) -> Self:
        """Draw candidates, and compute the log expected counts for them and for the targets."""
        words, draws = order.draw(key, count)

        def log_expected(of_words: np.ndarray) -> Tensor:
            return torch.from_numpy(np.log(order.expected_counts(of_words, draws)).astype(np.float32))

        return cls(torch.from_numpy(words), log_expected(words), log_expected(targets))


class FullSoftmax(nn.Module):
    """A linear layer over the vocabulary. Where it is tied, the model passes its `table`."""

    def __init__(self, width: int, vocab: int, tied: bool = False) -> None:
        super().__init__()
        self.width, self.vocab = width, vocab
        self.weight = None if tied else nn.Parameter(torch.empty(vocab, width))
        self.bias = nn.Parameter(torch.empty(vocab))
        fill_constant(self.bias, 0.0)
        if self.weight is not None:
            nn.init.normal_(self.weight, std=width**-0.5)  # as the released biLM [code]

    def _table(self, table: Tensor | None) -> Tensor:
        weight = self.weight if self.weight is not None else table
        assert weight is not None
        return weight

    def loss(
        self, states: Tensor, targets: Tensor, table: Tensor | None = None, candidates: Candidates | None = None
    ) -> Tensor:
        """(N, D), (N,) -> the sum of cross-entropies."""
        return linear_cross_entropy(states, self._table(table), self.bias, targets)

    def logits(self, states: Tensor, table: Tensor | None = None) -> Tensor:
        """(N, D) -> (N, V)."""
        return F.linear(states, self._table(table), self.bias)

    def flops(self, targets: np.ndarray) -> int:
        """Count the forward pass."""
        return 2 * targets.size * self.width * self.vocab


class SampledSoftmax(FullSoftmax):
    """A full softmax whose training loss uses sampled candidates."""

    def loss(
        self, states: Tensor, targets: Tensor, table: Tensor | None = None, candidates: Candidates | None = None
    ) -> Tensor:
        if not self.training or candidates is None:
            return super().loss(states, targets, table)
        weight = self._table(table)
        candidate_logits = F.linear(states, weight[candidates.words], self.bias[candidates.words])  # (N, K)
        candidate_logits = upcast(candidate_logits) - candidates.log_expected
        candidate_logits = candidate_logits.masked_fill(targets[:, None] == candidates.words, float("-inf"))
        target_logits = (
            (upcast(states) * upcast(weight[targets])).sum(-1) + self.bias[targets] - candidates.log_expected_targets
        )  # (N,)
        return (torch.logaddexp(candidate_logits.logsumexp(-1), target_logits) - target_logits).sum()

    def sampled_flops(self, targets: np.ndarray, candidates: int) -> int:
        """Count the forward pass with so many candidates."""
        return 2 * targets.size * self.width * (candidates + 1)


class AdaptiveSoftmax(nn.Module):
    """torch's adaptive softmax over ids as they are: those of a word tokenizer fall in frequency."""

    def __init__(self, width: int, vocab: int, cutoffs: list[int], division: float) -> None:
        super().__init__()
        self.width, self.vocab = width, vocab
        self.layer = nn.AdaptiveLogSoftmaxWithLoss(width, vocab, cutoffs, div_value=division, head_bias=True)

    def loss(
        self, states: Tensor, targets: Tensor, table: Tensor | None = None, candidates: Candidates | None = None
    ) -> Tensor:
        with torch.autocast(states.device.type, enabled=False):  # torch indexes its parts into one float32 tensor
            return -self.layer(upcast(states), targets).output.sum()

    def logits(self, states: Tensor, table: Tensor | None = None) -> Tensor:
        """(N, D) -> (N, V) log-probabilities, which serve as logits."""
        return self.layer.log_prob(upcast(states))

    def flops(self, targets: np.ndarray) -> int:
        """Count the forward pass. A rare word costs its own cluster besides the head."""
        total = targets.size * self.width * self.layer.head_size
        limits = [*self.layer.cutoffs]
        for number, (low, high) in enumerate(pairwise(limits)):
            count = int(((targets >= low) & (targets < high)).sum())
            cluster_width = int(self.width // self.layer.div_value ** (number + 1))
            total += count * cluster_width * (self.width + high - low)
        return int(2 * total)


def default_cutoffs(vocab: int) -> list[int]:
    """Return the default ends of clusters: a fifteenth and a third of the words.

    The first holds about 90 % of the tokens of a text.
    """
    cutoffs = sorted({max(1, vocab // 15), max(2, vocab // 3)})
    return [cutoff for cutoff in cutoffs if cutoff < vocab]

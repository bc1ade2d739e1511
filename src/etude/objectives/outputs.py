"""From states to a token of the vocabulary: three output layers with one face.

    tied       the model's own token table (Press and Wolf 2017): sub-words
    full       a table of its own
    adaptive   frequent words first, the rest in bands of narrower projections (Grave et al. 2017): for words, of which
               there are hundreds of thousands. Band k is 4^k times narrower. Ids must be in the order of frequency,
               as those of a trained word tokenizer are

All give sums of losses over slots whose target may be IGNORE.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from etude.errors import UserError
from etude.nn.losses import IGNORE, chunk_of, linear_cross_entropy, linear_scores
from etude.nn.precision import wide

Kind = Literal["tied", "full", "adaptive"]
NARROWER = 4.0  # bands of 1024, 256 and 64 over the paper's million words


class Output(nn.Module):
    def __init__(
        self, kind: Kind, width: int, vocab: int, *, table: Tensor | None, cutoffs: list[int], bias: bool
    ) -> None:
        """`table` is the model's, (V, D), for a tied layer: used, never kept."""
        super().__init__()
        self.kind, self.width, self.vocab = kind, width, vocab
        if kind == "tied" and (table is None or tuple(table.shape) != (vocab, width)):
            raise UserError(
                "objective.output=tied multiplies states by the model's token table, and this model has none of their "
                "width: set objective.output to adaptive or full."
            )
        if kind == "adaptive" and bias:
            raise UserError("objective.bias adds to every logit, and objective.output=adaptive has none: drop one.")
        self.weight: nn.Parameter | None = None
        self.adaptive: nn.AdaptiveLogSoftmaxWithLoss | None = None
        if kind == "full":
            self.weight = nn.Parameter(torch.empty(vocab, width))
            nn.init.normal_(self.weight, std=width**-0.5)
        elif kind == "adaptive":
            self.cutoffs = self._possible(cutoffs)
            self.adaptive = nn.AdaptiveLogSoftmaxWithLoss(width, vocab, self.cutoffs, div_value=NARROWER)
        self.bias = nn.Parameter(torch.zeros(vocab)) if bias else None

    def _possible(self, cutoffs: list[int]) -> list[int]:
        """Those below the vocabulary: a smaller one has fewer bands."""
        kept = [one for one in cutoffs if one < self.vocab]
        if not kept:
            raise UserError(
                f"objective.cutoffs={cutoffs}: no band ends within the {self.vocab} words of the vocabulary. Lower the "
                f"first to {max(1, self.vocab // 5)}, or set objective.output=full."
            )
        return kept

    def _table(self, table: Tensor | None) -> Tensor:
        found = table if self.weight is None else self.weight
        assert found is not None
        return found

    def loss(self, states: Tensor, table: Tensor | None, targets: Tensor) -> Tensor:
        """(M, D), (M,) -> the sum over used slots."""
        if self.adaptive is None:
            return linear_cross_entropy(states, self._table(table), self.bias, targets)
        likelihood = wide(self.adaptive(states, targets.clamp(min=0)).output)
        return -likelihood.masked_fill(targets == IGNORE, 0.0).sum()

    @torch.no_grad()
    def scores(self, states: Tensor, table: Tensor | None, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of every slot (M,), 0 where unused, and the likeliest token of every slot (M,)."""
        if self.adaptive is None:
            return linear_scores(states, self._table(table), self.bias, targets)
        losses, likeliest = [], []
        chunk = chunk_of(self.vocab)
        for part, target in zip(states.split(chunk), targets.split(chunk), strict=True):
            found = wide(self.adaptive(part, target.clamp(min=0)).output)
            losses.append(-found.masked_fill(target == IGNORE, 0.0))
            likeliest.append(self.adaptive.predict(part))
        return torch.cat(losses), torch.cat(likeliest)

    def logits(self, states: Tensor, table: Tensor | None) -> Tensor:
        """(M, V); those of an adaptive layer are log-probabilities."""
        if self.adaptive is not None:
            return self.adaptive.log_prob(states)
        return nn.functional.linear(states, self._table(table), self.bias)

    def flops(self, targets: np.ndarray) -> int:
        """Forward only, for used slots with these targets: rare words pay for their band."""
        targets = targets[targets != IGNORE]
        if self.adaptive is None:
            return 2 * len(targets) * self.width * self.vocab
        total = 2 * len(targets) * self.width * self.adaptive.head_size
        for number, tail in enumerate(self.adaptive.tail):
            assert isinstance(tail, nn.Sequential)
            narrow = tail[0]
            assert isinstance(narrow, nn.Linear)
            low, high = self.adaptive.cutoffs[number], self.adaptive.cutoffs[number + 1]
            used = int(((targets >= low) & (targets < high)).sum())
            total += 2 * used * narrow.out_features * (self.width + high - low)
        return total

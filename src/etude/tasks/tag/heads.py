"""Heads of taggers: from the states of units to their tags.

    linear                  one layer (BERT, section 5.3)
    crf                     and a CRF over its scores
    bilstm                  a biLSTM over the units first (Graves & Schmidhuber 2005)
    bilstm_crf              both (Huang et al. 2015, Lample et al. 2016)
    projection_bilstm_crf   a linear layer that narrows the states before it (Baevski et al. 2019, section 6.2)

States and scores lie end to end without padding; `words` is the layout of sentences over units.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etude.nn.crf import CRF, AllowedTransitions
from etude.nn.losses import cross_entropy_sum
from etude.nn.lstm import LSTM
from etude.nn.packed import Layout
from etude.nn.precision import upcast

HeadKind = Literal["linear", "crf", "bilstm", "bilstm_crf", "projection_bilstm_crf"]
Constraints = Literal["none", "decoding", "training"]


class Head(nn.Module):
    def __init__(
        self,
        kind: HeadKind,
        width: int,
        tags: int,
        *,
        allowed: AllowedTransitions | None,
        constraints: Constraints,
        dropout: float,
        deviation: float,
        cells: int,
        layers: int,
        projection: int,
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.project: nn.Linear | None = None
        if kind == "projection_bilstm_crf":
            self.project = nn.Linear(width, projection)
            width = projection
        self.forwards, self.backwards = nn.ModuleList(), nn.ModuleList()
        if "bilstm" in kind:
            for _ in range(layers):
                self.forwards.append(LSTM(width, cells))
                self.backwards.append(LSTM(width, cells))
                width = 2 * cells
        self.output = nn.Linear(width, tags)
        nn.init.normal_(self.output.weight, std=deviation)
        nn.init.zeros_(self.output.bias)
        self.trains_crf = kind.endswith("crf")
        self.crf: CRF | None = None
        if self.trains_crf or constraints == "decoding":
            limits = None if constraints == "none" else allowed
            self.crf = CRF(tags, limits, constrain_training=constraints == "training")
            self.crf.requires_grad_(self.trains_crf)  # else only its rules are used, with scores of 0

    def forward(self, states: Tensor, words: Layout) -> Tensor:
        """(W, D) -> (W, K) the scores of every tag of every unit."""
        states = F.dropout(states, self.dropout, self.training)
        if self.project is not None:
            states = self.project(states)
        for ahead, back in zip(self.forwards, self.backwards, strict=True):
            both = ahead(states, words)[0], back(states, words, reverse=True)[0]
            states = F.dropout(torch.cat(both, dim=-1), self.dropout, self.training)
        return upcast(self.output(states))

    def loss(self, scores: Tensor, tags: Tensor, words: Layout) -> Tensor:
        """The negative log-likelihood, summed; its mean is over sentences with a CRF, else over units."""
        if self.crf is not None and self.trains_crf:
            return -self.crf.log_likelihood(scores, tags, words).sum()
        return cross_entropy_sum(scores, tags)

    @torch.no_grad()
    def decode(self, scores: Tensor, words: Layout) -> tuple[Tensor, Tensor]:
        """(W,) the best tags, and (W,) the probability of each."""
        if self.crf is None:
            probs = scores.softmax(-1)
            best = scores.argmax(-1)
        else:
            probs = self.crf.marginals(scores, words)
            best = self.crf.decode(scores, words)
        return best, probs.gather(1, best[:, None])[:, 0]

    def flops(self, units: int) -> int:
        """Forward only, matrix products times 2; a CRF has none."""
        layers = [layer for layer in (self.project, self.output) if layer is not None]
        total = sum(2 * units * layer.in_features * layer.out_features for layer in layers)
        return total + sum(lstm.flops(units) for lstm in [*self.forwards, *self.backwards] if isinstance(lstm, LSTM))

"""Output layers over a token table that belongs to the model (tied by use, never copied).

Causal: logits = states @ table^T, no bias in GPT-2; where the table is narrower than the states (ALBERT's
factorised embedding), the states go back through the embedding's own projection first.
Masked: BERT's transform, dense + activation + norm, then the table and a bias a token; the dense layer itself
narrows to a factorised table (ALBERT, section 3.1).
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from etude.models.transformer import Settings, Transformer
from etude.nn.activations import ACTIVATIONS, Activation
from etude.nn.initialization import draw_key, init_weights
from etude.nn.norm import Norm
from etude.nn.states import States


def table_width(model: Transformer) -> int:
    """E, the width of the model's token table."""
    return int(model.embedding.tokens.weight.shape[1])


class CausalHead(nn.Module):
    def __init__(self, model: Transformer, bias: bool) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(model.vocab)) if bias else None
        narrow = table_width(model)
        shrink = 2 * model.width * narrow if model.embedding.project is not None else 0
        self.slot_flops = 2 * narrow * model.vocab + shrink

    def forward(self, model: Transformer, states: States) -> tuple[Tensor, Tensor]:
        """What is multiplied to logits: (N, E) and the table (V, E)."""
        project = model.embedding.project
        last = states.last if project is None else states.last @ project.weight  # (N, D) @ (D, E)
        return last, token_table(model, states)

    def flops(self, slots: int) -> int:
        """Forward matrix products at so many slots."""
        return slots * self.slot_flops


class MaskedHead(nn.Module):
    """Parameters dense.*, norm.*, bias."""

    def __init__(self, settings: Settings, table: Tensor, activation: Activation) -> None:
        """A head over hidden states of a model with these settings and a token table (V, E)."""
        super().__init__()
        vocab, narrow = table.shape
        self.activation = ACTIVATIONS[activation]
        self.dense = nn.Linear(settings.width, narrow, bias=settings.bias)
        self.norm = Norm(narrow, settings.epsilon, settings.bias, settings.norm_kind)
        self.bias = nn.Parameter(torch.zeros(vocab))
        init_weights(self, key=draw_key(), deviation=settings.init_deviation, truncated=settings.init_truncated)

    def forward(self, last: Tensor) -> Tensor:
        """(M, D) -> (M, E), to be multiplied by the table."""
        return self.norm(self.activation(self.dense(last)))

    @classmethod
    def over(cls, model: Transformer, activation: Activation | None = None) -> Self:
        """The head of a model over its own token table."""
        return cls(model.settings, model.embedding.tokens.weight, activation or model.settings.activation)

    def flops(self, slots: int) -> int:
        """Forward matrix products at so many slots."""
        narrow, width = self.dense.weight.shape
        return 2 * slots * narrow * (width + len(self.bias))


def token_table(model: Transformer, states: States) -> Tensor:
    """(V, E) the table this forward pass used: under GPT-1's dropout it is not the stored one."""
    return model.embedding.tokens.weight if states.table is None else states.table

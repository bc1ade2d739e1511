"""A model and its objective as one module, and the loss of its terms.

Losses are sums; their counts are known on the host before the backward pass and are added up over all micro-batches and
ranks first, so neither accumulation nor the number of processes changes the gradient.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from etude.models.base import Model
from etude.objectives.base import Batch, Objective, Stat, Term


class Learner(nn.Module):
    """Model and objective as one module, so that one wrapper (DDP) sees every parameter."""

    def __init__(self, model: Model, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: Batch) -> dict[str, Term]:
        return self.objective.loss(self.model, batch)

    def metrics(self, batch: Batch) -> dict[str, Stat]:
        return self.objective.metrics(self.model, batch)


def total_loss(terms: dict[str, Term], totals: Mapping[str, float | Tensor]) -> Tensor:
    """Return Σ weight · sum / count, with the counts of the whole step."""
    parts = [term.weight * term.sum / _at_least_one(totals[name]) for name, term in terms.items()]
    return torch.stack([part.float() for part in parts]).sum()


def _at_least_one(total: float | Tensor) -> float | Tensor:
    """A term without a single label is 0, and stays 0."""
    return total.clamp(min=1.0) if isinstance(total, Tensor) else max(1.0, total)

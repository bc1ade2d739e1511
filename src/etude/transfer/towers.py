"""How a two-tower model is fine-tuned (Baevski et al. 2019, sections 5 and 6) [code].

mask      the combiner's is taken off: at every token it sees all states of both towers, whose own masks stay. A
          frozen model keeps it, since nothing would adapt to the change
dropout   inside the model it is off; the task has its own before its head
letters   vectors, convolutions and highways stay as they are; only the projection to the model's width learns
"""

from __future__ import annotations

from typing import Any

from torch import nn

from etude.errors import UserError
from etude.models.two_tower import TwoTower, Words
from etude.nn.combiner import Combiner, Mask

RATES = ("dropout", "attention_dropout", "inner_dropout")


def ready(model: Any, *, frozen: bool, mask: Mask | None, dropout: float | None, letters: bool | None) -> None:
    """Changes a model in place for its transfer; None stands for what suits it. Others than two towers stay."""
    if not isinstance(model, TwoTower):
        if mask is not None:
            raise UserError("transfer.mask is that of a two-tower model's combiner, and this model has none: drop it.")
        if dropout is not None:
            set_dropout(model, dropout)
        return
    if mask is not None and not isinstance(model.combiner, Combiner):
        raise UserError(f"transfer.mask={mask}, and this model has no attention to mask in its combiner: drop it.")
    model.mask = mask or ("full" if frozen else "none")
    set_dropout(model, dropout or 0.0)
    if isinstance(model.embedding, Words) and not letters:
        network = model.embedding.words.network
        network.requires_grad_(False)
        if network.project is not None:
            network.project.requires_grad_(True)


def set_dropout(model: nn.Module, rate: float) -> None:
    """One rate wherever the model drops anything."""
    places = [
        (part, name) for part in model.modules() for name in RATES if isinstance(getattr(part, name, None), float)
    ]
    if not places:
        raise UserError("transfer.dropout: the dropout of this kind of model cannot be changed here. Leave it out.")
    for part, name in places:
        setattr(part, name, rate)

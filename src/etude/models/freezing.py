"""Which parts of a model learn in a transfer.

freeze    the embedding and the lowest layers stay as they are, to the end
gradual   everything but the head is frozen at first; from above, one layer more thaws every so many epochs
          (Howard & Ruder 2018, ULMFiT, section 3.3: one an epoch), the embedding last
fresh     the highest layers, with the pooler, start from new values: what they learnt is the pre-training task,
          and small data cannot unlearn it (Zhang et al. 2021, "Revisiting few-sample BERT fine-tuning")
"""

from __future__ import annotations

import torch

from etude.errors import UserError
from etude.models.base import Model


def check_layers(model: Model, setting: str, layers: int) -> None:
    """Raises UserError where the model has fewer layers than a setting counts, or none at all."""
    if not model.base.layers:
        raise UserError(f"transfer.{setting} counts layers, and this model has none: leave it out.")
    if layers > model.base.layers:
        raise UserError(f"transfer.{setting}={layers}, and the model has {model.base.layers} layers.")


def freeze(model: Model, layers: int) -> None:
    """Excludes the embedding and so many layers above it from training."""
    check_layers(model, "freeze", layers)
    for name, parameter in model.base.named_parameters():
        depth = model.base.parameter_depth(name)
        if depth is not None and depth <= layers:
            parameter.requires_grad_(False)


def check_shared_layers(model: Model, layers: int) -> None:
    """Raises UserError where so many layers from below have no weights of their own to freeze."""
    depths = (model.base.parameter_depth(name) for name, _ in model.base.named_parameters())
    if layers and not any(depth is not None and 0 < depth <= layers for depth in depths):
        raise UserError(
            f"transfer.freeze={layers}: all layers of this model have the same weights, so none stays as it is alone. "
            f"Set it to 0 for the embedding, or to {model.base.layers} for all layers."
        )


def refresh(model: Model, layers: int) -> None:
    """Draws the highest layers and what lies above them anew, from torch's generator."""
    check_layers(model, "fresh", layers)
    base = model.base
    if base.shares_layers:
        raise UserError("transfer.fresh draws layers anew, and the layers of this model are one: leave it out.")
    drawn = dict(type(base)(base.settings).named_parameters())
    with torch.no_grad():
        for name, parameter in base.named_parameters():
            depth = base.parameter_depth(name)
            if depth is not None and depth > base.layers - layers:
                parameter.copy_(drawn[name])


def thaw(model: Model, depths: dict[str, int | None], layers: int) -> None:
    """Lets the highest so many layers learn, and what lies above them; others get no gradient, and no update.

    `depths` by names of `model.named_parameters`: parameters without one stay as they are.
    """
    lowest = model.base.layers - layers
    for name, parameter in model.named_parameters():
        depth = depths.get(name)
        if depth is not None:
            parameter.requires_grad_(depth > lowest)

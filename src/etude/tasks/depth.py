"""How deep the parameters of a model lie, and what a step costs when the lowest of them stay as they are.

A parameter's depth is 0 in the embedding, i + 1 in layer i, and beyond the last layer in what lies above it. A backward
pass is twice a forward pass and goes down to the lowest layer that learns; below it there is only the forward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from etude.models import transformer
from etude.tasks.framing import inner

Depths = Callable[[str], int | None]


def depths(model: Any) -> Depths | None:
    """How deep parameters lie, by their names in the loop; None where the model has no layers to tell."""
    own = inner(model)
    count = getattr(getattr(own, "settings", None), "layers", None)
    if count is None:
        return None
    of_model = transformer.depths(own.settings) if isinstance(own, transformer.Transformer) else _by_number(count)
    return lambda name: of_model(name.replace("model.wrapped.", "model.", 1))


def _by_number(layers: int) -> Depths:
    """For stacks whose layers are numbered in their names, such as `model.forwards.1.weight`."""

    def depth_of(name: str) -> int | None:
        words = name.split(".")
        if words[0] != "model" or words[1] == "embedding":
            return 0 if words[0] == "model" else layers + 1
        return next((int(word) + 1 for word in words if word.isdecimal()), layers + 1)

    return depth_of


def learning_share(model: Any) -> float:
    """The share of the layers that a backward pass goes through, counted as if all cost the same."""
    depth_of, own = depths(model), inner(model)
    if depth_of is None:
        return float(any(parameter.requires_grad for parameter in own.parameters()))
    layers = own.settings.layers
    found = (depth_of(f"model.{name}") for name, parameter in own.named_parameters() if parameter.requires_grad)
    lowest = min((depth for depth in found if depth is not None), default=layers + 1)
    if lowest <= layers and getattr(own.settings, "share", "none") != "none":
        return 1.0  # what all layers have in common learns in the first of them, too
    return 1 - max(0, lowest - 1) / layers


def training_flops(model: Any, lengths: np.ndarray) -> int:
    """Of a model in one training step over sequences of these lengths, forward and backward."""
    forward = model.flops(lengths)
    return int(forward) + round(2 * learning_share(model) * forward) if forward else 0

"""How deep the parameters of a model lie, and what a step costs when the lowest of them stay as they are.

A parameter's depth is 0 in the embedding, i + 1 in layer i, and beyond the last layer in what lies above it
(`Model.parameter_depth`). A backward pass is twice a forward pass and goes down to the lowest layer that learns; below
it there is only the forward pass.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from etude.models.base import Model

Depths = Callable[[str], int | None]


def learner_depths(model: Model, above: int = 1) -> Depths | None:
    """Depths by the names of a learner, `model.*` and `objective.*`; None where the model has no layers.

    The heads (`objective.*`) lie `above` the last of n layers: at n + 1 in ELECTRA's paper, at n + 2 in its code, which
    so decays the last layer twice.
    """
    if not model.layers:
        return None

    def depth_of(name: str) -> int | None:
        group, _, inside = name.partition(".")
        if group == "objective":
            return model.base.layers + above
        return model.parameter_depth(inside) if group == "model" else None

    return depth_of


def numbered_depth(name: str, layers: int) -> int:
    """For stacks whose layers are numbered in the names of their parameters, such as `forwards.1.weight`."""
    words = name.split(".")
    if words[0] in ("embedding", "backward_embedding"):  # TagLM's directions have words of their own
        return 0
    return next((int(word) + 1 for word in words if word.isdecimal()), layers + 1)


def learning_share(model: Model) -> float:
    """The share of the layers that a backward pass goes through, counted as if all cost the same."""
    base = model.base
    if not base.layers:
        return float(any(parameter.requires_grad for parameter in base.parameters()))
    depths = (base.parameter_depth(name) for name, parameter in base.named_parameters() if parameter.requires_grad)
    lowest = min((depth for depth in depths if depth is not None), default=base.layers + 1)
    if lowest <= base.layers and base.shares_layers:
        return 1.0  # what all layers have in common learns in the first of them, too
    return 1 - max(0, lowest - 1) / base.layers


def training_flops(model: Model, lengths: np.ndarray) -> int:
    """Of a model in one training step over sequences of these lengths, forward and backward."""
    forward = model.flops(lengths)
    return int(forward) + round(2 * learning_share(model) * forward) if forward else 0

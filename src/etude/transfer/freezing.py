"""Which parts of a model learn in a transfer, and when.

    freeze    the embedding and the lowest layers stay as they are, to the end
    gradual   everything but the head is frozen at first; from above, one layer more thaws every so many epochs
              (Howard & Ruder 2018, ULMFiT, section 3.3: one an epoch), the embedding last
    fresh     the highest layers, with the pooler, start from new values: what they learnt is the pre-training task,
              and small data cannot unlearn it (Zhang et al. 2021, "Revisiting few-sample BERT fine-tuning")

How deep a parameter lies is said by tasks/depth.py.
"""

from __future__ import annotations

from typing import Any

import torch

from etude.errors import UserError
from etude.tasks.depth import Depths, depths
from etude.tasks.framing import inner
from etude.train.loader import Step
from etude.train.loop import Loop


def layered(model: Any, setting: str, layers: int) -> Depths:
    """The depths of a model that has as many layers as the setting counts."""
    depth_of, own = depths(model), inner(model)
    if depth_of is None:
        raise UserError(f"transfer.{setting} counts layers, and this model has none: leave it out.")
    if layers > own.settings.layers:
        raise UserError(f"transfer.{setting}={layers}, and the model has {own.settings.layers} layers.")
    return depth_of


def check_gradual(model: Any, epochs: float) -> None:
    if epochs:
        layered(model, "gradual", 0)


def freeze(model: Any, layers: int | None) -> None:
    """Keeps the embedding and so many layers above it from training."""
    if layers is None:
        return
    depth_of = layered(model, "freeze", layers)
    for name, parameter in inner(model).named_parameters():
        depth = depth_of(f"model.{name}")
        if depth is not None and depth <= layers:
            parameter.requires_grad_(False)


def refresh(model: Any, layers: int) -> None:
    """Draws the highest layers and what lies above them anew, from torch's generator."""
    if not layers:
        return
    depth_of, own = layered(model, "fresh", layers), inner(model)
    if getattr(own.settings, "share", "none") != "none":
        raise UserError("transfer.fresh draws layers anew, and the layers of this model are one: leave it out.")
    drawn = dict(type(own)(own.settings).named_parameters())
    with torch.no_grad():
        for name, parameter in own.named_parameters():
            depth = depth_of(f"model.{name}")
            if depth is not None and depth > own.settings.layers - layers:
                parameter.copy_(drawn[name])


class ThawingLoop(Loop):
    """The loop, with layers that thaw from above as steps go by: which ones learn is a function of the step alone."""

    thaw_every = 0  # steps from one layer to the next; 0: all learn from the start

    def advance(self, step: Step) -> None:
        if self.thaw_every:
            thaw(self.model, self.thawing, step.number // self.thaw_every)
        super().advance(step)

    def thaw(self, every: int) -> None:
        """Called before `run`: what would learn at all, and how many steps from layer to layer."""
        depth_of = layered(self.model, "gradual", 0)
        self.thawing = {name: depth_of(name) for name, _ in self.named if name.startswith("model.")}
        self.thaw_every = every


def thaw(model: Any, depth_of: dict[str, int | None], layers: int) -> None:
    """Lets the highest so many layers learn, and what lies above them; others get no gradient, and no update."""
    count = inner(model).settings.layers
    for name, parameter in model.named_parameters():
        depth = depth_of.get(f"model.{name}")
        if depth is not None:
            parameter.requires_grad_(depth > count - layers)

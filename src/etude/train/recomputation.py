"""Which activations the backward pass computes again (`train.recompute`): none, those of attention, or all layers'."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from etude.errors import UserError
from etude.models.base import Model
from etude.nn.block import AttentionBranch
from etude.nn.cross_attention import CrossAttentionBranch
from etude.nn.recompute import Recomputable

Policy = Literal["none", "attention", "all"]


def set_recompute(models: Iterable[Model], policy: Policy) -> None:
    """Tell every layer of these models whether to compute its activations again; UserError where none can."""
    modules = {module for model in models for layer in model.layer_modules() for module in layer}
    selected = [module for module in modules if is_selected(module, policy)]
    if policy != "none" and not selected:
        part = "layers" if policy == "all" else "attention"
        raise UserError(
            f"train.recompute={policy}: this model has no {part} to compute again. Set train.recompute=none."
        )
    for module in modules:
        module.recompute = False
    for module in selected:
        module.recompute = True


def is_selected(module: Recomputable, policy: Policy) -> bool:
    """Whether a policy computes the activations of a module again."""
    return policy == "all" or (policy == "attention" and isinstance(module, (AttentionBranch, CrossAttentionBranch)))


def list_layers(models: Sequence[Model]) -> list[list[Recomputable]]:
    """Return the layers of all models of a learner."""
    return [layer for model in models for layer in model.layer_modules()]

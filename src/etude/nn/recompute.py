"""Activation checkpointing: a layer's activations are computed again in the backward pass (Chen et al. 2016).

A module that can do so derives from `Recomputable` and marks its `forward` with `recomputable`; where its `recompute`
is True, only its inputs are kept from the forward to the backward pass. The random numbers of dropout are those of the
first time, so that the result is the same, bit for bit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, Literal, ParamSpec, TypeVar

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

RecomputePolicy = Literal["none", "attention", "all"]  # which parts of the layers do so: `train.recompute`


class Recomputable(nn.Module):
    """A part of a layer whose activations may be computed again in the backward pass."""

    recompute = False


Part = TypeVar("Part", bound=Recomputable)
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def recomputable(
    forward: Callable[Concatenate[Part, Arguments], Result],
) -> Callable[Concatenate[Part, Arguments], Result]:
    """Decorate `forward` of a Recomputable, so that torch's checkpointing runs it where `recompute` is True."""

    @functools.wraps(forward)
    def call(part: Part, /, *args: Arguments.args, **options: Arguments.kwargs) -> Result:
        if not part.recompute or not torch.is_grad_enabled():
            return forward(part, *args, **options)
        result: Result = checkpoint(functools.partial(forward, part, **options), *args, use_reentrant=False)
        return result

    return call

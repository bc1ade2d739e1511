"""Chains of elementwise steps and reductions over large arrays, as one kernel where a GPU trains.

A softmax over a vocabulary reads its logits once to sum and once to write; done step by step it passes over memory
a dozen times. On a CUDA device such a function is compiled at its first call, for the shapes at hand (which are static:
design decision 1); elsewhere, inside a graph that is being compiled already, and under `plain()` it runs as written.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")

_disabled: list[bool] = []  # not empty: within plain()


@contextlib.contextmanager
def disable_fusion(enabled: bool = True) -> Iterator[None]:
    """Nothing is compiled here: for `train.compile=false`, and to compare with."""
    if not enabled:
        yield
        return
    _disabled.append(True)
    try:
        yield
    finally:
        _disabled.pop()


def is_fusion_disabled() -> bool:
    return bool(_disabled)


def fuse(function: Callable[..., Result]) -> Callable[..., Result]:
    """The first argument, a tensor, says where it runs."""
    compiled: list[Callable[..., Result]] = []

    @functools.wraps(function)
    def call(first: Tensor, *rest: object) -> Result:
        if not first.is_cuda or _disabled or torch.compiler.is_compiling():
            return function(first, *rest)
        if not compiled:
            compiled.append(torch.compile(function, dynamic=False))
        return compiled[0](first, *rest)

    return call

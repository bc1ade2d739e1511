"""Fusion of elementwise operations and reductions over large arrays into one kernel on a GPU.

A softmax over a vocabulary reads its logits once to sum and once to write; operation by operation it passes over memory
a dozen times. On a CUDA device such a function is compiled at its first call, for the given shapes (which are static:
design decision 1). Elsewhere, inside a graph that is being compiled, and under `disable_fusion()` it runs as written.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")

_disabled: list[bool] = []  # not empty: within disable_fusion()


@contextlib.contextmanager
def disable_fusion(enabled: bool = True) -> Iterator[None]:
    """Compile nothing inside this context: for `train.compile=false`, and for comparisons."""
    if not enabled:
        yield
        return
    _disabled.append(True)
    try:
        yield
    finally:
        _disabled.pop()


def fuse(function: Callable[..., Result]) -> Callable[..., Result]:
    """Decorate a function to be compiled on a GPU. Its first argument, a tensor, decides the device."""
    compiled: list[Callable[..., Result]] = []

    @functools.wraps(function)
    def call(first: Tensor, *rest: object) -> Result:
        if not first.is_cuda or _disabled or torch.compiler.is_compiling():
            return function(first, *rest)
        if not compiled:
            compiled.append(torch.compile(function, dynamic=False))
        return compiled[0](first, *rest)

    return call

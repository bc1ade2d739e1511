"""Launches of Triton kernels that are watched, or compiled for a GPU that is not there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


class Watched:
    """A kernel whose launches are another function's."""

    def __init__(self, launch: Callable[..., None]) -> None:
        self.launch = launch

    def __getitem__(self, grid: Any) -> Any:
        return partial(self.launch, grid)


def compile_launches(
    module: ModuleType, names: Sequence[str], monkeypatch: pytest.MonkeyPatch, cache: Path
) -> dict[str, set[str]]:
    """Let launches of these kernels compile them down to the machine code of a Hopper GPU, and run nothing.

    The interpreter knows no types, and a CPU has no other way to see that a kernel is one. Returns which variants each
    kernel has been compiled to so far. `cache`: the folder of what Triton has compiled, named by source and compiler.
    """
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    class Hopper:
        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", 90, 32)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int) -> int:
            return 0

    variants: dict[str, set[str]] = {name: set() for name in names}

    def compile_only(kernel: Any, name: str) -> Watched:
        def launch(grid: Any, *args: Any, **options: Any) -> None:
            compiled = kernel.warmup(*args, grid=grid, **options)
            assert compiled.asm["cubin"]
            variants[name].add(compiled.hash)

        return Watched(launch)

    driver.set_active(Hopper())
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    for name in names:
        monkeypatch.setattr(module, name, compile_only(getattr(module, name), name))
    return variants

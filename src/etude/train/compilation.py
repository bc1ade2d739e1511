"""Options of `torch.compile`, and the report of how long compiling took and where its result is cached.

Compiling takes a minute or so of a run's first step on a GPU. torch caches compiled kernels in a folder, under a hash
of what they were compiled from, and the next run of the same model on the same machine reads them from there.
TORCHINDUCTOR_CACHE_DIR moves the cache, for example to a disk that outlives /tmp.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from etude.train.progress import Progress

T = TypeVar("T")

# Versions of a function that torch compiles, for all runs of a process: each run has one for training and one for
# evaluation, ELECTRA twice as many. Beyond torch's 8 a model is silently trained as it is written, at half the speed.
MAX_VERSIONS = 128


def report_first_step(steps: Generator[T, None, None], progress: Progress) -> Generator[T, None, None]:
    """Pass steps on; when the second is requested the first is done, and its duration is reported."""
    with contextlib.closing(steps):
        for number, step in enumerate(steps):
            started = time.perf_counter()
            yield step
            if number == 0:
                progress.print(describe(time.perf_counter() - started))


def describe(seconds: float) -> str:
    """Say how long the first step took and what the cache gave and got."""
    hits, misses, bypasses = count_graphs()
    parts = [f"{hits} graphs read from {cache_folder()}"] if hits else []
    parts += [f"{misses} compiled and cached in {cache_folder()} for the next run"] if misses else []
    parts += [f"{bypasses} compiled that torch cannot cache"] if bypasses else []
    return f"compiled: first step after {seconds:.0f} s" + "".join(f"; {part}" for part in parts)


def count_graphs() -> tuple[int, int, int]:
    """Return how many graphs this process read from the cache, compiled and cached, compiled and could not cache."""
    from torch._dynamo.utils import counters  # already imported wherever something was compiled

    inductor = counters["inductor"]
    return inductor["fxgraph_cache_hit"], inductor["fxgraph_cache_miss"], inductor["fxgraph_cache_bypass"]


def cache_folder() -> Path:
    """Return the folder of torch's cache of compiled kernels."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Path(cache_dir())


def raise_version_limit() -> None:
    """Let torch compile every run of a process, however many there are."""
    from torch._dynamo import config  # imports the compiler, which takes seconds

    config.recompile_limit = max(config.recompile_limit, MAX_VERSIONS)
    config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, 8 * MAX_VERSIONS)


def compile_forwards(modules: Iterable[nn.Module], device: torch.device) -> None:
    """Compile what each module computes, but not its hooks, which gather and free weights in shards."""
    options = compile_options(device, cuda_graphs=False)
    for module in modules:
        if "forward" not in vars(module):  # a shared one is listed several times
            module.forward = torch.compile(module.forward, dynamic=False, options=options)  # type: ignore[arg-type]


def compile_options(device: torch.device, cuda_graphs: bool) -> dict[str, object]:
    """Return the `options` of `torch.compile`; with `cuda_graphs`, kernels are recorded once and replayed."""
    if device.type != "cuda":
        return {}
    from etude.train.casts import CastPass  # imports the compiler, which takes seconds

    # graphs of the compiler's own remember the addresses of one run's weights: those are not shared
    cast_pass = CastPass() if cuda_graphs else _shared_pass()
    return {"triton.cudagraphs": cuda_graphs, "post_grad_custom_post_pass": cast_pass}


@functools.cache
def _shared_pass() -> object:
    """Return the one pass of this process: runs with equal options share what was compiled."""
    from etude.train.casts import CastPass

    return CastPass()

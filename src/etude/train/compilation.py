"""Compiling takes a minute or so of a run's first step on a GPU. It is told, and so is where its result is kept.

torch keeps compiled kernels in a folder, under a hash of what they were made from, and the next run of the same model
on the same machine takes them from there. TORCHINDUCTOR_CACHE_DIR moves it, for example to a disk that outlives /tmp.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, TypeVar

import torch

from etude.train.progress import Progress

One = TypeVar("One")


def report_first_step(steps: Generator[One, None, None], progress: Progress) -> Generator[One, None, None]:
    """Passes steps on. When the second is asked for, the first is done: so long compiling took, which is then said."""
    with contextlib.closing(steps):
        for number, step in enumerate(steps):
            begun = time.perf_counter()
            yield step
            if number == 0:
                progress.print(describe(time.perf_counter() - begun))


def describe(seconds: float) -> str:
    found, made, lost = count_graphs()
    parts = [f"{found} graphs found in {cache_folder()}"] if found else []
    parts += [f"{made} made and kept in {cache_folder()} for the next run"] if made else []
    parts += [f"{lost} made that torch cannot keep"] if lost else []
    return f"compiled: first step after {seconds:.0f} s" + "".join(f"; {part}" for part in parts)


def count_graphs() -> tuple[int, int, int]:
    """Of this process: how many graphs were found in the folder, made and kept there, made and not kept."""
    from torch._dynamo.utils import counters  # the compiler is there already where this is asked

    inductor = counters["inductor"]
    return inductor["fxgraph_cache_hit"], inductor["fxgraph_cache_miss"], inductor["fxgraph_cache_bypass"]


def cache_folder() -> Path:
    """Where torch keeps what it compiled."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Path(cache_dir())


def compile_options(device: torch.device, replays: bool) -> dict[str, Any]:
    """What `torch.compile` is told; with `replays`, to record kernels once and to replay them (CUDA graphs)."""
    if device.type != "cuda":
        return {}
    from etude.train.casts import Casts  # brings the compiler along, which takes seconds to import

    return {"triton.cudagraphs": replays, "post_grad_custom_post_pass": Casts()}

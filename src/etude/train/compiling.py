"""Compiling takes a minute or so of a run's first step on a GPU. It is told, and so is where its result is kept.

torch keeps compiled kernels in a folder, under a hash of what they were made from, and the next run of the same model
on the same machine takes them from there. TORCHINDUCTOR_CACHE_DIR moves it, for example to a disk that outlives /tmp.

Mixed precision computes the gradient of a weight in half precision and then widens it: two kernels, and a rounding that
nobody asked for. cuBLAS writes float32 as fast. `widen` has it do so, in all compiled graphs of a run.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, TypeVar

import torch

from etude.train.progress import Progress

One = TypeVar("One")


def told(steps: Generator[One, None, None], progress: Progress) -> Generator[One, None, None]:
    """Passes steps on. When the second is asked for, the first is done: so long compiling took, which is then said."""
    with contextlib.closing(steps):
        for number, step in enumerate(steps):
            begun = time.perf_counter()
            yield step
            if number == 0:
                progress.say(sentence(time.perf_counter() - begun))


def sentence(seconds: float) -> str:
    found, made, lost = graphs()
    parts = [f"{found} graphs found in {folder()}"] if found else []
    parts += [f"{made} made and kept in {folder()} for the next run"] if made else []
    parts += [f"{lost} made that torch cannot keep"] if lost else []
    return f"compiled: first step after {seconds:.0f} s" + "".join(f"; {part}" for part in parts)


def graphs() -> tuple[int, int, int]:
    """Of this process: how many graphs were found in the folder, made and kept there, made and not kept."""
    from torch._dynamo.utils import counters  # the compiler is there already where this is asked

    inductor = counters["inductor"]
    return inductor["fxgraph_cache_hit"], inductor["fxgraph_cache_miss"], inductor["fxgraph_cache_bypass"]


def folder() -> Path:
    """Where torch keeps what it compiled."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Path(cache_dir())


def options(device: torch.device, replays: bool) -> dict[str, Any]:
    """What `torch.compile` is told; with `replays`, to record kernels once and to replay them (CUDA graphs)."""
    if device.type != "cuda":
        return {}
    return {"triton.cudagraphs": replays, "post_grad_custom_post_pass": _widening()}


@functools.cache
def _widening() -> Any:
    """`widen` as torch wants it. Made only where it is used: the compiler takes seconds to import."""
    from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

    class Widening(CustomGraphPass):
        def __call__(self, graph: torch.fx.Graph) -> None:
            widen(graph)

        def uuid(self) -> Any:  # of what it does, for the folder of compiled kernels
            return get_hash_for_files((__file__,))

    return Widening()


def widen(graph: torch.fx.Graph) -> None:
    """Products in half precision that are widened to leave the graph come out in float32 right away."""
    product = torch.ops.aten.mm
    for widened in graph.find_nodes(op="call_function", target=torch.ops.prims.convert_element_type.default):
        narrow, dtype = widened.args
        if dtype != torch.float32 or narrow.target != product.default or len(narrow.users) > 1:
            continue
        value = narrow.meta["val"]
        leaves = all(user.op == "output" for user in widened.users)
        if leaves and value.device.type == "cuda" and value.dtype in (torch.bfloat16, torch.float16):
            with graph.inserting_before(widened):
                wide = graph.call_function(product.dtype, (*narrow.args, dtype))
            wide.meta.update(widened.meta)
            widened.replace_all_uses_with(wide)
            graph.erase_node(widened)
            graph.erase_node(narrow)

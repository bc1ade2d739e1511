"""Casts of mixed precision in a compiled model on a GPU: a hundred small kernels a step that need not be.

    join     every weight is cast for its product by a kernel of its own: one operator casts them all
    widen    the gradient of a weight is computed in half precision and then widened: cuBLAS writes float32 as fast, and
             a rounding that nobody asked for is gone

Both work on the graph that torch's compiler is about to turn into kernels. `train/compilation.py` alone imports this
file, and only where a model is compiled for a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import getitem
from typing import Any

import torch
from torch import Tensor
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node
from torch.library import custom_op

_CAST, _PRODUCT = torch.ops.prims.convert_element_type.default, torch.ops.aten.mm
_TURNS = (torch.ops.aten.permute.default, torch.ops.aten.t.default)
# what a compiler takes a tensor for that lies in memory; in all else it casts on the way
_READERS = (_PRODUCT.default, torch.ops.aten.addmm.default)
_HALF = (torch.bfloat16, torch.float16)


class Casts(CustomGraphPass):
    """As torch wants it, to be its `post_grad_custom_post_pass`."""

    def __call__(self, graph: Graph) -> None:
        join(graph)
        widen(graph)

    def uuid(self) -> Any:  # of what it does, for the folder of compiled kernels
        return get_hash_for_files((__file__,))


@custom_op("etude::narrowed", mutates_args={})
def narrowed(tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """All of them in another precision, on a GPU by as few kernels as their addresses fit into."""
    results = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    torch._foreach_copy_(results, tensors)
    return results


@narrowed.register_fake
def _(tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    return [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]


def join(graph: Graph) -> None:
    """Casts to half precision of what a graph is given, for its products, become one operator."""
    found = [
        cast
        for cast in graph.find_nodes(op="call_function", target=_CAST)
        if cast.args[0].op == "placeholder"
        and cast.args[1] in _HALF
        and cast.args[0].meta["val"].dtype == torch.float32
        and any(reader.target in _READERS for reader in _readers(cast))
    ]
    for dtype in _HALF:
        casts = [cast for cast in found if cast.args[1] == dtype]
        if len(casts) < 2:
            continue
        with graph.inserting_before(casts[0]):
            joined = graph.call_function(narrowed._opoverload, ([cast.args[0] for cast in casts], dtype))
            joined.meta["val"] = [cast.meta["val"] for cast in casts]
            for number, cast in enumerate(casts):
                one = graph.call_function(getitem, (joined, number))
                one.meta.update(cast.meta)
                cast.replace_all_uses_with(one)
        for cast in casts:
            graph.erase_node(cast)


def _readers(node: Node) -> Iterator[Node]:
    """Who uses it, also turned."""
    for user in node.users:
        if user.target in _TURNS:
            yield from _readers(user)
        else:
            yield user


def widen(graph: Graph) -> None:
    """Products in half precision that are widened to leave the graph come out in float32 right away."""
    for widened in graph.find_nodes(op="call_function", target=_CAST):
        narrow, dtype = widened.args
        if dtype != torch.float32 or narrow.target != _PRODUCT.default or len(narrow.users) > 1:
            continue
        value = narrow.meta["val"]
        leaves = all(user.op == "output" for user in widened.users)
        if leaves and value.device.type == "cuda" and value.dtype in _HALF:  # a CPU has no such product
            with graph.inserting_before(widened):
                wide = graph.call_function(_PRODUCT.dtype, (*narrow.args, dtype))
            wide.meta.update(widened.meta)
            widened.replace_all_uses_with(wide)
            graph.erase_node(widened)
            graph.erase_node(narrow)

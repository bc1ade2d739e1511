"""Graph passes for the casts of mixed precision in a model compiled for a GPU.

    merge_casts     every weight is cast for its matrix product by a kernel of its own: one operator casts them all
    widen_products  the gradient of a weight is computed in half precision and then cast to float32: cuBLAS writes
                    float32 as fast, and one rounding less is made

A hundred small kernels a step are saved. Both passes work on the graph that torch's compiler is about to lower. Only
`train/compilation.py` imports this file, and only where a model is compiled for a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import getitem

import torch
from torch import Tensor
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node
from torch.library import custom_op

_CAST, _MATMUL = torch.ops.prims.convert_element_type.default, torch.ops.aten.mm
_SLICE = torch.ops.aten.slice.Tensor
_TRANSPOSES = (torch.ops.aten.permute.default, torch.ops.aten.t.default)
# operators whose operands the compiler materialises; elsewhere it fuses the cast
_MATMULS = (_MATMUL.default, torch.ops.aten.addmm.default)
_HALF = (torch.bfloat16, torch.float16)


class CastPass(CustomGraphPass):
    """Both passes in the form that `post_grad_custom_post_pass` takes."""

    def __call__(self, graph: Graph) -> None:
        merge_casts(graph)
        widen_products(graph)

    def uuid(self) -> bytes:
        """Identify this code, for the cache of compiled kernels."""
        return get_hash_for_files((__file__,))


@custom_op("etude::cast_all", mutates_args={})
def cast_all(tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Cast all tensors, on a GPU by as few kernels as their addresses fit into."""
    results = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    torch._foreach_copy_(results, tensors)
    return results


@cast_all.register_fake
def _(tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    return [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]


def merge_casts(graph: Graph) -> None:
    """Replace the casts of a graph's inputs to half precision for matrix products by one operator."""
    candidates = [
        cast
        for cast in graph.find_nodes(op="call_function", target=_CAST)
        if cast.args[0].op == "placeholder"
        and cast.args[1] in _HALF
        and cast.args[0].meta["val"].dtype == torch.float32
        and any(user.target in _MATMULS for user in _users(cast))
    ]
    for dtype in _HALF:
        casts = [cast for cast in candidates if cast.args[1] == dtype]
        if len(casts) < 2:
            continue
        with graph.inserting_before(casts[0]):
            merged = graph.call_function(cast_all._opoverload, ([cast.args[0] for cast in casts], dtype))
            merged.meta["val"] = [cast.meta["val"] for cast in casts]
            for number, cast in enumerate(casts):
                result = graph.call_function(getitem, (merged, number))
                result.meta.update(cast.meta)
                cast.replace_all_uses_with(result)
        for cast in casts:
            graph.erase_node(cast)


def _users(node: Node) -> Iterator[Node]:
    """Yield the users of a node, looking through transposes."""
    for user in node.users:
        if user.target in _TRANSPOSES:
            yield from _users(user)
        else:
            yield user


def _readers(node: Node) -> Iterator[Node]:
    """Yield the users of a node, looking through slices: the parts of a gradient of weights that were joined."""
    for user in node.users:
        if user.target == _SLICE:
            yield from _readers(user)
        else:
            yield user


def widen_products(graph: Graph) -> None:
    """Let half-precision products that are cast to float32 and then returned write float32 directly."""
    for cast in graph.find_nodes(op="call_function", target=_CAST):
        product, dtype = cast.args
        if dtype != torch.float32 or product.target != _MATMUL.default or len(product.users) > 1:
            continue
        value = product.meta["val"]
        is_output = all(user.op == "output" for user in _readers(cast))
        if is_output and value.device.type == "cuda" and value.dtype in _HALF:  # a CPU has no such product
            with graph.inserting_before(cast):
                wide = graph.call_function(_MATMUL.dtype, (*product.args, dtype))
            wide.meta.update(cast.meta)
            cast.replace_all_uses_with(wide)
            graph.erase_node(cast)
            graph.erase_node(product)

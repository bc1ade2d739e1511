"""Casts in graphs: what is joined, what comes out wide, and that results are the same."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule

from etude.train import casts

CAST, ATEN = torch.ops.prims.convert_element_type.default, torch.ops.aten


def graph_of(device: str, dtype: torch.dtype) -> torch.fx.Graph:
    """Two products of which one is widened and leaves; of the other something else is made first."""
    graph = torch.fx.Graph()
    with FakeTensorMode():
        narrow, wide = (torch.empty(4, 4, device=device, dtype=kind) for kind in (dtype, torch.float32))
    given = graph.placeholder("given")
    leaving, staying = (graph.call_function(ATEN.mm.default, (given, given)) for _ in range(2))
    widened = [graph.call_function(CAST, (one, torch.float32)) for one in (leaving, staying)]
    graph.output((widened[0], graph.call_function(ATEN.mul.Tensor, (widened[1], 2.0))))
    for node in graph.nodes:
        node.meta["val"] = wide if node in widened else narrow
    return graph


@pytest.mark.parametrize("device, dtype", [("cuda", torch.bfloat16), ("cuda", torch.float16), ("cpu", torch.bfloat16)])
def test_a_product_that_is_widened_to_leave_comes_out_wide(device: str, dtype: torch.dtype) -> None:
    graph = graph_of(device, dtype)
    casts.widen_products(graph)
    graph.lint()
    names = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    wide = names.count("aten.mm.dtype")
    assert wide == (device == "cuda")  # a CPU has no such product
    assert names.count("aten.mm.default") == 2 - wide == names.count("prims.convert_element_type.default")
    first = next(node for node in graph.nodes if node.op == "output").args[0][0]
    assert first.meta["val"].dtype == torch.float32
    assert not wide or first.args[2] == torch.float32


@pytest.mark.parametrize("leaves", [True, False])
def test_parts_of_a_product_come_out_wide_if_all_of_them_leave(leaves: bool) -> None:
    """The gradients of weights that were joined for one product."""
    graph = torch.fx.Graph()
    with FakeTensorMode():
        narrow, wide = (torch.empty(4, 4, device="cuda", dtype=kind) for kind in (torch.bfloat16, torch.float32))
    given = graph.placeholder("given")
    product = graph.call_function(ATEN.mm.default, (given, given))
    widened = graph.call_function(CAST, (product, torch.float32))
    parts = [graph.call_function(ATEN.slice.Tensor, (widened, 0, start, start + 2)) for start in (0, 2)]
    last = parts[1] if leaves else graph.call_function(ATEN.mul.Tensor, (parts[1], 2.0))
    graph.output((parts[0], last))
    for node in graph.nodes:
        node.meta["val"] = narrow if node in (given, product) else wide
    casts.widen_products(graph)
    graph.lint()
    names = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    assert names.count("aten.mm.dtype") == leaves
    assert names.count("prims.convert_element_type.default") == (not leaves)


def weights_and_products(dtype: torch.dtype) -> tuple[torch.fx.Graph, list[torch.Tensor]]:
    """x @ a.T, x @ b and c + x @ a.T, of which a, b and c are cast; d is cast for a sum, which casts on the way."""
    graph, draw = torch.fx.Graph(), torch.Generator().manual_seed(0)
    values = [torch.randn(4, 4, generator=draw) for _ in range(5)]
    x, a, b, c, d = (graph.placeholder(name) for name in "xabcd")
    narrow = [graph.call_function(CAST, (one, dtype)) for one in (a, b, c, d)]
    turned = graph.call_function(ATEN.permute.default, (narrow[0], [1, 0]))
    summed = graph.call_function(ATEN.add.Tensor, (narrow[3], 1.0))
    results = (
        graph.call_function(ATEN.mm.default, (x, turned)),
        graph.call_function(ATEN.mm.default, (x, narrow[1])),
        graph.call_function(ATEN.addmm.default, (narrow[2], x, turned)),
        summed,
    )
    graph.output(results)
    for node, value in zip((x, a, b, c, d), values, strict=True):
        node.meta["val"] = value
    for node in narrow:
        node.meta["val"] = values[0].to(dtype)
    values[0] = values[0].to(dtype)
    return graph, values


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_are_cast_by_one_operator(dtype: torch.dtype) -> None:
    graph, values = weights_and_products(dtype)
    before = GraphModule({}, weights_and_products(dtype)[0])(*values)
    casts.merge_casts(graph)
    graph.lint()
    names = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    assert names.count("etude.cast_all.default") == 1
    assert names.count("prims.convert_element_type.default") == 1  # the one that a sum does on the way
    joined = next(node for node in graph.nodes if str(node.target) == "etude.cast_all.default")
    assert [one.name for one in joined.args[0]] == ["a", "b", "c"]
    after = GraphModule({}, graph)(*values)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_a_single_cast_stays() -> None:
    graph = torch.fx.Graph()
    x, a = graph.placeholder("x"), graph.placeholder("a")
    narrow = graph.call_function(CAST, (a, torch.bfloat16))
    graph.output(graph.call_function(ATEN.mm.default, (x, narrow)))
    a.meta["val"] = torch.empty(2, 2)
    casts.merge_casts(graph)
    assert [str(node.target) for node in graph.nodes][2] == "prims.convert_element_type.default"

"""Compiling is told: how long the first step took, what was found in the cache and what was put there."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from etude.train import compiling
from etude.train.progress import Progress


class Spoken(Progress):
    """Keeps what is said, and draws nothing."""

    def __init__(self) -> None:
        super().__init__(3, quiet=True, stream=io.StringIO())
        self.lines: list[str] = []

    def say(self, message: str) -> None:
        self.lines.append(message)


def test_the_first_step_is_told_once_it_is_over_and_nothing_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "sentence", lambda seconds: f"took {seconds:.0f}")
    progress, closed = Spoken(), []

    def numbers() -> Iterator[int]:
        try:
            yield from range(5)
        finally:
            closed.append(True)

    steps = compiling.told(numbers(), progress)  # type: ignore[arg-type]
    assert next(steps) == 0 and progress.lines == []  # not before it is done
    assert [next(steps), next(steps)] == [1, 2]
    assert progress.lines == ["took 0"]
    steps.close()
    assert closed == [True]  # what builds batches is given back


def test_what_the_cache_did_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "folder", lambda: "/kept")
    for counts, said in {
        (3, 0, 0): "; 3 graphs found in /kept",
        (0, 2, 0): "; 2 made and kept in /kept for the next run",
        (0, 0, 1): "; 1 made that torch cannot keep",
        (0, 0, 0): "",
    }.items():
        monkeypatch.setattr(compiling, "graphs", lambda counts=counts: counts)
        assert compiling.sentence(12.4) == f"compiled: first step after 12 s{said}"


def test_torch_counts_what_it_finds_and_keeps() -> None:
    """The names of its counters and of its folder are those of the torch at hand."""
    from torch._dynamo.utils import counters

    before = compiling.graphs()
    counters["inductor"]["fxgraph_cache_hit"] += 2
    counters["inductor"]["fxgraph_cache_miss"] += 1
    try:
        assert [after - one for after, one in zip(compiling.graphs(), before, strict=True)] == [2, 1, 0]
    finally:
        counters["inductor"]["fxgraph_cache_hit"] -= 2
        counters["inductor"]["fxgraph_cache_miss"] -= 1
    assert compiling.folder().name.startswith("torchinductor") or compiling.folder().is_dir()


def graph_of(device: str, dtype: torch.dtype) -> torch.fx.Graph:
    """Two products of which one is widened and leaves; of the other something else is made first."""
    aten, graph = torch.ops.aten, torch.fx.Graph()
    with FakeTensorMode():
        narrow, wide = (torch.empty(4, 4, device=device, dtype=kind) for kind in (dtype, torch.float32))
    given = graph.placeholder("given")
    leaving, staying = (graph.call_function(aten.mm.default, (given, given)) for _ in range(2))
    widened = [
        graph.call_function(torch.ops.prims.convert_element_type.default, (one, torch.float32))
        for one in (leaving, staying)
    ]
    graph.output((widened[0], graph.call_function(aten.mul.Tensor, (widened[1], 2.0))))
    for node in graph.nodes:
        node.meta["val"] = wide if node in widened else narrow
    return graph


@pytest.mark.parametrize("device, dtype", [("cuda", torch.bfloat16), ("cuda", torch.float16), ("cpu", torch.bfloat16)])
def test_a_product_that_is_widened_to_leave_comes_out_wide(device: str, dtype: torch.dtype) -> None:
    graph = graph_of(device, dtype)
    compiling.widen(graph)
    graph.lint()
    names = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    wide = names.count("aten.mm.dtype")
    assert wide == (device == "cuda")  # a CPU has no such product
    assert names.count("aten.mm.default") == 2 - wide == names.count("prims.convert_element_type.default")
    first = next(node for node in graph.nodes if node.op == "output").args[0][0]
    assert first.meta["val"].dtype == torch.float32
    assert not wide or first.args[2] == torch.float32


def test_what_a_gpu_compiles_with_is_known_to_the_cache() -> None:
    assert compiling.options(torch.device("cpu"), False) == {}
    told = compiling.options(torch.device("cuda"), True)
    assert told["triton.cudagraphs"] is True and told["post_grad_custom_post_pass"].uuid() is not None
    assert compiling.options(torch.device("cuda"), False)["triton.cudagraphs"] is False

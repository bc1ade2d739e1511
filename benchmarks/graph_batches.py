"""Schema graphs in a batch: plain index_add against PyTorch Geometric, packing and convolution apart.

    python benchmarks/graph_batches.py [--device cuda] [--questions 50] [--repeats 30]

Units are schema graphs of random questions over a random graph with as many neighbours a concept as CN-100K has. Packed
are all units of a batch of questions with five answers: by `pack_graphs` (flat arrays, one concatenation each), and by
`torch_geometric.data.Batch` from a list of Data with the same nodes, edges, pairs and paths. Then two layers of the sum
convolution run forward and backward over the same batch with the same weights: `SumConvolution` (product, then
index_add) and torch_geometric's SimpleConv (sum, then product). Outputs and gradients are compared first. Without
torch_geometric, ours are timed alone. Exit code 1 where ours is the slower engine in packing and convolution together.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from etude.extras import is_installed
from etude.graph.concept_graph import build_concept_graph
from etude.graph.graph import Graph
from etude.graph.paths import PathSearch
from etude.graph.schema_graphs import SchemaBuilder, SchemaGraph
from etude.nn.packed_graphs import PackedGraphs, pack_graphs
from etude.nn.schema_network import SumConvolution
from etude.runs.model_card import describe_hardware, describe_versions

ANSWERS, WIDTHS = 5, (100, 50, 25)


def draw_units(questions: int, concepts: int = 4000, edges: int = 40_000) -> tuple[list[SchemaGraph], int]:
    """Schema graphs of random questions of five concepts and answers of two, over a random graph."""
    draw = np.random.default_rng(0)
    triples = draw.integers(0, [concepts, 17, concepts], (edges, 3))
    names = [f"c{number}" for number in range(concepts)]
    graph = build_concept_graph(Graph.from_triples(triples, names, [f"r{number}" for number in range(17)]))
    texts = []
    for _ in range(questions):
        question = " ".join(draw.choice(names, 5))
        texts += [(question, " ".join(draw.choice(names, 2))) for _ in range(ANSWERS)]
    return SchemaBuilder(graph, PathSearch(graph, 3, 100)).build(texts), concepts


def pack_geometric(units: list[SchemaGraph]) -> object:
    """The same units as a batch of torch_geometric, whose increments renumber pairs and paths."""
    from torch_geometric.data import Batch, Data

    class Unit(Data):
        def __inc__(self, key: str, value: object, *rest: object, **options: object) -> object:
            if key == "path_pairs":
                return len(self.pairs)
            return self.num_nodes if key in ("pairs", "path_nodes") else super().__inc__(key, value, *rest, **options)

    def convert(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array.astype(np.int64))

    data = [
        Unit(
            x=convert(unit.concepts), edge_index=convert(unit.edges).T.contiguous(), pairs=convert(unit.pairs),
            path_nodes=convert(unit.path_nodes), path_relations=convert(unit.path_relations),
            path_pairs=convert(unit.path_pairs), num_nodes=len(unit.concepts),
        )
        for unit in units
    ]  # fmt: skip
    return Batch.from_data_list(data)


class GeometricLayer(nn.Module):
    """The convolution as torch_geometric would write it: sum over neighbours, then a linear layer."""

    def __init__(self, own: SumConvolution) -> None:
        super().__init__()
        from torch_geometric.nn import SimpleConv

        self.sum, self.own = SimpleConv(aggr="sum"), own

    def forward(self, hidden: Tensor, edges: Tensor) -> Tensor:
        return torch.relu(nn.functional.linear(self.sum(hidden, edges), self.own.linear.weight, self.own.bias))


def median_ms(work: Callable[[], object], device: str, repeats: int) -> float:
    """The median time of one call after five calls, in milliseconds."""
    times = []
    for number in range(repeats + 5):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        if number >= 5:
            times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--questions", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    print(describe_hardware(), describe_versions(), sep="\n")
    units, concepts = draw_units(options.questions)
    packed = pack_graphs(units, 34).to(options.device)
    print(f"{len(units)} units: {packed.nodes} nodes, {len(packed.edge_sources)} edges, {packed.paths} paths")
    torch.manual_seed(0)
    table = nn.Embedding(concepts, WIDTHS[0]).to(options.device)
    layers = [SumConvolution(*sizes).to(options.device) for sizes in ((WIDTHS[0], WIDTHS[1]), (WIDTHS[1], WIDTHS[2]))]

    def convolve(graphs: PackedGraphs) -> Tensor:
        hidden = table(graphs.concepts)
        for layer in layers:
            hidden = layer(hidden, graphs.edge_sources, graphs.edge_targets)
        return hidden

    def step(forward: Callable[[], Tensor]) -> Tensor:
        table.zero_grad()
        forward().square().sum().backward()
        assert table.weight.grad is not None
        return table.weight.grad.clone()

    ours = (
        median_ms(lambda: pack_graphs(units, 34), "cpu", options.repeats),
        median_ms(lambda: step(lambda: convolve(packed)), options.device, options.repeats),
    )
    print(f"index_add            pack {ours[0]:8.2f} ms   convolve {ours[1]:8.2f} ms")
    if not is_installed("torch_geometric"):
        print("torch_geometric is not installed: nothing to compare with.")
        return 0
    batch = pack_geometric(units).to(options.device)  # type: ignore[attr-defined]
    peers = [GeometricLayer(layer) for layer in layers]

    def convolve_peer() -> Tensor:
        hidden = table(batch.x)
        for peer in peers:
            hidden = peer(hidden, batch.edge_index)
        return hidden

    torch.testing.assert_close(convolve(packed), convolve_peer(), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(step(lambda: convolve(packed)), step(convolve_peer), rtol=1e-2, atol=1e-2)
    theirs = (
        median_ms(lambda: pack_geometric(units), "cpu", options.repeats),
        median_ms(lambda: step(convolve_peer), options.device, options.repeats),
    )
    print(f"torch_geometric      pack {theirs[0]:8.2f} ms   convolve {theirs[1]:8.2f} ms")
    print(f"torch_geometric / index_add: pack {theirs[0] / ours[0]:.2f}, convolve {theirs[1] / ours[1]:.2f}")
    return int(sum(theirs) < sum(ours))


if __name__ == "__main__":
    sys.exit(main())

"""The network over schema graphs against dense formulas, its segments, and what it costs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from etude.graph.schema_graphs import SchemaGraph
from etude.nn.packed_graphs import pack_graphs
from etude.nn.path_counts import PathCounts, count_paths
from etude.nn.schema_network import SchemaNetwork
from etude.nn.segments import segment_softmax, segment_sum
from tests.graph.test_schema_graphs import random_builder, random_texts

RELATIONS = 8  # four classes, both ways


@pytest.fixture(scope="module")
def graphs() -> list[SchemaGraph]:
    """Random schema graphs, two of them without a pair."""
    graphs = random_builder().build([*random_texts(6), ("nothing", "known"), ("wak", "wak")])
    assert sum(len(graph.pairs) == 0 for graph in graphs) >= 2 and max(len(graph.path_pairs) for graph in graphs) > 3
    return graphs


def network(seed: int = 0) -> SchemaNetwork:
    torch.manual_seed(seed)
    sizes = {"concept_width": 6, "relation_width": 4, "graph_widths": (5, 3), "hidden": 7}
    return SchemaNetwork(64, RELATIONS, 9, **sizes).double()  # type: ignore[arg-type]


def dense(net: SchemaNetwork, graph: SchemaGraph, statement: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One unit by the formulas, with an adjacency matrix and loops: g, beta, alpha."""
    table = net.concepts.weight[torch.from_numpy(graph.concepts.astype(np.int64))]
    adjacency = torch.zeros(len(table), len(table), dtype=torch.float64)
    for source, target in graph.edges:
        adjacency[target, source] = 1
    hidden = table
    for layer in net.convolutions:
        hidden = F.relu(adjacency @ hidden @ layer.linear.weight.T + layer.bias)  # type: ignore[union-attr,operator]
    nodes = torch.cat([table, hidden], 1)
    first, second = net.pair_layers
    pairs, summaries, logits, alphas = [], [], [], []
    for number in range(max(1, len(graph.pairs))):
        if len(graph.pairs):
            ends = nodes[graph.pairs[number].tolist()].flatten()
        else:
            ends = torch.zeros(2 * nodes.shape[1], dtype=torch.float64)
        pair = F.leaky_relu(second(F.leaky_relu(first(torch.cat([ends, statement])))))
        paths = []
        for path in np.flatnonzero(graph.path_pairs == number) if len(graph.pairs) else []:
            steps = [node for node in graph.path_nodes[path].tolist() if node >= 0]
            onward = [relation for relation in graph.path_relations[path].tolist() if relation >= 0]
            relations = net.relations.weight[[*onward, RELATIONS]]
            states, _ = net.path_lstm(torch.cat([nodes[steps], relations], 1)[None])
            paths.append(states[0, -1])
        summary = torch.zeros(7, dtype=torch.float64)
        if paths:
            stacked = torch.stack(paths)
            alpha = (stacked @ net.path_attention.weight @ pair).softmax(0)
            alphas.append(alpha)
            summary = alpha @ stacked
        pairs.append(pair)
        summaries.append(summary)
        logits.append(pair @ net.pair_attention.weight @ statement)
    beta = torch.stack(logits).softmax(0)
    both = torch.cat([torch.stack(pairs), torch.stack(summaries)], 1)
    return beta @ both, beta, torch.cat(alphas) if alphas else torch.zeros(0, dtype=torch.float64)


def test_it_is_the_dense_formula(graphs: list[SchemaGraph]) -> None:
    net = network()
    statements = torch.randn(len(graphs), 9, dtype=torch.float64)
    states = net(pack_graphs(graphs, RELATIONS), statements)
    expected = [dense(net, graph, statement) for graph, statement in zip(graphs, statements, strict=True)]
    torch.testing.assert_close(states.vectors, torch.stack([vector for vector, _, _ in expected]))
    torch.testing.assert_close(states.pair_weights, torch.cat([beta for _, beta, _ in expected]))
    torch.testing.assert_close(states.path_weights, torch.cat([alpha for _, _, alpha in expected]))


def test_gradients_are_those_of_the_dense_formula(graphs: list[SchemaGraph]) -> None:
    net = network()
    statements = torch.randn(len(graphs), 9, dtype=torch.float64)
    weights = torch.randn(len(graphs), net.width, dtype=torch.float64)
    (net(pack_graphs(graphs, RELATIONS), statements).vectors * weights).sum().backward()
    packed = {name: parameter.grad.clone() for name, parameter in net.named_parameters() if parameter.grad is not None}
    net.zero_grad()
    vectors = [dense(net, graph, statement)[0] for graph, statement in zip(graphs, statements, strict=True)]
    (torch.stack(vectors) * weights).sum().backward()
    assert set(packed) == {name for name, _ in net.named_parameters()}
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(packed[name], parameter.grad, msg=name)


def test_no_unit_sees_another(graphs: list[SchemaGraph]) -> None:
    net = network()
    statements = torch.randn(len(graphs), 9, dtype=torch.float64)
    before = net(pack_graphs(graphs, RELATIONS), statements).vectors
    others = random_builder(seed=3).build(random_texts(len(graphs), seed=4))
    for number in range(len(graphs)):
        mixed = [graph if place == number else others[place] for place, graph in enumerate(graphs)]
        noise = torch.randn_like(statements)
        noise[number] = statements[number]
        after = net(pack_graphs(mixed, RELATIONS), noise).vectors
        torch.testing.assert_close(after[number], before[number], rtol=1e-12, atol=1e-12)


def test_graphs_without_any_path_are_read() -> None:
    graphs = random_builder().build([("nothing", "known"), ("more", "of it")])
    net = network()
    states = net(pack_graphs(graphs, RELATIONS), torch.randn(2, 9, dtype=torch.float64))
    assert (
        states.vectors.shape == (2, 14)
        and (states.vectors[:, 7:] == 0).all()
        and states.pair_weights.tolist() == [1, 1]
    )


def test_flops_are_those_that_torch_counts(graphs: list[SchemaGraph]) -> None:
    net, packed = network(), pack_graphs(graphs, RELATIONS)
    with FlopCounterMode(display=False) as counter:
        net(packed, torch.randn(len(graphs), 9, dtype=torch.float64))
    lstm = 2 * packed.path_steps * 4 * 7 * (net.path_lstm.input_size + 7)  # which torch's counter does not see
    seen = counter.get_total_flops()
    padded = packed.path_relations.numel() * 2 * 4 * 7 * (net.path_lstm.input_size + 7)
    assert net.flops(packed) - lstm in (seen, seen - padded)


def test_segments() -> None:
    owners = torch.tensor([2, 0, 2, 3, 3])  # 3 is padding
    values = torch.tensor([[1.0], [2.0], [3.0], [50.0], [60.0]])
    assert segment_sum(values, owners, 3).tolist() == [[2.0], [0.0], [4.0]]
    scores = torch.tensor([1000.0, -5.0, 1001.0, 3.0, 4.0], requires_grad=True)
    weights = segment_softmax(scores, owners, 3)
    torch.testing.assert_close(weights[[0, 2]], torch.tensor([1000.0, 1001.0]).softmax(0))
    assert weights[1] == 1
    weights[0].backward()
    assert torch.isfinite(scores.grad).all() and scores.grad[0] > 0  # type: ignore[arg-type,index]


def test_path_counts_see_relations_and_no_concepts(graphs: list[SchemaGraph]) -> None:
    counts = count_paths(graphs, RELATIONS, 1 << 20)
    for unit, graph in enumerate(graphs):
        sequences: dict[tuple[int, ...], int] = {}
        for relations in graph.path_relations:
            key = tuple(relation for relation in relations.tolist() if relation >= 0)
            sequences[key] = sequences.get(key, 0) + 1
        expected = sorted(np.log1p(list(sequences.values())).astype(np.float32).tolist())
        assert sorted(counts.values[counts.owners == unit].tolist()) == pytest.approx(expected)
    renamed = [SchemaGraph(**{**vars(graph), "concepts": graph.concepts[::-1]}) for graph in graphs]
    again = count_paths(renamed, RELATIONS, 1 << 20)
    assert torch.equal(again.buckets, counts.buckets) and torch.equal(again.values, counts.values)
    counts = count_paths(graphs, RELATIONS, 512)
    layer, statements = PathCounts(512, 9, 5), torch.randn(len(graphs), 9)
    dense_counts = torch.zeros(len(graphs), 512).index_put((counts.owners, counts.buckets), counts.values)
    expected = F.relu(dense_counts @ layer.weights.weight + layer.statement(statements))
    torch.testing.assert_close(layer(counts, statements), expected)

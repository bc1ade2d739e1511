"""The network of KagNet over schema graphs (Lin et al. 2019, section 4).

    GCN          h <- ReLU(W sum over neighbours of h + b), twice, 100 -> 50 -> 25; a concept is [table ; GCN]
    pair         t_ij = MLP([c_i ; c_j ; s]), 256 and 128 wide, LeakyReLU, with the statement vector s
    path         the last state of an LSTM over the steps [concept ; relation onward]
    attention    within a pair: alpha_k ~ exp(p_k W_1 t_ij), P_ij = sum of alpha_k p_k
                 between pairs: beta_ij ~ exp(t_ij W_2 s), g = sum of beta_ij [t_ij ; P_ij]

The convolution is that of the released code: a plain sum, without a self loop or a degree to divide by. Unlike it, a
path ends with its last concept: the code reads the state behind the padding of its longest path. A unit without a pair
reads zeros in the place of concepts and paths.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etude.nn.packed_graphs import PackedGraphs
from etude.nn.precision import upcast
from etude.nn.segments import segment_softmax, segment_sum


@dataclass(frozen=True)
class SchemaStates:
    """What the network makes of packed schema graphs."""

    vectors: Tensor  # (U, 2 * hidden) g
    pair_weights: Tensor  # (P,) beta, summing to 1 over the pairs of a unit
    path_weights: Tensor  # (K,) alpha, summing to 1 over the paths of a pair


class SumConvolution(nn.Module):
    """One layer of the graph convolution: ReLU(W sum over neighbours + b)."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, outputs, bias=False)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, hidden: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
        """(V, D) -> (V, outputs). The product comes first: its rows are narrower than those of the sum."""
        messages = self.linear(hidden)[sources]  # (E, outputs)
        return F.relu(segment_sum(messages, targets, len(hidden)) + self.bias.to(messages.dtype))

    def flops(self, nodes: int) -> int:
        return 2 * nodes * self.linear.in_features * self.linear.out_features


class SchemaNetwork(nn.Module):
    """Packed schema graphs and statement vectors to one vector a unit."""

    def __init__(
        self,
        concepts: int,
        relations: int,
        statement: int,
        *,
        concept_width: int = 100,
        relation_width: int = 100,
        graph_widths: tuple[int, ...] = (50, 25),
        hidden: int = 128,
    ) -> None:
        """`relations` are the classes of both directions; `statement` is the width of statement vectors."""
        super().__init__()
        self.concepts = nn.Embedding(concepts, concept_width)
        self.relations = nn.Embedding(relations + 1, relation_width)  # the last: none
        # of the size of entity vectors of unit length
        nn.init.normal_(self.concepts.weight, std=concept_width**-0.5)
        nn.init.normal_(self.relations.weight, std=relation_width**-0.5)
        sizes = (concept_width, *graph_widths)
        self.convolutions = nn.ModuleList(SumConvolution(width, outputs) for width, outputs in pairwise(sizes))
        width = concept_width + (graph_widths[-1] if graph_widths else 0)
        self.pair_layers = nn.ModuleList([nn.Linear(2 * width + statement, 2 * hidden), nn.Linear(2 * hidden, hidden)])
        self.path_lstm = nn.LSTM(width + relation_width, hidden, batch_first=True)
        self.path_attention = nn.Linear(hidden, hidden, bias=False)  # W_1, applied to pairs
        self.pair_attention = nn.Linear(statement, hidden, bias=False)  # W_2, applied to statements
        self.width = 2 * hidden

    def forward(self, graphs: PackedGraphs, statements: Tensor) -> SchemaStates:
        """Statement vectors (U, statement), one a unit."""
        nodes = self.encode_nodes(graphs)  # (V+1, D), the last 0
        first, second = nodes[graphs.pair_nodes].unbind(1)
        pairs = torch.cat([first, second, statements.to(nodes.dtype)[graphs.pair_units]], -1)
        for layer in self.pair_layers:
            pairs = F.leaky_relu(layer(pairs))  # (P, hidden)
        summary, path_weights = self._attend_to_paths(graphs, nodes, pairs)
        queries = self.pair_attention(statements.to(pairs.dtype))[graphs.pair_units]  # (P, hidden)
        pair_weights = segment_softmax((upcast(pairs) * upcast(queries)).sum(-1), graphs.pair_units, graphs.units)
        both = upcast(torch.cat([pairs, summary.to(pairs.dtype)], -1))
        vectors = segment_sum(pair_weights[:, None] * both, graphs.pair_units, graphs.units)
        return SchemaStates(vectors, pair_weights, path_weights)

    def encode_nodes(self, graphs: PackedGraphs) -> Tensor:
        """(V+1, D) [table ; GCN] of every node, and zeros for nothing."""
        static = self.concepts(graphs.concepts)
        hidden = static
        for convolution in self.convolutions:
            hidden = convolution(hidden, graphs.edge_sources, graphs.edge_targets)
        nodes = torch.cat([static.to(hidden.dtype), hidden], -1) if self.convolutions else static
        return F.pad(nodes, (0, 0, 0, 1))

    def _attend_to_paths(self, graphs: PackedGraphs, nodes: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
        """(P, hidden) the weighted mean of each pair's paths, 0 where it has none, and the weights (K,)."""
        if not graphs.paths:
            return pairs.new_zeros(pairs.shape), pairs.new_zeros(0, dtype=torch.float32)
        relations = self.relations(graphs.path_relations).to(nodes.dtype)
        states, _ = self.path_lstm(torch.cat([nodes[graphs.path_nodes], relations], -1))  # (K, steps, hidden)
        ends = graphs.path_ends[:, None, None].expand(-1, 1, states.shape[-1])
        paths = upcast(states.gather(1, ends)[:, 0])  # (K, hidden)
        queries = upcast(self.path_attention(pairs))[graphs.path_pairs]
        weights = segment_softmax((paths * queries).sum(-1), graphs.path_pairs, graphs.pairs)
        return segment_sum(weights[:, None] * paths, graphs.path_pairs, graphs.pairs), weights

    def flops(self, graphs: PackedGraphs) -> int:
        """Of a forward pass: products times 2, paths over their real lengths."""
        hidden, pairs = self.width // 2, graphs.pairs
        total = 0
        for convolution in self.convolutions:
            assert isinstance(convolution, SumConvolution)
            total += convolution.flops(graphs.nodes)
        for layer in self.pair_layers:
            assert isinstance(layer, nn.Linear)
            total += 2 * pairs * layer.in_features * layer.out_features
        total += 2 * graphs.path_steps * 4 * hidden * (self.path_lstm.input_size + hidden)
        total += 2 * pairs * hidden**2 * bool(graphs.paths)  # W_1
        total += 2 * graphs.units * self.pair_attention.in_features * hidden  # W_2
        return total

"""The honest baseline of path reasoning: an MLP over counts of relation paths, without any concept.

Relation-path statistics alone give most of what graph networks gain on CommonsenseQA (SAFE, Jiang et al. 2022). Here
the relation classes of a path, in their order and direction, are hashed to one of some thousand features; a unit is
the vector of log(1 + count). One hidden layer reads it together with the statement vector, so that a question can ask
for one relation and not another. It sees how question and answer are joined, never by what.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etude.chance import mix_array
from etude.graph.schema_graphs import SchemaGraph
from etude.nn.packed import TensorGroup
from etude.nn.segments import segment_sum


@dataclass
class PackedCounts(TensorGroup):
    """The features of some units that are not 0."""

    units: int  # U
    owners: Tensor  # (n,) int64: the unit of each
    buckets: Tensor  # (n,) int64
    values: Tensor  # (n,) float32: log(1 + count)


def count_paths(graphs: Sequence[SchemaGraph], relations: int, buckets: int) -> PackedCounts:
    """Count the relation paths of units; `relations` are the classes of both directions."""
    steps = np.concatenate([graph.path_relations for graph in graphs]).astype(np.int64) + 1  # 0: none
    codes = np.zeros(len(steps), np.uint64)
    for column in range(steps.shape[1]):  # a number for each sequence of classes; four of thousands fit 64 bits
        codes = codes * np.uint64(relations + 1) + steps[:, column].astype(np.uint64)
    hashes = mix_array(codes) % np.uint64(buckets)
    units = np.repeat(np.arange(len(graphs)), [len(graph.path_pairs) for graph in graphs])
    keys, counts = np.unique(units * buckets + hashes.astype(np.int64), return_counts=True)
    owners, places = np.divmod(keys, buckets)
    values = torch.from_numpy(np.log1p(counts).astype(np.float32))
    return PackedCounts(len(graphs), torch.from_numpy(owners), torch.from_numpy(places), values)


class PathCounts(nn.Module):
    """Counts of relation paths and statement vectors to one vector a unit."""

    def __init__(self, buckets: int, statement: int, hidden: int) -> None:
        super().__init__()
        self.weights = nn.Embedding(buckets, hidden)  # a linear layer over a sparse vector
        nn.init.normal_(self.weights.weight, std=0.1)
        self.statement = nn.Linear(statement, hidden)
        self.width = hidden

    def forward(self, counts: PackedCounts, statements: Tensor) -> Tensor:
        """(U, hidden) from statement vectors (U, statement)."""
        rows = self.weights(counts.buckets) * counts.values[:, None]
        return F.relu(segment_sum(rows, counts.owners, counts.units) + self.statement(statements))

    def flops(self, counts: PackedCounts) -> int:
        """Of a forward pass, over the counts that are not 0."""
        return 2 * self.width * (len(counts.values) + counts.units * self.statement.in_features)

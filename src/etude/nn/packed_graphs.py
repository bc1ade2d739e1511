"""Schema graphs packed without padding, as sequences are (design decision 1): nodes, edges, pairs, paths end to end.

A *unit* is one schema graph: a question with one of its answers. Node V, one behind the last, is nothing: its vector
is 0. It ends paths that are shorter than others, and it stands for both concepts of a unit in which no pair was found,
so that every unit has a pair to attend to (the released code does the same).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from etude.graph.schema_graphs import SchemaGraph
from etude.nn.packed import TensorGroup


@dataclass
class PackedGraphs(TensorGroup):
    """Some schema graphs in flat tensors."""

    units: int  # U
    concepts: Tensor  # (V,) int64: the concept of each node
    edge_sources: Tensor  # (E,) int64 nodes
    edge_targets: Tensor  # (E,) int64 nodes
    pair_nodes: Tensor  # (P, 2) int64 nodes of the question and of the answer; V: nothing
    pair_units: Tensor  # (P,) int64
    path_nodes: Tensor  # (K, steps) int64; V behind the last
    path_relations: Tensor  # (K, steps) int64 relation onward from each node; `relations` behind the last
    path_ends: Tensor  # (K,) int64 the step of the last node
    path_pairs: Tensor  # (K,) int64
    path_steps: int  # of all paths, without padding

    @property
    def nodes(self) -> int:
        return len(self.concepts)

    @property
    def pairs(self) -> int:
        return len(self.pair_units)

    @property
    def paths(self) -> int:
        return len(self.path_pairs)


def pack_graphs(graphs: Sequence[SchemaGraph], relations: int) -> PackedGraphs:
    """Pack schema graphs; `relations` counts the classes of both directions, and is the class of no relation."""
    nodes = _offsets([len(graph.concepts) for graph in graphs])
    total = int(nodes[-1])
    # a unit without a pair has one of nothing with nothing
    counts = np.array([max(1, len(graph.pairs)) for graph in graphs])
    pairs = _offsets(counts)
    empty = [len(graph.pairs) == 0 for graph in graphs]
    nothing = np.full((1, 2), total)
    pair_nodes = [
        nothing if is_empty else graph.pairs + start
        for graph, start, is_empty in zip(graphs, nodes, empty, strict=False)
    ]
    edges = _shifted(graphs, "edges", nodes)
    path_nodes = np.concatenate(
        [
            np.where(graph.path_nodes >= 0, graph.path_nodes + start, total)
            for graph, start in zip(graphs, nodes, strict=False)
        ]
    )
    onward = np.concatenate([graph.path_relations for graph in graphs]).astype(np.int64)
    steps = np.full(path_nodes.shape, relations)
    steps[:, :-1] = np.where(onward >= 0, onward, relations)
    arrays: dict[str, Any] = {
        "concepts": np.concatenate([graph.concepts for graph in graphs]),
        "edge_sources": edges[:, 0],
        "edge_targets": edges[:, 1],
        "pair_nodes": np.concatenate(pair_nodes),
        "pair_units": np.repeat(np.arange(len(graphs)), counts),
        "path_nodes": path_nodes,
        "path_relations": steps,
        "path_ends": (onward >= 0).sum(1),
        "path_pairs": _shifted(graphs, "path_pairs", pairs),
    }
    tensors = {name: torch.from_numpy(np.ascontiguousarray(array, np.int64)) for name, array in arrays.items()}
    return PackedGraphs(len(graphs), **tensors, path_steps=int((onward >= 0).sum()) + len(onward))


def _offsets(counts: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _shifted(graphs: Sequence[SchemaGraph], name: str, starts: np.ndarray) -> np.ndarray:
    """One array of all graphs end to end, each with the number of its first node or pair added."""
    parts: list[np.ndarray] = [getattr(graph, name) for graph in graphs]
    shifts = np.repeat(starts[: len(parts)], [len(part) for part in parts])
    joined = np.concatenate(parts).astype(np.int64)
    return joined + (shifts if joined.ndim == 1 else shifts[:, None])

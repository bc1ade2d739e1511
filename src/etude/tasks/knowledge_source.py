"""Where a task takes its schema graphs from: a graph folder, vectors of its entities, and how both are searched.

Everything about the graph that a built task depends on is a fact of its run: the fingerprint, the merge, the sizes of
the tables and a hash of the TransE scores. So a run refuses another graph, or other vectors, with one message.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import Field, model_validator

from etude.errors import UserError
from etude.graph.concept_graph import ConceptGraph, Merge, build_concept_graph, merge_relations
from etude.graph.entity_table import EntityTable, load_entity_table
from etude.graph.graph import Graph, check_graph
from etude.graph.path_kernel import MOST_EDGES
from etude.graph.paths import PathSearch
from etude.graph.schema_cache import SchemaGraphs, build_schema_graphs
from etude.graph.schema_graphs import VERSION, SchemaBuilder
from etude.settings import Strict

REMEMBERED = 4  # lists of texts whose schema graphs stay in memory: train, dev and what is predicted


class KnowledgeSettings(Strict):
    """The part of a task's settings that says what graph it reads and how."""

    graph: str | None = Field(default=None, description="folder of a graph (etude prepare --graph)")
    concepts: str | None = Field(
        default=None,
        description="vectors of its entities: a run of TransE or a file; prunes paths, starts concepts and relations",
    )
    merge: Merge | None = Field(
        default=None, description="conceptnet: its relations as 17 classes; none: as they are; by the graph if None"
    )
    language: str = Field(default="en", description="language of ConceptNet's names, /c/en/...")
    edges: int = Field(default=2, ge=1, le=MOST_EDGES, description="most edges of a path; KagNet trains on 2")
    paths: int = Field(default=100, ge=1, description="most paths between two concepts, the shortest first")
    degree: int | None = Field(default=None, ge=1, description="most neighbours of a concept inside a path")
    threshold: float = Field(default=0.15, ge=0, le=1, description="paths of a lower TransE score are pruned; 0: none")
    cache: str | None = Field(default=None, description="folder that keeps schema graphs on disk")
    processes: int | None = Field(
        default=None, ge=1, description="processes that search paths; one for each core if None"
    )

    @model_validator(mode="after")
    def _has_graph(self) -> Self:
        if self.concepts is not None and self.graph is None:
            raise ValueError("task.concepts are vectors of a graph's entities: name the graph with task.graph")
        return self


class KnowledgeSource:
    """An opened graph, ready to give the schema graphs of texts."""

    def __init__(self, settings: KnowledgeSettings, facts: Mapping[str, Any] | None = None) -> None:
        """`facts` are those of the run, checked against what is opened; None where a run begins."""
        assert settings.graph is not None
        self.settings = settings
        folder, vectors = settings.graph, settings.concepts
        if facts is not None:  # a run may be used from another folder than it was started in
            folder = _existing(folder, facts["folder"])
            vectors = None if vectors is None else _existing(vectors, facts["vectors_folder"])
        self.graph = Graph.open(folder)
        if facts is not None:
            check_graph(self.graph, facts["fingerprint"], "The fine-tuned run")
        merge: Merge | None = settings.merge if facts is None else facts["merge"]
        self.concepts: ConceptGraph = build_concept_graph(self.graph, merge, settings.language)
        if facts is not None and (facts["concepts"], facts["relations"]) != (len(self.concepts.names), self.relations):
            raise UserError(
                f"{folder} is read as other concepts than the run was fine-tuned with: {len(self.concepts.names):,} of "
                f"them, and {facts['concepts']:,} by another version of this package. Use that one, or fine-tune anew."
            )
        if facts is not None and self.concepts.merge == "conceptnet" and facts.get("schema_graphs") != VERSION:
            raise UserError(
                f"The run was fine-tuned on schema graphs of {folder} as an earlier version of this package made them; "
                "since then other concepts are found in a text. Use that version, or fine-tune anew."
            )
        self.table: np.ndarray | None = None  # (C, D) float32
        self.relation_table: np.ndarray | None = None  # (2 R, D) float32, where the vectors are TransE's
        hop_scores = None
        if vectors is not None:
            table = load_entity_table(vectors).align(self.graph)
            self.table = table.vectors[self.concepts.entities]
            if facts is None or facts.get("relation_width"):  # relations of an earlier run started at random
                self.relation_table = self._class_vectors(table)
            if settings.threshold:
                if facts is None:  # a run of before stays usable
                    _check_score(table, vectors)
                hop_scores = self._score_hops(table, vectors)
        search = PathSearch(self.concepts, settings.edges, settings.paths, settings.degree)
        self.builder = SchemaBuilder(self.concepts, search, hop_scores, settings.threshold)
        self.folder, self.vectors_folder = str(Path(folder).resolve()), vectors and str(Path(vectors).resolve())
        if facts is not None and facts["vectors"] != self._hash_vectors():
            raise UserError(
                f"{vectors}: these are not the vectors that the run was fine-tuned with (task.concepts). "
                "Give it those, or fine-tune anew."
            )
        self._remembered: OrderedDict[int, SchemaGraphs] = OrderedDict()

    @property
    def relation_width(self) -> int | None:
        """The width of the vectors that relations start from; None where they start at random."""
        return None if self.relation_table is None else int(self.relation_table.shape[1])

    @property
    def relations(self) -> int:
        """The relation classes of both directions."""
        return 2 * len(self.concepts.relations)

    def facts(self) -> dict[str, Any]:
        """JSON-ready: what a run keeps of its graph."""
        return {
            "folder": self.folder,
            "fingerprint": self.graph.fingerprint,
            "merge": self.concepts.merge,
            "concepts": len(self.concepts.names),
            "relations": self.relations,
            "width": None if self.table is None else int(self.table.shape[1]),
            "relation_width": self.relation_width,
            "schema_graphs": VERSION,
            "vectors_folder": self.vectors_folder,
            "vectors": self._hash_vectors(),
        }

    def find_schema_graphs(self, texts: Sequence[tuple[str, str]]) -> SchemaGraphs:
        """The schema graphs of (question, answer) texts; those of the last few lists are remembered."""
        key = hash(tuple(texts))
        graphs = self._remembered.pop(key, None)
        if graphs is None:
            cache = None if self.settings.cache is None else Path(self.settings.cache)
            graphs = build_schema_graphs(self.builder, texts, cache, self.settings.processes)
        self._remembered[key] = graphs
        if len(self._remembered) > REMEMBERED:
            self._remembered.popitem(last=False)
        return graphs

    def _score_hops(self, table: EntityTable, place: str) -> np.ndarray:
        names = list(self.graph.relations)
        rows = {name: row for row, name in enumerate(table.relation_names)}
        if any(name not in rows for name in names) or table.relations.shape[1] != table.width:
            raise UserError(
                f"{place} has no vector of TransE's kind for each relation of the graph, so paths cannot be scored. "
                "Take a run of TransE, or set task.threshold=0 to prune none."
            )
        relations = table.relations[[rows[name] for name in names]]
        return self.concepts.score_hops(table.vectors, relations, self.graph.triples("train"))

    def _class_vectors(self, table: EntityTable) -> np.ndarray | None:
        """(2 R, D) TransE's vectors of the relation classes; None where they are others, or incomplete.

        The code trains TransE on the classes; here a class has the mean of its relations, negated where their ends are
        exchanged. A reverse class starts as its class does [code].
        """
        names = list(self.graph.relations)
        rows = {name: row for row, name in enumerate(table.relation_names)}
        is_transe = table.score in (None, "transe") and table.relations.shape[1] == table.width
        if not is_transe or any(name not in rows for name in names):
            return None
        _, classes, swapped, _ = merge_relations(names, self.concepts.merge)
        used = np.flatnonzero(classes >= 0)
        signs = np.where(swapped[used], -1.0, 1.0)[:, None]
        sums, counts = np.zeros((len(self.concepts.relations), table.width)), np.zeros(len(self.concepts.relations))
        np.add.at(sums, classes[used], signs * table.relations[[rows[names[relation]] for relation in used]])
        np.add.at(counts, classes[used], 1.0)
        vectors = (sums / np.maximum(counts, 1.0)[:, None]).astype(np.float32)  # (R, D)
        return np.concatenate([vectors, vectors])

    def _hash_vectors(self) -> str | None:
        if self.table is None:
            return None
        digest = hashlib.blake2b(np.ascontiguousarray(self.table).tobytes(), digest_size=16)
        if self.builder.hop_scores is not None:
            digest.update(self.builder.hop_scores.tobytes())
        return digest.hexdigest()


def _check_score(table: EntityTable, place: str) -> None:
    """Raise UserError for vectors of a model in which a relation is no step from head to tail."""
    if table.score not in (None, "transe"):
        raise UserError(
            f"{place} has vectors of model.score={table.score}, and paths are scored by those of TransE, where a "
            "relation leads from head to tail. Take a run of TransE, or set task.threshold=0 to prune none."
        )


def _existing(path: str, remembered: str) -> str:
    """The path of the settings where something is there, else the place it had when the run began."""
    return path if Path(path).exists() else remembered

"""A run on a graph, for use: vectors by name, scores of triples, likely heads and tails, and filtered ranks.

    model = etude.load("runs/transe")
    model.vectors(["Mira", "the mill"])                 # (2, D)
    model.complete("Mira", "lives in", top=5)           # the likeliest tails; head=None asks for heads
    model.evaluate("test")                              # MRR, mean rank, hits@1/3/10

`evaluate` ranks the true answer of both sides of each triple among all entities, the other answers known from any split
left out, ties in the mean (objectives/parts/link_ranks.py). Intervals are those of a bootstrap over triples: the two
ranks of one triple are drawn together.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch

from etude.errors import UserError, suggest_name
from etude.graph.entity_table import read_entities
from etude.graph.graph import SPLITS, Graph
from etude.graph.graph_split import GraphSplit
from etude.graph.known_answers import KnownAnswers
from etude.graph.readers.formats import read_names
from etude.hub.run_weights import load_learner
from etude.inference.lacking import LackingMethodError, LacksText
from etude.models.base import require
from etude.models.graph_embedding import GraphEmbedding
from etude.objectives.parts.link_ranks import rank_answers
from etude.runs.run import RECIPE, Run
from etude.runs.source import reopen_source
from etude.tasks.bootstrap import Score, bootstrap_mean
from etude.train import checkpoint
from etude.train.device import default_device

HITS = (1, 3, 10)


@dataclass(frozen=True)
class LinkGuess:
    """An entity that may complete a triple, with its score."""

    entity: str
    score: float


@dataclass(frozen=True, eq=False)
class LinkReport(Mapping[str, Score]):
    """The scores of some triples by name, as `evaluate` gives them, and the ranks of both answers of each triple."""

    triples: np.ndarray  # (T, 3)
    head_ranks: np.ndarray  # (T,) float64: of the true head, given relation and tail
    tail_ranks: np.ndarray  # (T,) float64
    entities: list[str]
    relations: list[str]

    @cached_property
    def scores(self) -> dict[str, Score]:
        """MRR, mean rank and hits over both sides, then of each side alone."""
        both = summarize([self.head_ranks, self.tail_ranks])
        sides = {"head": [self.head_ranks], "tail": [self.tail_ranks]}
        return both | {
            f"{side} {name}": score for side, ranks in sides.items() for name, score in summarize(ranks).items()
        }

    def __getitem__(self, name: str) -> Score:
        return self.scores[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.scores)

    def __len__(self) -> int:
        return len(self.scores)

    def relation_scores(self) -> dict[str, Score]:
        """MRR and hits@10 of each relation that has a triple, the most frequent first."""
        counts = np.bincount(self.triples[:, 1], minlength=len(self.relations))
        scores: dict[str, Score] = {}
        for relation in np.argsort(-counts, kind="stable")[: int((counts > 0).sum())].tolist():
            rows = self.triples[:, 1] == relation
            part = summarize([self.head_ranks[rows], self.tail_ranks[rows]])
            scores |= {f"{self.relations[relation]} {name}": part[name] for name in ("mrr", "hits@10")}
        return scores

    def write(self, path: str | Path) -> None:
        """Write one JSON object a triple: its names and its two ranks."""
        lines = [
            json.dumps(
                {
                    "head": self.entities[head],
                    "relation": self.relations[relation],
                    "tail": self.entities[tail],
                    "head_rank": head_rank,
                    "tail_rank": tail_rank,
                },
                ensure_ascii=False,
            )
            for (head, relation, tail), head_rank, tail_rank in zip(
                self.triples.tolist(), self.head_ranks.tolist(), self.tail_ranks.tolist(), strict=True
            )
        ]
        checkpoint.write_text(Path(path), "".join(f"{line}\n" for line in lines))


def summarize(sides: Sequence[np.ndarray]) -> dict[str, Score]:
    """Return MRR, mean rank and hits of ranks (T,) of some sides, with intervals over triples."""
    ranks = np.stack(sides)  # (sides, T)
    values = {"mrr": 1.0 / ranks, "mean rank": ranks} | {f"hits@{limit}": ranks <= limit for limit in HITS}
    return {name: bootstrap_mean(value.mean(0)) for name, value in values.items()}


class GraphModel(LacksText):
    """Vectors of a graph's entities and relations with their score, opened from a run."""

    def __init__(self, run: Run, device: str | None = None) -> None:
        self.run, self.device = run, torch.device(device or default_device())
        self.graph_fingerprint, self.entities, self.relations = read_entities(run.folder)
        model, _, _ = load_learner(run)
        self.model = require(model, GraphEmbedding, f"{run.folder} holds no embeddings of a graph.").to(self.device)
        self.model.eval()

    def refuse(self, method: str) -> NoReturn:
        raise LackingMethodError(
            f"{self.run.folder} learnt from a graph and reads no text, so it has no {method}: its vectors, score, "
            "complete and evaluate are for entities by name."
        )

    @property
    def predict(self) -> NoReturn:
        self.refuse("predict")

    @cached_property
    def _entity_numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.entities)}

    @cached_property
    def _relation_numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.relations)}

    def entity(self, name: str) -> int:
        """Return the number of an entity; UserError where the graph has none of this name."""
        number = self._entity_numbers.get(name)
        if number is None:
            raise UserError(f"There is no entity {name!r} in the graph of {self.run.folder}.")
        return number

    def relation(self, name: str) -> int:
        """Return the number of a relation; UserError where the graph has none of this name."""
        number = self._relation_numbers.get(name)
        if number is None:
            raise UserError(
                f"There is no relation {name!r} in the graph of {self.run.folder}.{suggest_name(name, self.relations)}"
            )
        return number

    # --- vectors and scores -------------------------------------------------------------------------

    @torch.no_grad()
    def vectors(self, names: Sequence[str] | None = None) -> np.ndarray:
        """Return the vectors of some entities, or of all in the graph's order, (names, D) float32."""
        numbers = range(len(self.entities)) if names is None else [self.entity(name) for name in names]
        vectors: np.ndarray = self.model.vectors(torch.tensor(list(numbers), device=self.device)).cpu().numpy()
        return vectors

    @torch.no_grad()
    def score(self, triples: Sequence[tuple[str, str, str]]) -> np.ndarray:
        """Return the score of each (head, relation, tail), (T,) float32; greater is more plausible."""
        numbers = [(self.entity(head), self.relation(relation), self.entity(tail)) for head, relation, tail in triples]
        columns = torch.tensor(numbers, dtype=torch.int64, device=self.device).reshape(-1, 3).unbind(1)
        scores: np.ndarray = self.model.score_triples(*columns).cpu().numpy()
        return scores

    @torch.no_grad()
    def complete(self, head: str | None, relation: str, tail: str | None = None, top: int = 10) -> list[LinkGuess]:
        """Return the likeliest entities for the side of a triple that is None, best first."""
        if (head is None) == (tail is None):
            raise UserError("Give the head or the tail, and None for the one to predict.")
        if top < 1:
            raise UserError(f"top={top}: ask for one entity or more.")
        known = torch.tensor([self.entity(head if head is not None else str(tail))], device=self.device)
        wants_head = torch.tensor([head is None], device=self.device)
        query = self.model.queries(known, torch.tensor([self.relation(relation)], device=self.device), wants_head)
        everyone = self.model.vectors(torch.arange(len(self.entities), device=self.device))
        scores = self.model.score.score_pairs(query[None], everyone[None])[0, 0]
        best = torch.topk(scores, min(top, len(scores)))
        return [
            LinkGuess(self.entities[number], score)
            for number, score in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]

    # --- evaluation ---------------------------------------------------------------------------------

    def open_graph(self, folder: str | Path | None = None) -> Graph:
        """Open the graph the run learnt from, from `folder` where it moved; UserError where it is another one."""
        source = reopen_source(self.run.folder, self.run.recipe, folder, option="--graph")
        assert isinstance(source, GraphSplit)
        return source.graph

    def evaluate(self, triples: str | Path | np.ndarray | None = None, graph: str | Path | None = None) -> LinkReport:
        """Rank both answers of each triple of a split, a file of names, or an array (T, 3) of numbers.

        None takes the test split, or valid where there is no test. `graph`: where the run's graph is now, if it moved.
        """
        opened = self.open_graph(graph)
        chosen = self._choose(triples, opened)
        known = np.concatenate([*(opened.triples(split) for split in opened.splits), chosen])
        filtered = KnownAnswers.from_triples(known, len(self.relations))
        heads, kinds, tails = chosen.astype(np.int64).T
        everyone = np.ones(len(chosen), dtype=bool)
        head_ranks = rank_answers(self.model, tails, kinds, everyone, heads, filtered)
        tail_ranks = rank_answers(self.model, heads, kinds, ~everyone, tails, filtered)
        return LinkReport(chosen, head_ranks, tail_ranks, self.entities, self.relations)

    def _choose(self, triples: str | Path | np.ndarray | None, graph: Graph) -> np.ndarray:
        if isinstance(triples, np.ndarray):
            chosen = triples
        elif triples is None or str(triples) in SPLITS:
            held_out = [split for split in ("test", "valid") if split in graph.splits]
            if triples is None and not held_out:
                raise UserError(
                    f"The graph of {self.run.folder} has no test and no valid triples: give a file of them."
                )
            chosen = graph.triples(str(triples or held_out[0]))
        else:
            chosen = self.read_triples(Path(triples))
        if not len(chosen):
            raise UserError("There is no triple to evaluate.")
        return chosen

    def read_triples(self, path: Path) -> np.ndarray:
        """Read a file of triples by name, of any format that a graph is prepared from, as numbers (T, 3) int32."""
        rows: list[tuple[int, int, int]] = []
        for place, (head, relation, tail) in read_names(path):
            try:
                rows.append((self.entity(head), self.relation(relation), self.entity(tail)))
            except UserError as problem:
                raise UserError(f"{place}: {problem} Is the file of another graph?") from None
        return np.array(rows, np.int32).reshape(-1, 3)


def is_graph_run(source: str | Path) -> bool:
    """Whether a folder is a run that learnt from a graph."""
    return (Path(source) / RECIPE).is_file() and Run.open(source).recipe.reads_graph

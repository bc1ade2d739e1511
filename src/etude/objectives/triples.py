"""Learning from triples: a true triple scores above triples whose head or tail is replaced by a chance entity.

Bordes et al. 2013 (TransE), Yang et al. 2015 (DistMult), Trouillon et al. 2016 (ComplEx), Sun et al. 2019 (RotatE). The
model holds the vectors and their score (models/graph_embedding.py), this objective the negatives and the loss
(objectives/parts/triple_losses.py).

Negatives. Each triple is corrupted on one side, drawn once for all its negatives: head or tail with a probability of a
half ("uniform"), or the head with tph / (tph + hpt) of its relation ("bernoulli", Wang et al. 2014). What stands on the
other side makes a query, so the replaced entities of a triple are candidates of one query, and the score of all of them
is one product or one kernel. `share` triples in a row have the same negatives (as in PyTorch-BigGraph, Lerer et al.
2019): their queries and candidates form a full table, whose vectors are read, and whose gradients are written, `share`
times less often. A drawn entity that is the answer itself is left out. One that is another answer in the train triples
is left out with `filter_negatives`, as RotatE's code does (TransE's paper and PyKEEN do not look): self-adversarial
weights would fall on it, since it scores high. The device looks candidates up by a binary search in all true pairs of a
query and an answer.

Every draw is a hash of (seed, step, row, position): a resume is a seek, and as the triples that share negatives lie in
one row, micro-batches do not change a step.

Budgets count a triple as one token. FLOPs: those of the scores (TripleScore.flops), the negatives' included, times 3
for the backward pass; gathering and adding up vectors is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from etude.chance import Chance, integers, uniform
from etude.graph.graph_split import GraphSplit
from etude.graph.known_answers import KnownAnswers
from etude.models.base import Model, require
from etude.models.graph_embedding import GraphEmbedding
from etude.nn.packed import Layout
from etude.objectives.base import Batch, PretrainingObjective, Stat, Term
from etude.objectives.batch_view import BatchView, TokenView, view_list
from etude.objectives.parts.link_ranks import rank_answers
from etude.objectives.parts.triple_losses import LossName, logistic_losses, margin_loss, softmax_loss
from etude.objectives.rows.triples import TripleRow, TripleRows, head_shares, subsampling_weights
from etude.settings import ReadsGraph
from etude.text.tokenizer.special_tokens import Specials

SHOWN_NEGATIVES = 4  # candidates of a triple, for a person
NO_NEGATIVE = -1e4  # the score of a candidate that is the answer itself: far below any other, and finite


class Settings(ReadsGraph):
    loss: LossName = "margin"
    margin: float = Field(default=1.0, ge=0, description="margin of the losses margin and logistic; RotatE's gamma")
    adversarial: float = Field(
        default=0.0, ge=0, description="temperature alpha of self-adversarial negatives; 0: all have the same weight"
    )
    negatives: int = Field(default=1, ge=1, description="replaced entities for each triple")
    corrupt: Literal["uniform", "bernoulli"] = "uniform"
    filter_negatives: bool = Field(default=False, description="leave out drawn entities that a train triple has")
    share: int = Field(default=1, ge=1, description="triples that have the same negatives; divides row_tokens")
    subsampling: bool = Field(
        default=False, description="triples with a frequent (head, relation) or (relation, tail) have less weight"
    )
    row_tokens: int = Field(default=128, ge=1, description="triples of a row")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.row_tokens % self.share:
            raise ValueError(f"share={self.share} triples do not divide a row of row_tokens={self.row_tokens}")
        if self.adversarial and self.loss != "logistic":
            raise ValueError(f"adversarial={self.adversarial} weighs the negatives of loss=logistic, not {self.loss}")
        return self


@dataclass(kw_only=True)
class TripleBatch(Batch):
    """Queries with their answers and candidates; `tokens` are the known entities, (B,)."""

    relations: Tensor  # (B,) int64
    answers: Tensor  # (B,) int64
    wants_head: Tensor  # (B,) bool
    negatives: Tensor  # (G, n) int64: the candidates of each group of `share` triples
    weights: Tensor | None = None  # (B,) float32
    queries: Tensor | None = None  # (B,) int64: the number of each query among those that train triples answer, or -1
    # of a short row, whose last group is filled up with its last triple: the triple at each place of the groups, and
    # the place of each triple
    grouped: Tensor | None = None  # (G * share,) int64
    places: Tensor | None = None  # (B,) int64


class Triples(PretrainingObjective[GraphEmbedding, TripleRow, TripleBatch, GraphSplit]):
    """Tells true triples from corrupted ones."""

    def __init__(self, settings: Settings, model: GraphEmbedding) -> None:
        super().__init__()
        self.settings, self.entities = settings, model.vocab
        self.row_tokens = settings.row_tokens
        self.known: KnownAnswers | None = None  # of the graph whose rows were asked for: ranks are filtered by it
        self.train_answers: KnownAnswers | None = None  # of its train triples: negatives are filtered by it
        # (P,) int64: train_answers.list_pairs. No buffer: a model in shards empties those after rows are asked for
        self.train_pairs: Tensor | None = None

    # --- on the host --------------------------------------------------------------------------------

    def rows(self, corpus: GraphSplit, seed: int) -> TripleRows:
        """Blocks of a split's triples, with what the train triples say of their relations."""
        settings, graph = self.settings, corpus.graph
        if self.known is None:
            self.known = KnownAnswers.from_graph(graph)
        if settings.filter_negatives and self.train_answers is None:
            self.train_answers = KnownAnswers.from_triples(graph.triples("train"), len(graph.relations))
            self.train_pairs = torch.from_numpy(self.train_answers.list_pairs(self.entities))
        shares = weights = None
        if settings.corrupt == "bernoulli":
            shares = head_shares(graph.triples("train"), len(graph.relations))
        if settings.subsampling and corpus.split == "train":
            weights = subsampling_weights(corpus.triples, len(graph.relations))
        return TripleRows(corpus, settings.row_tokens, seed, shares, weights)

    def view_batch(self, model: GraphEmbedding, batch: TripleBatch) -> BatchView:
        """Triples with one end asked for; targets are the answer, then the candidates it is told from."""
        groups = np.arange(len(batch.tokens)) // self.settings.share
        if batch.places is not None:
            groups = batch.places.numpy() // self.settings.share
        negatives = batch.negatives.tolist()
        values = (batch.tokens.tolist(), batch.relations.tolist(), batch.answers.tolist(), batch.wants_head.tolist())
        items = [
            TokenView(
                known,
                targets=(answer, *negatives[group][:SHOWN_NEGATIVES]),
                relation=relation,
                note="head" if wants_head else "tail",
            )
            for group, known, relation, answer, wants_head in zip(groups.tolist(), *values, strict=True)
        ]
        return BatchView(
            ("the missing end of each triple, among others", "삼중항마다 빠진 쪽"), view_list(items, ("", ""))
        )

    def batch(self, rows: Sequence[TripleRow], chance: Chance) -> TripleBatch:
        settings = self.settings
        numbers, sizes = np.array([row.index for row in rows]), [len(row.tokens) for row in rows]
        triples = np.concatenate([row.triples for row in rows]).astype(np.int64)  # (B, 3)
        groups = [-(-size // settings.share) for size in sizes]  # the last row of held-out triples may be short
        draws = np.arange(max(groups) * settings.negatives)
        drawn = integers(chance.keys("negative", numbers)[:, None], draws[None], self.entities)  # (rows, draws)
        negatives = np.concatenate([
            values[: count * settings.negatives].reshape(count, -1) for values, count in zip(drawn, groups, strict=True)
        ])  # fmt: skip
        coins = uniform(chance.keys("side", numbers)[:, None], np.arange(max(sizes))[None])
        coins = np.concatenate([values[:size] for values, size in zip(coins, sizes, strict=True)])
        first = rows[0]
        wants_head = coins < (0.5 if first.head_shares is None else np.concatenate([row.head_shares for row in rows]))
        weights = None if first.weights is None else np.concatenate([row.weights for row in rows])
        count = len(triples)
        known = np.where(wants_head, triples[:, 2], triples[:, 0])
        queries = None if self.train_answers is None else self.train_answers.number(known, triples[:, 1], wants_head)
        grouped, places = _fill_groups(sizes, groups, settings.share)
        terms = {"margin": ("loss",), "logistic": ("positive", "negative"), "softmax": ("loss",)}[settings.loss]
        return TripleBatch(
            tokens=torch.from_numpy(known),
            positions=torch.zeros(count, dtype=torch.int64),
            segments=None,
            layout=Layout.from_bounds(np.array([0, count]), count),
            rows=numbers,
            slots=np.array([row.slot for row in rows]),
            counts=dict.fromkeys(terms, count * (settings.negatives if settings.loss == "margin" else 1)),
            relations=torch.from_numpy(triples[:, 1].copy()),
            answers=torch.from_numpy(np.where(wants_head, triples[:, 0], triples[:, 2])),
            wants_head=torch.from_numpy(wants_head),
            negatives=torch.from_numpy(negatives),
            weights=None if weights is None else torch.from_numpy(weights),
            queries=None if queries is None else torch.from_numpy(queries),
            grouped=grouped,
            places=places,
        )

    # --- on the device ------------------------------------------------------------------------------

    def loss(self, model: GraphEmbedding, batch: TripleBatch) -> dict[str, Term]:
        if model.training:
            model.normalize_entities()  # before every batch: Bordes et al., algorithm 1, line 5
        positive, negative = self.score(model, batch)
        settings, counts = self.settings, batch.counts
        if settings.loss == "margin":
            return {"loss": Term(margin_loss(positive, negative, batch.weights, settings.margin), counts["loss"])}
        if settings.loss == "softmax":
            return {"loss": Term(softmax_loss(positive, negative, batch.weights), counts["loss"])}
        own, replaced = logistic_losses(positive, negative, batch.weights, settings.margin, settings.adversarial)
        return {
            "positive": Term(own, counts["positive"], 0.5),
            "negative": Term(replaced, counts["negative"], 0.5),
        }

    def score(self, model: GraphEmbedding, batch: TripleBatch) -> tuple[Tensor, Tensor]:
        """Return the scores of the true triples (B,) and of their negatives (B, n)."""
        if self.settings.share == 1 and model.can_score_by_number():
            return self._score_by_number(model, batch)
        count, (groups, candidates) = len(batch.tokens), batch.negatives.shape
        # one look-up for all: its gradient is one sum into the table
        numbers = torch.cat([batch.tokens, batch.answers, batch.negatives.flatten()])
        known, answers, replaced = model.vectors(numbers).split([count, count, groups * candidates])
        queries = model.score.queries(known, model.relations(batch.relations), batch.wants_head)  # (B, D)
        positive = model.score.score_rows(queries, answers)
        share = self.settings.share
        if batch.grouped is not None:
            queries = queries[batch.grouped]
        negative = model.score.score_pairs(queries.view(groups, share, -1), replaced.view(groups, candidates, -1))
        negative = negative.view(groups * share, candidates)
        return positive, self._leave_out_answers(negative if batch.places is None else negative[batch.places], batch)

    def _score_by_number(self, model: GraphEmbedding, batch: TripleBatch) -> tuple[Tensor, Tensor]:
        """The same where each triple has its own negatives and a kernel reads them from the table.

        Copies of their vectors, B n of them, would be most of the bytes of a step (nn/gathered_distances.py).
        """
        known, answers = model.vectors(torch.cat([batch.tokens, batch.answers])).chunk(2)
        queries = model.score.queries(known, model.relations(batch.relations), batch.wants_head)  # (B, D)
        negative = self._leave_out_answers(model.score_by_number(queries, batch.negatives), batch)
        return model.score.score_rows(queries, answers), negative

    def _leave_out_answers(self, scores: Tensor, batch: TripleBatch) -> Tensor:
        """Return the scores of the negatives (B, n), far below all others where the drawn entity is an answer."""
        negatives = batch.negatives.repeat_interleave(self.settings.share, 0)
        if batch.places is not None:
            negatives = negatives[batch.places]  # (B, n)
        is_answer = negatives == batch.answers[:, None]
        if batch.queries is not None:
            assert self.train_pairs is not None  # there since rows were asked for, as queries are
            known = self.train_pairs = self.train_pairs.to(scores.device)  # moved once
            pairs = batch.queries[:, None] * self.entities + negatives  # below zero where train triples know no answer
            places = torch.searchsorted(known, pairs).clamp(max=len(known) - 1)
            is_answer = is_answer | (known[places] == pairs)
        return scores.masked_fill(is_answer, NO_NEGATIVE)

    def flops(self, model: GraphEmbedding, batch: TripleBatch) -> int:
        triples = batch.size
        return 3 * model.score.flops(model.width, triples, triples * (1 + self.settings.negatives))

    def metrics(self, model: GraphEmbedding, batch: TripleBatch) -> dict[str, Stat]:
        """The loss, and the filtered ranks of both ends of each triple among all entities.

        Both, whichever the loss replaces: "bernoulli" replaces the end that is easier to tell.
        """
        stats = super().metrics(model, batch)
        assert self.known is not None  # rows come from a graph
        known, relations, wants_head, answers = (
            tensor.cpu().numpy() for tensor in (batch.tokens, batch.relations, batch.wants_head, batch.answers)
        )
        ranks = np.concatenate([
            rank_answers(model, known, relations, wants_head, answers, self.known),
            rank_answers(model, answers, relations, ~wants_head, known, self.known),
        ])  # fmt: skip
        count = len(ranks)
        return stats | {
            "mrr": Stat(float((1.0 / ranks).sum()), count),
            "mean_rank": Stat(float(ranks.sum()), count),
            "hits_at_10": Stat(float((ranks <= 10).sum()), count),
        }

    def find_problems(self, corpus: GraphSplit) -> list[str]:
        """Warnings on a graph for `etude check`."""
        problems, triples = [], corpus.triples
        unseen = self.entities - len(np.unique(triples[:, [0, 2]]))
        if unseen:
            problems.append(f"{unseen:,} of {self.entities:,} entities are in no train triple: no fact places them.")
        loops = int((triples[:, 0] == triples[:, 2]).sum())
        if loops:
            problems.append(f"{loops:,} triples have one entity as head and tail.")
        return problems


def _fill_groups(sizes: list[int], groups: list[int], share: int) -> tuple[Tensor | None, Tensor | None]:
    """Return `grouped` and `places` of a batch whose rows have these sizes; None where every group is full."""
    if all(size == count * share for size, count in zip(sizes, groups, strict=True)):
        return None, None
    starts, firsts = np.cumsum([0, *sizes]), np.cumsum([0, *groups]) * share
    within = [np.minimum(np.arange(count * share), size - 1) for size, count in zip(sizes, groups, strict=True)]
    grouped = np.concatenate([start + part for start, part in zip(starts, within, strict=False)])
    places = np.concatenate([first + np.arange(size) for first, size in zip(firsts, sizes, strict=False)])
    return torch.from_numpy(grouped), torch.from_numpy(places)


def build(settings: Settings, model: Model, special: Specials) -> Triples:
    message = "The objective 'triples' learns vectors of a graph: set model.kind to graph_embedding."
    return Triples(settings, require(model, GraphEmbedding, message))

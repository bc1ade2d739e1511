"""The filtered rank of an answer among all entities, ties counted in the mean.

Of a query (an entity, a relation, a wanted side) every entity is a candidate but the other known answers (Bordes et al.
2013, section 4.1: "filtered"). The rank of the true answer is

    1 + candidates with a greater score + half of the other candidates with an equal one,

the mean of the best and the worst place that it has among its equals: with either of them alone, a model that scores
all triples alike would look perfect or hopeless (Berrendorf et al. 2020). Such a model has the rank (C + 1) / 2 of C
candidates here. A score that is not a number counts as greater than the answer's.

Queries and entities are taken in blocks, so memory is bounded whatever the graph's size.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from etude.graph.known_answers import KnownAnswers
from etude.models.graph_embedding import GraphEmbedding

SCORES = 2**25  # held at once: 128 MB
ENTITIES = 2**18  # of a block; beyond it every block is scored twice, first for the answers' own scores


@torch.no_grad()
def rank_answers(
    model: GraphEmbedding,
    known: np.ndarray,
    relations: np.ndarray,
    wants_head: np.ndarray,
    answers: np.ndarray,
    filtered: KnownAnswers | None,
) -> np.ndarray:
    """Return the rank of each answer (Q,) float64, from 1; all arguments (Q,). `filtered` None ranks among all."""
    device, ranks = model.entities.weight.device, np.empty(len(known))
    size = max(1, SCORES // min(model.vocab, ENTITIES))
    for start in range(0, len(known), size):
        part = slice(start, start + size)
        columns = [torch.from_numpy(array[part].astype(np.int64)).to(device) for array in (known, relations, answers)]
        queries = model.queries(columns[0], columns[1], torch.from_numpy(wants_head[part]).to(device))
        excluded = None
        if filtered is not None:
            pairs = filtered.find(known[part], relations[part], wants_head[part])
            excluded = torch.from_numpy(pairs[0]).to(device), torch.from_numpy(pairs[1]).to(device).long()
        ranks[part] = _rank_block(model, queries, columns[2], excluded).cpu().numpy()
    return ranks


def _rank_block(
    model: GraphEmbedding, queries: Tensor, answers: Tensor, excluded: tuple[Tensor, Tensor] | None
) -> Tensor:
    """Return the ranks (Q,) of answers (Q,) for queries (Q, D), the excluded (query, entity) pairs left out."""
    starts = range(0, model.vocab, ENTITIES)
    only = _score_block(model, queries, 0) if len(starts) == 1 else None
    # the answer's own score is computed as its rivals' are: equal vectors then have equal scores
    own = torch.empty(len(queries), device=queries.device)
    for start in starts:
        scores = _score_block(model, queries, start) if only is None else only
        rows = _inside(answers, start)
        own[rows] = scores[rows, answers[rows] - start]
    greater = torch.zeros(len(queries), dtype=torch.float64, device=queries.device)
    equal = torch.zeros_like(greater)
    for start in starts:
        scores = _score_block(model, queries, start) if only is None else only
        is_candidate = torch.ones_like(scores, dtype=torch.bool)
        if excluded is not None:
            pairs = _inside(excluded[1], start)
            is_candidate[excluded[0][pairs], excluded[1][pairs] - start] = False
        rows = _inside(answers, start)
        is_candidate[rows, answers[rows] - start] = False  # no rival of itself
        is_less, is_equal = scores < own[:, None], scores == own[:, None]
        greater += (is_candidate & ~is_less & ~is_equal).sum(-1)
        equal += (is_candidate & is_equal).sum(-1)
    return 1.0 + greater + 0.5 * equal


def _score_block(model: GraphEmbedding, queries: Tensor, start: int) -> Tensor:
    """Return the scores (Q, entities of the block) of queries (Q, D)."""
    numbers = torch.arange(start, min(start + ENTITIES, model.vocab), device=queries.device)
    return model.score.score_pairs(queries[None], model.vectors(numbers)[None], exact=True)[0]


def _inside(entities: Tensor, start: int) -> Tensor:
    """Return the places of those entities that lie in the block."""
    return ((entities >= start) & (entities < start + ENTITIES)).nonzero()[:, 0]

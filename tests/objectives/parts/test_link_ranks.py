"""Filtered ranks with mean ties against a loop over all entities; what a model without knowledge scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from etude.graph.known_answers import KnownAnswers
from etude.models.graph_embedding import GraphEmbedding, Settings
from etude.objectives.parts import link_ranks
from etude.objectives.parts.link_ranks import rank_answers

ENTITIES, RELATIONS = 23, 3
SCORES: list[dict[str, Any]] = [
    {"score": "transe", "norm": 1},
    {"score": "transe", "norm": 2},
    {"score": "rotate", "init": "range", "init_range": 0.7},
    {"score": "distmult", "init": "normal", "init_range": 0.5},
    {"score": "complex", "init": "normal", "init_range": 0.5},
]


def make_model(settings: dict[str, Any]) -> GraphEmbedding:
    torch.manual_seed(0)
    return GraphEmbedding(Settings(**({"width": 4, "vocab": ENTITIES, "relations": RELATIONS} | settings))).eval()


def make_triples(count: int, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    columns = [draw.integers(limit, size=count) for limit in (ENTITIES, RELATIONS, ENTITIES)]
    return np.stack(columns, 1).astype(np.int32)


def rank_by_loop(
    model: GraphEmbedding, triples: np.ndarray, known: set[tuple[int, ...]], wants_head: bool
) -> list[float]:
    """Each candidate triple scored alone, in a loop over all entities."""
    ranks = []
    for head, relation, tail in triples.tolist():
        scores = {}
        for entity in range(ENTITIES):
            triple = (entity, relation, tail) if wants_head else (head, relation, entity)
            scores[entity] = float(model.score_triples(*(torch.tensor([number]) for number in triple)).detach())
        answer = head if wants_head else tail
        rivals = [
            score
            for entity, score in scores.items()
            if entity != answer and ((entity, relation, tail) if wants_head else (head, relation, entity)) not in known
        ]
        close = 1e-6  # of one and the same score, computed by two ways of adding up
        greater = sum(score > scores[answer] + close for score in rivals)
        equal = sum(abs(score - scores[answer]) <= close for score in rivals)
        ranks.append(1 + greater + equal / 2)
    return ranks


@pytest.mark.parametrize("settings", SCORES, ids=str)
@pytest.mark.parametrize("block", [2**18, 7])
def test_ranks_are_those_of_a_loop_over_all_entities(
    settings: dict[str, Any], block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_ranks, "ENTITIES", block)
    monkeypatch.setattr(link_ranks, "SCORES", 5 * block)  # a few queries at a time
    model, triples = make_model(settings), make_triples(12)
    all_known = np.concatenate([triples, make_triples(200, seed=1)])
    filtered, known = KnownAnswers.from_triples(all_known, RELATIONS), set(map(tuple, all_known.tolist()))
    heads, relations, tails = triples.T
    for wants_head in (False, True):
        given, answers = (tails, heads) if wants_head else (heads, tails)
        sides = np.full(len(triples), wants_head)
        ranks = rank_answers(model, given, relations, sides, answers, filtered)
        np.testing.assert_array_equal(ranks, rank_by_loop(model, triples, known, wants_head))
        raw = rank_answers(model, given, relations, sides, answers, None)
        np.testing.assert_array_equal(raw, rank_by_loop(model, triples, set(), wants_head))
        assert (ranks <= raw).all() and (ranks < raw).any()


@pytest.mark.parametrize("settings", SCORES, ids=str)
@pytest.mark.parametrize("block", [2**18, 7])
def test_a_constant_model_gets_the_score_of_chance(
    settings: dict[str, Any], block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All entities equal: every rank is the middle of the candidates, neither 1 nor the last."""
    monkeypatch.setattr(link_ranks, "ENTITIES", block)
    model, triples = make_model(settings), make_triples(30)
    with torch.no_grad():
        model.entities.weight.copy_(model.entities.weight[:1].expand(ENTITIES, -1))
    heads, relations, tails = triples.T
    ranks = rank_answers(model, heads, relations, np.zeros(30, bool), tails, None)
    np.testing.assert_array_equal(ranks, np.full(30, (ENTITIES + 1) / 2))
    filtered = KnownAnswers.from_triples(triples, RELATIONS)
    queries, _ = filtered.find(heads, relations, np.zeros(30, bool))
    candidates = ENTITIES - np.bincount(queries, minlength=30) + 1  # the answer itself is among the known ones
    np.testing.assert_array_equal(
        rank_answers(model, heads, relations, np.zeros(30, bool), tails, filtered), (candidates + 1) / 2
    )


def test_scores_that_are_no_numbers_rank_last() -> None:
    model, triples = make_model({"score": "transe"}), make_triples(5)
    with torch.no_grad():
        model.entities.weight.fill_(float("nan"))
    heads, relations, tails = triples.T
    ranks = rank_answers(model, heads, relations, np.zeros(5, bool), tails, None)
    np.testing.assert_array_equal(ranks, np.full(5, float(ENTITIES)))


def test_known_answers_are_found_on_both_sides() -> None:
    triples = np.array([[0, 0, 1], [0, 0, 2], [0, 0, 2], [3, 1, 1]])
    known = KnownAnswers.from_triples(triples, 2)
    queries, answers = known.find(np.array([0, 2, 1, 9]), np.array([0, 0, 1, 1]), np.array([False, True, True, False]))
    assert list(zip(queries.tolist(), answers.tolist(), strict=True)) == [(0, 1), (0, 2), (1, 0), (2, 3)]

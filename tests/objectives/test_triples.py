"""Learning from triples: negatives, losses against plain formulas, unit norms, FLOPs, and that it learns."""

from __future__ import annotations

import cmath
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from etude.chance import Chance
from etude.errors import UserError
from etude.graph.graph import Graph
from etude.graph.graph_split import GraphSplit
from etude.graph.known_answers import KnownAnswers
from etude.models.graph_embedding import GraphEmbedding
from etude.models.graph_embedding import Settings as ModelSettings
from etude.objectives.parts.link_ranks import rank_answers
from etude.objectives.triples import NO_NEGATIVE, Settings, TripleBatch, Triples, build
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.runs.source import open_source, resolve_for
from etude.text.tokenizer.special_tokens import Specials
from etude.train.loop import Loop
from etude.world import World
from etude.world.knowledge.knowledge import Knowledge

SCORES: list[dict[str, Any]] = [
    {"score": "transe", "norm": 1},
    {"score": "transe", "norm": 2},
    {"score": "rotate", "init": "range", "init_range": 0.7},
    {"score": "distmult", "init": "normal", "init_range": 0.5},
    {"score": "complex", "init": "normal", "init_range": 0.5},
]


def ring(entities: int = 60, relations: int = 8, held_out: int = 40) -> Graph:
    """Relation r leads r + 1 places on around a ring: rotations learn it, one line of translations does not."""
    triples = np.array([[e, r, (e + r + 1) % entities] for e in range(entities) for r in range(relations)])
    triples = triples[np.random.default_rng(0).permutation(len(triples))]
    names = [f"e{number}" for number in range(entities)]
    return Graph.from_triples(
        triples[held_out:], names, [f"r{number}" for number in range(relations)], valid=triples[:held_out]
    )


def make(graph: Graph, model: dict[str, Any] | None = None, **settings: Any) -> tuple[GraphEmbedding, Triples]:
    torch.manual_seed(0)
    sizes = {"width": 8, "vocab": len(graph.entities), "relations": len(graph.relations)}
    embedding = GraphEmbedding(ModelSettings(**(sizes | (model or {}))))
    return embedding, build(Settings(**({"row_tokens": 16} | settings)), embedding, Specials())


def make_batch(objective: Triples, graph: Graph, rows: int = 2, step: int = 0) -> TripleBatch:
    source = objective.rows(GraphSplit(graph), 0)
    return objective.batch([source[number] for number in range(rows)], Chance(0, step))


def plain_score(model: GraphEmbedding, head: int, relation: int, tail: int) -> float:
    """The published formula of one triple, number by number."""
    h, t = model.entities.weight[head].tolist(), model.entities.weight[tail].tolist()
    r, settings, half = model.relations.weight[relation].tolist(), model.settings, len(h) // 2
    if settings.score == "transe":
        return -(sum(abs(a + b - c) ** settings.norm for a, b, c in zip(h, r, t, strict=True)) ** (1 / settings.norm))
    if settings.score == "distmult":
        return sum(a * b * c for a, b, c in zip(h, r, t, strict=True))
    heads, tails = ([complex(v[i], v[half + i]) for i in range(half)] for v in (h, t))
    if settings.score == "complex":
        kinds = [complex(r[i], r[half + i]) for i in range(half)]
        return sum((a * b * c.conjugate()).real for a, b, c in zip(heads, kinds, tails, strict=True))
    assert settings.init_range is not None
    turns = [cmath.exp(1j * math.pi * value / settings.init_range) for value in r]
    return -sum(abs(a * b - c) for a, b, c in zip(heads, turns, tails, strict=True))


def plain_scores(model: GraphEmbedding, batch: TripleBatch, share: int) -> tuple[Tensor, Tensor]:
    """Scores of the true triples and of each replaced one, one after another."""
    positive, negative = [], []
    for place in range(len(batch.tokens)):
        known, relation, answer = int(batch.tokens[place]), int(batch.relations[place]), int(batch.answers[place])
        is_head = bool(batch.wants_head[place])
        score = lambda other: plain_score(model, *((other, relation, known) if is_head else (known, relation, other)))  # noqa: B023, E731
        positive.append(score(answer))
        drawn = batch.negatives[place // share].tolist()
        negative.append([NO_NEGATIVE if other == answer else score(other) for other in drawn])
    return torch.tensor(positive, dtype=torch.float64), torch.tensor(negative, dtype=torch.float64)


# --- scores and losses ------------------------------------------------------------------------------


@pytest.mark.parametrize("model", SCORES, ids=str)
@pytest.mark.parametrize("share", [1, 8])
def test_scores_are_the_published_formulas(model: dict[str, Any], share: int) -> None:
    graph = ring(12, 3, 4)
    embedding, objective = make(graph, model, negatives=5, share=share)
    batch = make_batch(objective, graph)
    assert batch.wants_head.any() and not batch.wants_head.all()
    positive, negative = objective.score(embedding, batch)
    expected = plain_scores(embedding, batch, share)
    torch.testing.assert_close(positive.double(), expected[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(negative.double(), expected[1], rtol=1e-4, atol=1e-5)
    heads, relations, tails = torch.tensor([3, 1]), torch.tensor([0, 2]), torch.tensor([5, 0])
    triples = [plain_score(embedding, *triple) for triple in ((3, 0, 5), (1, 2, 0))]
    torch.testing.assert_close(
        embedding.score_triples(heads, relations, tails), torch.tensor(triples), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("model", [score for score in SCORES if score["score"] in ("transe", "rotate")], ids=str)
def test_candidates_read_by_number_score_and_learn_as_their_vectors_do(
    model: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = ring(12, 3, 4)
    embedding, objective = make(graph, model, negatives=5)
    batch = make_batch(objective, graph)
    weights = list(embedding.parameters())
    results = []
    for by_number in (False, True):
        monkeypatch.setattr("etude.models.graph_embedding.has_kernels", lambda _, by_number=by_number: by_number)
        assert embedding.can_score_by_number() == by_number
        positive, negative = objective.score(embedding, batch)
        assert (negative == NO_NEGATIVE).any()  # an answer was drawn
        total = positive.sum() + negative.clamp(min=-100).square().sum()
        results.append([positive, negative, *torch.autograd.grad(total, weights)])
    for vectors, numbers in zip(*results, strict=True):
        torch.testing.assert_close(vectors, numbers)


def test_unit_vectors_are_read_by_number_in_training_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etude.models.graph_embedding.has_kernels", lambda _: True)
    embedding, _ = make(ring(12, 3, 4), {"unit_entities": True})
    assert embedding.can_score_by_number()
    assert not embedding.eval().can_score_by_number()  # there they are divided as they are read
    dot, _ = make(ring(12, 3, 4), {"score": "distmult"})
    assert not dot.can_score_by_number()  # a product


def test_losses_are_the_published_formulas() -> None:
    graph = ring(30, 3, 4)
    for loss, adversarial in (("margin", 0.0), ("logistic", 0.0), ("logistic", 0.7), ("softmax", 0.0)):
        model, objective = make(
            graph, negatives=6, share=4, loss=loss, margin=2.0, adversarial=adversarial, subsampling=True
        )
        batch = make_batch(objective, graph)
        assert batch.weights is not None
        positive, negative = (tensor.detach().double() for tensor in objective.score(model, batch))
        expected: dict[str, float] = {}
        for weight, s, others in zip(batch.weights.tolist(), positive.tolist(), negative.tolist(), strict=True):
            if loss == "margin":
                terms = {"loss": sum(max(0.0, 2.0 - s + o) for o in others)}
            elif loss == "softmax":
                terms = {"loss": -math.log(math.exp(s) / (math.exp(s) + sum(math.exp(o) for o in others)))}
            else:
                shares = [math.exp(adversarial * o) for o in others]
                sigmoid = lambda x: 1 / (1 + math.exp(-x))  # noqa: E731
                terms = {
                    "positive": -math.log(sigmoid(2.0 + s)),
                    "negative": -sum(
                        p / sum(shares) * math.log(sigmoid(-2.0 - o)) for p, o in zip(shares, others, strict=True)
                    ),
                }
            for name, value in terms.items():
                expected[name] = expected.get(name, 0.0) + weight * value
        actual = objective.loss(model.eval(), batch)
        assert {name: float(term.sum.detach()) for name, term in actual.items()} == pytest.approx(expected, rel=1e-4)
        assert {term.count for term in actual.values()} == {32 * 6 if loss == "margin" else 32}
        assert {term.weight for term in actual.values()} == {0.5 if loss == "logistic" else 1.0}


def test_weights_of_self_adversarial_negatives_have_no_gradient() -> None:
    graph = ring(30, 3, 4)
    model, objective = make(graph, negatives=6, loss="logistic", adversarial=3.0)
    batch = make_batch(objective, graph)
    _, negative = objective.score(model, batch)
    shares = torch.softmax(3.0 * negative, -1).detach()
    expected = -(shares * torch.nn.functional.logsigmoid(-1.0 - negative)).sum()
    wanted = torch.autograd.grad(expected, model.entities.weight)[0]
    got = torch.autograd.grad(objective.loss(model, batch)["negative"].sum, model.entities.weight)[0]
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-6)


def test_unit_norms_hold_before_every_batch_and_wherever_vectors_are_read() -> None:
    graph = ring(20, 3, 4)
    model, objective = make(graph, {"unit_entities": True})
    batch = make_batch(objective, graph)
    with torch.no_grad():
        model.entities.weight.mul_(3.0)
    before = model.entities.weight.clone()
    model.eval()
    objective.loss(model, batch)
    assert torch.equal(model.entities.weight, before)  # evaluation changes nothing, and reads unit vectors
    torch.testing.assert_close(model.vectors(torch.arange(20)).norm(dim=1), torch.ones(20))
    model.train()
    objective.loss(model, batch)
    torch.testing.assert_close(model.entities.weight.norm(dim=1), torch.ones(20))
    with torch.no_grad():
        model.entities.weight.mul_(2.0)
    model.finish_training()
    torch.testing.assert_close(model.entities.weight.norm(dim=1), torch.ones(20))
    free, _ = make(graph)
    assert float((free.entities.weight.norm(dim=1) - 1).abs().max()) > 0.1


def test_initial_values_are_those_of_the_papers() -> None:
    graph = ring(500, 3, 4)
    model, _ = make(graph, {"width": 36})
    assert float(model.entities.weight.abs().max()) == pytest.approx(1.0, rel=0.01)  # 6 / sqrt(36)
    torch.testing.assert_close(model.relations.weight.norm(dim=1), torch.ones(3))
    ranged, _ = make(graph, {"width": 36, "init": "range", "init_range": 0.2})
    assert float(ranged.entities.weight.abs().max()) == pytest.approx(0.2, rel=0.01)


# --- negatives --------------------------------------------------------------------------------------


def test_corruption_of_each_side_follows_bernoulli() -> None:
    """40 tails a head for relation 0, the other way round for relation 1, one to one for 2."""
    triples = (
        [[0, 0, 1 + t] for t in range(40)] + [[1 + h, 1, 0] for h in range(40)] + [[k, 2, k + 1] for k in range(40)]
    )
    graph = Graph.from_triples(triples, [f"e{k}" for k in range(60)], ["many tails", "many heads", "one"])
    expected = {"uniform": (0.5, 0.5, 0.5), "bernoulli": (40 / 41, 1 / 41, 0.5)}
    for corrupt, shares in expected.items():
        _, objective = make(graph, negatives=1, corrupt=corrupt, row_tokens=120)
        row = objective.rows(GraphSplit(graph), 0)[0]
        counts, heads = np.zeros(3), np.zeros(3)
        for step in range(400):
            batch = objective.batch([row], Chance(0, step))
            relations = batch.relations.numpy()
            counts += np.bincount(relations, minlength=3)
            heads += np.bincount(relations, weights=batch.wants_head.numpy(), minlength=3)
        error = 4 * np.sqrt(np.maximum(np.array(shares) * (1 - np.array(shares)), 1e-9) / counts)
        assert (np.abs(heads / counts - shares) < error + 1e-9).all(), (corrupt, heads / counts)


def test_negatives_are_uniform_over_all_entities() -> None:
    graph = ring(50, 8, 4)
    _, objective = make(graph, negatives=64, share=1)
    counts = np.zeros(50)
    for step in range(50):
        counts += np.bincount(make_batch(objective, graph, 2, step).negatives.numpy().ravel(), minlength=50)
    mean = counts.sum() / 50
    chi_squared = float(((counts - mean) ** 2 / mean).sum())
    assert 20 < chi_squared < 90  # 49 degrees of freedom: outside by chance less than once in 10,000


def test_a_batch_is_a_function_of_its_rows_and_micro_batches_do_not_change_a_step() -> None:
    graph = ring()
    model, objective = make(graph, negatives=7, share=4, loss="logistic", subsampling=True, corrupt="bernoulli")
    rows = objective.rows(GraphSplit(graph), 3)
    pair = [rows[5], rows[1]]
    whole = objective.batch(pair, Chance(3, 9))
    again = objective.batch([objective.rows(GraphSplit(graph), 3)[number] for number in (5, 1)], Chance(3, 9))
    assert torch.equal(whole.negatives, again.negatives) and torch.equal(whole.tokens, again.tokens)
    parts = [objective.batch([row], Chance(3, 9)) for row in pair]
    for name in ("tokens", "answers", "relations", "wants_head", "negatives", "weights"):
        joined = torch.cat([getattr(part, name) for part in parts])
        assert torch.equal(getattr(whole, name), joined), name
    total = objective.loss(model, whole)
    for name, term in total.items():
        split = [objective.loss(model, part)[name] for part in parts]
        torch.testing.assert_close(term.sum, split[0].sum + split[1].sum)
        assert term.count == split[0].count + split[1].count


def test_a_row_that_does_not_fill_its_last_group_scores_the_same() -> None:
    graph = ring(30, 3, 7)  # 7 held-out triples in groups of 4
    model, objective = make(graph, negatives=3, share=4, row_tokens=8)
    rows = objective.rows(GraphSplit(graph, "valid"), 0)
    assert len(rows) == 1 and len(rows[0].tokens) == 7
    batch = objective.batch([rows[0]], Chance(0, -1))
    assert batch.grouped is not None and batch.size == 7
    positive, negative = objective.score(model, batch)
    expected = plain_scores(model, batch, 4)
    torch.testing.assert_close(negative.double(), expected[1], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(positive.double(), expected[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("share", "split"), [(1, "train"), (8, "train"), (4, "valid")])
def test_filtered_negatives_are_those_that_no_train_triple_says_are_true(share: int, split: str) -> None:
    rng = np.random.default_rng(1)
    triples = np.unique(
        np.stack([rng.integers(0, 12, 150), rng.integers(0, 2, 150), rng.integers(0, 12, 150)], 1), axis=0
    )
    triples = rng.permutation(triples)
    names = [f"e{number}" for number in range(12)]
    graph = Graph.from_triples(triples[7:], names, ["r0", "r1"], valid=triples[:7])
    train = set(map(tuple, triples[7:].tolist()))
    model, objective = make(graph, negatives=9, share=share, filter_negatives=True)
    row = objective.rows(GraphSplit(graph, split), 0)[0]
    batch = objective.batch([row], Chance(0, 0))
    objective.to_empty(device="cpu")  # as where a model is divided into shards
    _, negative = objective.score(model, batch)
    left_out = (negative == NO_NEGATIVE).tolist()
    kinds = set()
    for place, (head, relation, tail) in enumerate(row.triples.tolist()):
        for number, entity in enumerate(batch.negatives[place // share].tolist()):
            is_head = bool(batch.wants_head[place])
            replaced = (entity, relation, tail) if is_head else (head, relation, entity)
            is_answer = entity == (head if is_head else tail)
            kinds.add((is_answer, replaced in train))
            assert left_out[place][number] == (is_answer or replaced in train), (place, number)
    assert len(kinds) >= 3  # an answer, another true triple, and a false one were drawn
    assert "train_pairs" not in objective.state_dict()  # a run does not keep what its graph has


# --- cost, problems, learning -----------------------------------------------------------------------


def test_flops_count_every_score_of_forward_and_backward() -> None:
    graph = ring(30, 3, 4)
    for score, a_query in (("transe", 2), ("distmult", 2), ("complex", 3)):
        init = {} if score == "transe" else {"init": "normal", "init_range": 0.1}
        model, objective = make(graph, {"score": score, "width": 10, **init}, negatives=5)
        batch = make_batch(objective, graph)
        assert objective.flops(model, batch) == 3 * 32 * (a_query * 10 + (1 + 5) * 2 * 10)


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="share=3 triples do not divide"):
        Settings(share=3)
    with pytest.raises(ValueError, match="weighs the negatives of loss=logistic"):
        Settings(adversarial=1.0)
    with pytest.raises(ValueError, match="complex vectors"):
        ModelSettings(width=5, score="rotate", init="range", init_range=1.0)
    with pytest.raises(ValueError, match="reads phases"):
        ModelSettings(width=4, score="rotate")
    with pytest.raises(ValueError, match="needs init_range"):
        ModelSettings(width=4, init="normal")
    with pytest.raises(ValueError, match="norm=2"):
        ModelSettings(width=4, score="distmult", norm=2)
    with pytest.raises(UserError, match="graph_embedding"):
        Recipe.load("transe-toy").build_objective(Recipe.load("glove-toy").resolve().build_model(), Specials())


def test_problems_of_a_graph_are_named() -> None:
    graph = Graph.from_triples([[0, 0, 0], [0, 0, 1]], ["a", "b", "c"], ["r"])
    _, objective = make(graph)
    problems = objective.find_problems(GraphSplit(graph))
    assert "1 of 3 entities are in no train triple" in problems[0]
    assert "1 triples have one entity as head and tail" in problems[1]


@pytest.mark.gpu
@pytest.mark.parametrize("share", [32, 1])
@pytest.mark.parametrize("recipe", ["transe-toy", "rotate-toy", "complex-toy"])
def test_steps_on_a_gpu_are_recorded_and_agree_with_the_cpu(recipe: str, share: int, tmp_path: Path) -> None:
    weights = {}
    for device in ("cpu", "cuda"):
        changes = {
            "train.steps": 12, "train.workers": 0, "train.precision": "float32", "objective.share": share,
            "objective.filter_negatives": True,
        }  # fmt: skip
        loaded = Recipe.load(recipe, changes)
        source = open_source(ring(), loaded)
        resolved = resolve_for(loaded, source)
        model, objective = build_learner(resolved, None)
        folder = tmp_path / device
        folder.mkdir()
        rows = objective.rows(source, 0)
        loop = Loop(folder, model, objective, rows, resolved.train, total=12, device=torch.device(device))
        loop.run()
        if device == "cuda":
            assert loop.recorder is not None and loop.recorder.obstacle is None
            assert all(recording.is_recorded for recording in loop.recorder.recordings.values())
        weights[device] = model.entities.weight.detach().cpu()
    torch.testing.assert_close(weights["cpu"], weights["cuda"], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("corrupt", ["uniform", "bernoulli"])
def test_held_out_ranks_are_those_of_both_ends(corrupt: str) -> None:
    """Every town has many inhabitants: "bernoulli" replaces these, and asking for towns alone would look better."""
    triples = np.array([[person, 0, 50 + person % 5] for person in range(50)])
    names = [f"e{number}" for number in range(55)]
    graph = Graph.from_triples(triples[10:], names, ["lives in"], valid=triples[:10])
    model, objective = make(graph, corrupt=corrupt)
    rows = objective.rows(GraphSplit(graph, "valid"), 0)
    heads, kinds, tails = triples[:10].T
    asks_head, known = np.ones(10, bool), KnownAnswers.from_graph(graph)
    ranks = np.concatenate([
        rank_answers(model, tails, kinds, asks_head, heads, known),
        rank_answers(model, heads, kinds, ~asks_head, tails, known),
    ])  # fmt: skip
    with torch.no_grad():
        stats = objective.metrics(model, objective.batch([rows[0]], Chance(0, -1)))
    assert stats["mrr"].mean == pytest.approx((1 / ranks).mean())
    assert stats["mean_rank"].mean == pytest.approx(ranks.mean())
    assert stats["hits_at_10"].mean == pytest.approx((ranks <= 10).mean())


@pytest.mark.parametrize(("recipe", "least"), [("rotate-toy", 0.95), ("complex-toy", 0.95), ("transe-toy", 0.3)])
def test_a_toy_learns_a_ring(recipe: str, least: float, tmp_path: Path) -> None:
    """Chance has an MRR of 0.08 among 60 entities. A ring has no translation on a line, so TransE learns it in part."""
    loaded = Recipe.load(
        recipe, {"train.steps": 150, "train.workers": 0, "train.precision": "float32", "model.width": 32}
    )
    source = open_source(ring(), loaded)
    resolved = resolve_for(loaded, source)
    model, objective = build_learner(resolved, None)
    rows, valid = objective.rows(source, 0), objective.rows(GraphSplit(ring(), "valid"), 0)
    result = Loop(tmp_path, model, objective, rows, resolved.train, total=150, valid_rows=valid).run()
    assert result.valid["mrr"] > least
    assert result.state.tokens == 150 * 256


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["transe-toy", "rotate-toy"])
def test_a_toy_ranks_held_out_facts_of_the_world_far_above_chance(recipe: str, tmp_path: Path) -> None:
    """2,026 entities: chance has an MRR of 0.004 and a mean rank of a thousand; 600 steps take seconds."""
    graph = Knowledge(World(0)).graph()
    train = {"train.steps": 600, "train.workers": 0, "train.precision": "float32", "train.device": "cpu"}
    loaded = Recipe.load(recipe, {**train, "train.eval_every": 0, "train.save_every": 0})
    source = open_source(graph, loaded)
    resolved = resolve_for(loaded, source)
    model, objective = build_learner(resolved, None)
    rows, test = objective.rows(source, 0), objective.rows(GraphSplit(graph, "test"), 0)
    result = Loop(tmp_path, model, objective, rows, resolved.train, total=600, valid_rows=test).run()
    assert result.valid["mrr"] > 0.35 and result.valid["mean_rank"] < 40


def test_a_graph_of_a_few_triples_trains(tmp_path: Path) -> None:
    """Fewer triples than a row and than a group of shared negatives."""
    graph = Graph.from_triples([[0, 0, 1], [1, 0, 2], [2, 0, 3]], ["a", "b", "c", "d"], ["next"])
    train = {"train.steps": 3, "train.workers": 0, "train.precision": "float32", "train.device": "cpu"}
    loaded = Recipe.load("transe-toy", train)
    source = open_source(graph, loaded)
    resolved = resolve_for(loaded, source)
    model, objective = build_learner(resolved, None)
    result = Loop(tmp_path, model, objective, objective.rows(source, 0), resolved.train, total=3).run()
    assert result.state.tokens == 3 * (256 // 3) * 3
    assert bool(torch.isfinite(model.entities.weight).all())

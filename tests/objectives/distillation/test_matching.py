"""What a student learns of its teacher's inside: TinyBERT's equations, computed once more by hand."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from etude.errors import UserError
from etude.objectives.base import IGNORE
from etude.objectives.distillation.matching import matched_layers
from tests.objectives.test_distill import batch_of, lesson

INSIDE = {"attention_weight": 1.0, "hidden_weight": 1.0, "embedding_weight": 1.0}
SILENT = {"soft_weight": 0.0, "mlm_weight": 0.0, "cosine_weight": 0.0}


def scores(model: Any, layers: list[Tensor], number: int, start: int, stop: int) -> Tensor:
    """Of one sequence in one layer before the softmax, (H, L, L), from the states below it."""
    branch = model.attention[number]
    x = layers[number][start:stop]
    x = branch.norm(x) if branch.placement == "pre" else x
    query, key, _ = branch.qkv(x).view(stop - start, 3, branch.heads, branch.size).permute(1, 2, 0, 3)
    return query @ key.transpose(1, 2) / branch.size**0.5


@pytest.mark.parametrize("layers", [1, 3])
def test_the_losses_are_the_equations(layers: int) -> None:
    student, objective = lesson(layers, **INSIDE, **SILENT, start="random")
    batch = batch_of(objective)
    terms = objective.loss(student, batch)
    assert set(terms) == {"attention", "hidden", "embedding"}
    teacher, fit = objective.teacher.model, objective.matching.fit
    with torch.no_grad():
        mine, its = student(batch, layers=True).layers, teacher(batch, layers=True).layers
        bounds = batch.layout.host.tolist()
        attention = hidden = 0.0
        for number in range(layers):
            above = 3 // layers * (number + 1)  # layer m of M has the teacher's m N / M
            squares = [
                (scores(student, mine, number, *ends) - scores(teacher, its, above - 1, *ends)).square().flatten()
                for ends in pairwise(bounds)
            ]
            attention += float(torch.cat(squares).mean())
            hidden += float(F.mse_loss(fit(mine[number + 1]), its[above]))
        embedding = float(F.mse_loss(fit(mine[0]), its[0]))
    for name, expected in (("attention", attention), ("hidden", hidden), ("embedding", embedding)):
        assert terms[name].sum.item() / terms[name].count == pytest.approx(expected, rel=1e-5)


def test_layers_are_the_ends_of_equal_shares() -> None:
    assert matched_layers(4, 12, None) == [2, 5, 8, 11]
    assert matched_layers(6, 12, None) == [1, 3, 5, 7, 9, 11]
    assert matched_layers(2, 5, [4, 0]) == [4, 0]
    with pytest.raises(UserError, match="do not divide"):
        matched_layers(4, 6, None)
    with pytest.raises(UserError, match="0 to 4, for each of 2"):
        matched_layers(2, 5, [1])


@pytest.mark.parametrize("name", ["attention", "hidden", "embedding"])
def test_each_may_be_left_out(name: str) -> None:
    ways = {**INSIDE, **SILENT, f"{name}_weight": 0.0, "start": "random"}
    student, objective = lesson(1, **ways)
    batch = batch_of(objective)
    assert set(objective.loss(student, batch)) == set(objective.metrics(student, batch)) == {
        "attention", "hidden", "embedding",
    } - {name}  # fmt: skip
    assert name not in batch.counts


def test_the_paper_has_a_projection_for_the_embedding() -> None:
    student, objective = lesson(1, **INSIDE, **SILENT, projections="two")
    sum(term.sum for term in objective.loss(student, batch_of(objective)).values()).backward()
    assert objective.matching.fit.weight.grad is not None
    assert objective.matching.fit_embedding.weight.grad is not None
    _, only = lesson(1, **SILENT, embedding_weight=1.0, projections="two")
    assert only.matching.fit is None


def test_it_is_learnt_along_and_not_kept() -> None:
    student, objective = lesson(1, **INSIDE, **SILENT)
    assert {name for name in objective.state_dict() if name not in objective.persistent_state()} >= {
        "matching.fit.weight", "matching.fit.bias", "head.bias",
    }  # fmt: skip
    _, speaking = lesson(1, **INSIDE)
    assert "head.bias" in speaking.persistent_state() and "matching.fit.weight" not in speaking.persistent_state()
    optimizer = torch.optim.AdamW([*student.parameters(), *objective.parameters()], lr=1e-2)
    batch, seen = batch_of(objective), []
    for _ in range(40):
        terms = objective.loss(student, batch)
        seen.append({name: term.sum.item() / term.count for name, term in terms.items()})
        sum(term.sum / term.count for term in terms.values()).backward()
        optimizer.step()
        optimizer.zero_grad()
    for name, first in seen[0].items():
        assert seen[-1][name] < 0.7 * first, name
    assert all(weight.grad is None for weight in objective.teacher.model.parameters())


def test_terms_add_up_over_micro_batches() -> None:
    student, objective = lesson(1, **INSIDE, **SILENT)
    whole = objective.loss(student, batch_of(objective, range(4)))
    parts = [objective.loss(student, batch_of(objective, numbers)) for numbers in (range(2), range(2, 4))]
    for name, term in whole.items():
        assert term.count == sum(part[name].count for part in parts)
        assert term.sum.item() == pytest.approx(sum(part[name].sum.item() for part in parts), rel=1e-4)


@pytest.mark.parametrize("spoken", [{}, {"soft_weight": 0.0}, {"mlm_weight": 0.0}, SILENT])
def test_flops_are_those_torch_counts(spoken: dict[str, float]) -> None:
    student, objective = lesson(1, **INSIDE, **spoken)
    student.path = objective.teacher.model.path = "reference"  # fused attention is invisible to the counter
    batch = batch_of(objective, range(1))
    used, real = batch.targets != IGNORE, int((batch.layout.lengths > 0).sum())
    batch.index, batch.targets = batch.index[used], batch.targets[used]
    batch.layout = type(batch.layout).from_bounds(batch.layout.host[: real + 1], batch.layout.longest)
    if len({*batch.layout.lengths.tolist()}) > 1:  # sequences of one length are not padded
        one = batch.layout.host[:2]
        batch.tokens, batch.positions = batch.tokens[: one[1]], batch.positions[: one[1]]
        batch.segments = None if batch.segments is None else batch.segments[: one[1]]
        inside = batch.index < one[1]
        batch.index, batch.targets = batch.index[inside], batch.targets[inside]
        batch.layout = type(batch.layout).from_bounds(one, batch.layout.longest)
        batch.counts["mlm"] = int(inside.sum())
    with FlopCounterMode(display=False) as counter:
        sum(term.sum for term in objective.loss(student, batch).values()).backward()
    assert counter.get_total_flops() == objective.flops(student, batch)

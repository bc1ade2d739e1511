"""A student and its teacher: the losses are those of torch's modules, and the teacher is no part of the student."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from etude.chance import Chance
from etude.objectives import masked
from etude.objectives.base import IGNORE
from etude.objectives.distill import Distill, DistillSettings, Settings
from etude.objectives.distillation.teacher import Teacher
from tests.objectives.small_corpus import SPECIAL
from tests.objectives.test_masked import CORPUS, model


def lesson(student_layers: int = 1, **settings: Any) -> tuple[Any, Distill]:
    """A student without segments and its teacher, which has them; both of random weights that differ."""
    large = model(layers=3, dropout=0.5, attention_dropout=0.5, embedding_dropout=0.5)
    teacher = Teacher(large, masked.build(masked.Settings(sentence="next"), large, SPECIAL))
    student = model(layers=student_layers, segments=0, pooler=False)
    with torch.no_grad():
        for weight in [*large.parameters(), *teacher.objective.parameters()]:
            weight.add_(0.1 * torch.randn_like(weight))
    objective = Distill(Settings(distill=DistillSettings(**settings)), student, SPECIAL)
    objective.attach_teacher(student, teacher)
    return student, objective


def batch_of(objective: Distill, numbers: range = range(2)) -> Any:
    rows = objective.rows(CORPUS, seed=0)
    return objective.batch([rows[number] for number in numbers], Chance(0, 0))


@pytest.mark.parametrize("soft_at", ["tokens", "masks"])
def test_the_losses_are_those_of_the_released_code(soft_at: str) -> None:
    """KLDivLoss(batchmean) of softened logits at all tokens, CrossEntropyLoss at masked ones, CosineEmbeddingLoss.

    `masks` is `restrict_ce_to_mask` there.
    """
    student, objective = lesson(temperature=2.0, soft_at=soft_at)
    batch = batch_of(objective)
    assert bool((batch.targets == IGNORE).any())  # unused slots, which must not count
    terms = objective.loss(student, batch)
    teacher = objective.teacher
    with torch.no_grad():
        mine, its = student(batch), teacher.model(batch)
        said, known = objective.logits(student, mine), teacher.objective.logits(teacher.model, its)
        labels = torch.full_like(batch.tokens, -100)
        used = batch.targets != IGNORE
        labels[batch.index[used]] = batch.targets[used]
        where = labels > -1 if soft_at == "masks" else torch.ones_like(labels, dtype=torch.bool)
        divergence = nn.KLDivLoss(reduction="batchmean")
        soft = divergence((said[where] / 2).log_softmax(-1), (known[where] / 2).softmax(-1)) * 2**2
        hard = nn.CrossEntropyLoss(ignore_index=-100)(said, labels)
        alike = nn.CosineEmbeddingLoss(reduction="mean")(mine.last, its.last, torch.ones(len(said)))
    for name, expected, weight in (("soft", soft, 5.0), ("mlm", hard, 2.0), ("cosine", alike, 1.0)):
        assert float((terms[name].sum / terms[name].count).detach()) == pytest.approx(float(expected), rel=1e-5)
        assert terms[name].weight == weight
    assert {name: stat.weight for name, stat in objective.metrics(student, batch).items()} == {
        "soft": 5.0, "mlm": 2.0, "cosine": 1.0, "accuracy": None,
    }  # fmt: skip
    for name, stat in objective.metrics(student, batch).items():
        if name in terms:
            assert stat.mean == pytest.approx(float(terms[name].sum.detach()) / terms[name].count, rel=1e-5)


def test_the_teacher_is_no_part_of_the_student() -> None:
    student, objective = lesson()
    plain = masked.build(masked.Settings(), student, SPECIAL)
    assert objective.state_dict().keys() == plain.state_dict().keys()
    objective.train()
    before = [weight.clone() for weight in objective.teacher.model.parameters()]
    batch = batch_of(objective)
    first = objective.loss(student, batch)
    sum(term.sum for term in first.values()).backward()
    assert all(weight.grad is None for weight in objective.teacher.model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, objective.teacher.model.parameters(), strict=True))
    # no dropout of its own: the same is taught twice
    again = objective.loss(student, batch)
    assert all(torch.equal(first[name].sum, again[name].sum) for name in first)
    assert all(weight.grad is not None for weight in [*student.parameters(), *objective.parameters()])


def test_a_weight_of_nothing_leaves_its_lesson_out() -> None:
    for left_out in ("soft", "mlm", "cosine"):
        student, objective = lesson(**{f"{left_out}_weight": 0.0})
        assert set(objective.loss(student, batch_of(objective))) == {"soft", "mlm", "cosine"} - {left_out}


@pytest.mark.parametrize("soft_at", ["tokens", "masks"])
def test_terms_add_up_over_micro_batches(soft_at: str) -> None:
    student, objective = lesson(soft_at=soft_at)
    whole = objective.loss(student, batch_of(objective, range(4)))
    parts = [objective.loss(student, batch_of(objective, numbers)) for numbers in (range(2), range(2, 4))]
    for name, term in whole.items():
        assert term.count == sum(part[name].count for part in parts)
        total = sum(float(part[name].sum.detach()) for part in parts)
        assert float(term.sum.detach()) == pytest.approx(total, rel=1e-4)


@pytest.mark.parametrize("settings", [{}, {"soft_at": "masks"}, {"soft_at": "masks", "mlm_weight": 0.0}])
def test_flops_are_those_torch_counts(settings: dict[str, Any]) -> None:
    student, objective = lesson(**settings)
    student.path = objective.teacher.model.path = "reference"  # fused attention is invisible to the counter
    batch = batch_of(objective, range(1))
    used, real = batch.targets != IGNORE, int((batch.layout.lengths > 0).sum())
    batch.index, batch.targets = batch.index[used], batch.targets[used]
    batch.layout = type(batch.layout).from_bounds(batch.layout.host[: real + 1], batch.layout.longest)
    with FlopCounterMode(display=False) as counter:
        sum(term.sum for term in objective.loss(student, batch).values()).backward()
    assert counter.get_total_flops() == objective.flops(student, batch)


def test_a_student_learns_what_its_teacher_says() -> None:
    student, objective = lesson(mlm_weight=0.0)  # what is true and what a random teacher says are two things
    batch = batch_of(objective)
    optimizer = torch.optim.AdamW([*student.parameters(), *objective.parameters()], lr=1e-2)

    def step() -> float:
        terms = objective.loss(student, batch)
        loss = sum(term.weight * term.sum / term.count for term in terms.values())
        assert isinstance(loss, torch.Tensor)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float((terms["soft"].sum / terms["soft"].count).detach())

    first = step()
    for _ in range(60):
        last = step()
    assert last < first / 3

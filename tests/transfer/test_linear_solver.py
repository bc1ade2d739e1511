"""Linear layers that are solved for: the optimum, the penalty's choice, what is folded in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from etude.tasks.linear_task import Targets
from etude.transfer import linear_solver
from etude.transfer.linear_solver import PENALTIES, Problem, choose_and_fit, cross_validate, solve_path


def problem(loss: str, units: int, width: int, seed: int = 0) -> Problem:
    draw = np.random.default_rng(seed)
    features = draw.normal(size=(units, width))
    if loss == "softmax":
        values = (features[:, 0] > 0.3).astype(float) + (features[:, 1] > 0.2)
        return Problem("softmax", features, values, np.ones(units, dtype=int), 3, width)
    if loss == "squares":
        return Problem(
            "squares", features, features[:, 0] + draw.normal(size=units), np.ones(units, dtype=int), 1, width
        )
    values = np.zeros(units)
    values[::4] = 1
    features[::4, 0] += 1
    return Problem("candidates", features, values, np.full(units // 4, 4), 1, width)


def objective(part: Problem, weight: torch.Tensor, bias: torch.Tensor, penalty: float) -> torch.Tensor:
    """The same by torch, straight from the definition."""
    logits = torch.from_numpy(part.features) @ weight.T + bias
    values = torch.from_numpy(part.values)
    if part.loss == "softmax":
        total = F.cross_entropy(logits, values.long(), reduction="sum")
    elif part.loss == "squares":
        total = ((logits[:, 0] - values) ** 2).sum() / 2
    else:
        grouped = logits[:, 0].view(-1, 4)
        total = F.cross_entropy(grouped, torch.zeros(len(grouped), dtype=torch.long), reduction="sum")
    return total + penalty * part.features.shape[1] / 2 * weight.square().sum()


@pytest.mark.parametrize("loss", ["softmax", "squares", "candidates"])
@pytest.mark.parametrize("width", [6, 90])
def test_the_slope_at_a_solution_is_zero(loss: str, width: int) -> None:
    part = problem(loss, 80, width)
    rotated, rotation = part.rotate()
    for penalty, (weight, bias) in zip(PENALTIES, solve_path(rotated, PENALTIES), strict=True):
        tensors = torch.from_numpy(weight @ rotation).requires_grad_(), torch.from_numpy(bias).requires_grad_()
        objective(part, *tensors, penalty).backward()
        for tensor in tensors:
            assert tensor.grad is not None and float(tensor.grad.abs().max()) < 5e-3, penalty


def test_the_scale_of_features_changes_nothing() -> None:
    part = problem("softmax", 100, 8)
    targets = Targets("softmax", list(part.values[:, None]))
    plain = choose_and_fit({"plain": part.features}, targets, 3)
    scaled = choose_and_fit({"scaled": part.features * 50 + 7}, targets, 3)
    assert plain.penalty == scaled.penalty
    np.testing.assert_allclose(
        plain.layer.logits(part.features), scaled.layer.logits(part.features * 50 + 7), atol=1e-2
    )


def test_informative_features_are_chosen() -> None:
    part = problem("squares", 100, 8)
    noise = np.random.default_rng(1).normal(size=part.features.shape)
    fit = choose_and_fit({"noise": noise, "signal": part.features}, Targets("squares", list(part.values[:, None])), 1)
    assert fit.name == "signal"
    pure = choose_and_fit({"noise": noise}, Targets("squares", list(part.values[:, None])), 1)
    assert pure.penalty == PENALTIES[0], "noise is best left out"


def test_constant_features_and_absent_labels() -> None:
    part = problem("softmax", 60, 5)
    features = np.concatenate([part.features, np.full((60, 1), 3.0)], axis=1)
    fit = choose_and_fit({0: features}, Targets("softmax", list(part.values[:, None])), 5)  # labels 3 and 4 never occur
    logits = fit.layer.logits(features)
    assert np.isfinite(logits).all() and (logits.argmax(1) < 3).all()
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert 0 < probs[:, 3:].max() < 0.1


def test_few_examples() -> None:
    for count in (2, 3):
        targets = Targets("softmax", [np.array([n % 2]) for n in range(count)])
        fit = choose_and_fit({0: np.eye(count)}, targets, 2)
        assert np.isfinite(fit.layer.weight).all()


def test_queries_that_say_nothing_are_left_out() -> None:
    draw = np.random.default_rng(0)
    features = draw.normal(size=(40, 3)).astype(np.float32)
    values = [np.array([1.0, 0, 0, 0])] * 8 + [np.zeros(4), np.ones(4)]
    features[:32:4, 0] += 2
    fit = choose_and_fit({0: features}, Targets("candidates", values), 1)
    alone = choose_and_fit({0: features}, Targets("candidates", values), 1, seed=0)
    np.testing.assert_array_equal(fit.layer.weight, alone.layer.weight)
    assert fit.layer.weight[0, 0] > 0


def test_equal_inputs_are_not_held_out_from_themselves() -> None:
    """Noise that stands twice looks learnable where a copy is on the other side: only a strong penalty is right."""
    draw = np.random.default_rng(0)
    features, labels = draw.normal(size=(60, 40)), draw.integers(2, size=60)
    twice, targets = np.tile(features, (2, 1)), Targets("softmax", [np.array([value]) for value in np.tile(labels, 2)])
    groups = np.tile(np.arange(60), 2)
    leaking = choose_and_fit({"x": twice}, targets, 2)
    grouped = choose_and_fit({"x": twice}, targets, 2, groups=groups)
    assert leaking.penalty < grouped.penalty and leaking.loss < 0.5 < grouped.loss


def test_the_walk_over_penalties_ends_where_it_gets_worse() -> None:
    losses = cross_validate(problem("softmax", 60, 40, seed=3), seed=0)
    walked = np.isfinite(losses)
    assert not walked.all() and walked[: walked.sum()].all(), "weak penalties are not solved for"
    assert np.argmin(losses) < walked.sum() - 1


def test_a_single_held_out_fifth_has_the_mean_loss_of_its_units(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = problem("softmax", 60, 40, seed=3)
    every = cross_validate(parts, seed=0)
    monkeypatch.setattr(linear_solver, "MANY_UNITS", 10)
    assert cross_validate(parts, seed=0)[0] == pytest.approx(every[0], rel=0.5), "not a fifth of it"


def test_words_need_fewer_to_be_held_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five folds of 100 tagged sentences took as long as one of 400."""
    solved, walk = [], linear_solver._walk_path

    def count(part: Problem, penalties: Sequence[float]) -> Iterator[linear_solver.Layer]:
        solved.append(part)
        return walk(part, penalties)

    monkeypatch.setattr(linear_solver, "_walk_path", count)
    texts = problem("softmax", 1_200, 4)
    cross_validate(texts, seed=0)
    assert len(solved) == linear_solver.INNER_FOLDS
    solved.clear()
    cross_validate(replace(texts, counts=np.full(60, 20)), seed=0)
    assert len(solved) == 1

"""The distance of two attentions: the formula, sequence by sequence; and its gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from etude.nn.attention import score_distance as module
from etude.nn.attention.score_distance import score_distance
from etude.nn.packed import Layout


def make_layout(lengths: list[int]) -> Layout:
    return Layout.from_bounds(np.concatenate([[0], np.cumsum(lengths)]), max([1, *lengths]))


def random_parts(tokens: int, heads: int, size: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(tokens, 2, heads, size, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def reference_distance(student: Tensor, teacher: Tensor, lengths: list[int]) -> Tensor:
    """Scores of each sequence and head with loops, as the equation has them."""
    total, start = torch.zeros((), dtype=student.dtype), 0
    for length in lengths:
        scores = []
        for side in (student, teacher):
            query, key = side[start : start + length].transpose(0, 2).unbind(1)  # (H, L, d)
            scores.append(torch.einsum("hqd,hkd->hqk", query, key) / side.shape[-1] ** 0.5)
        total = total + ((scores[0] - scores[1]) ** 2).sum()
        start += length
    return total


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=7), st.integers(1, 3), st.integers(1, 5), st.integers(1, 5))
def test_it_is_the_formula(lengths: list[int], heads: int, mine: int, its: int) -> None:
    student = random_parts(sum(lengths), heads, mine, 0).requires_grad_()
    teacher = random_parts(sum(lengths), heads, its, 1)
    result, expected = (
        score_distance(student, teacher, make_layout(lengths)),
        reference_distance(student, teacher, lengths),
    )
    torch.testing.assert_close(result, expected)
    found_slope, wanted_slope = (torch.autograd.grad(3 * item, student)[0] for item in (result, expected))
    torch.testing.assert_close(found_slope, wanted_slope)


def test_the_gradient_is_that_of_differences() -> None:
    teacher, layout = random_parts(9, 2, 4, 1), make_layout([4, 0, 5])
    torch.autograd.gradcheck(
        lambda one: score_distance(one, teacher, layout), random_parts(9, 2, 3, 0).requires_grad_()
    )


def test_few_scores_at_a_time_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    student, teacher, lengths = random_parts(40, 3, 4, 0).requires_grad_(), random_parts(40, 3, 4, 1), [8] * 5
    full = score_distance(student, teacher, make_layout(lengths))
    grad_out = torch.autograd.grad(full, student)[0]
    monkeypatch.setattr(module, "_SCORES", 2 * 8**2)
    parts = score_distance(student, teacher, make_layout(lengths))
    torch.testing.assert_close(parts, full)
    torch.testing.assert_close(torch.autograd.grad(parts, student)[0], grad_out)


def test_equal_attention_has_no_distance_and_the_teacher_no_gradient() -> None:
    student = random_parts(12, 2, 4, 0, torch.float32).requires_grad_()
    teacher = student.detach().clone().requires_grad_()
    result = score_distance(student, teacher, make_layout([12]))
    result.backward()
    assert result.item() == 0.0
    assert teacher.grad is None
    assert student.grad is not None and student.grad.abs().max() == 0


def test_half_precision_is_compared_in_float32() -> None:
    """In bf16 scores near 40 would be 0.25 apart at best, and a difference of 0.1 nothing."""
    student = random_parts(16, 2, 64, 0, torch.float32).mul_(2).bfloat16()
    teacher = student.clone()
    teacher[:, 0] += 0.01 * random_parts(16, 2, 64, 1, torch.float32)[:, 0].bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = score_distance(student, teacher, make_layout([16]))
    assert result.dtype == torch.float32
    expected = reference_distance(student.double(), teacher.double(), [16])
    assert result.item() == pytest.approx(expected.item(), rel=1e-4)


def test_an_empty_batch_is_no_distance() -> None:
    student = random_parts(0, 2, 4, 0).requires_grad_()
    score_distance(student, random_parts(0, 2, 4, 1), make_layout([0])).backward()
    assert student.grad is not None and student.grad.shape == (0, 2, 2, 4)


@pytest.mark.gpu
@pytest.mark.parametrize("lengths", [[128] * 6, [17, 128, 64, 1, 90]])
def test_a_gpu_gives_the_same(lengths: list[int]) -> None:
    student, teacher = (random_parts(sum(lengths), 12, size, seed, torch.float32) for size, seed in ((26, 0), (64, 1)))
    result = []
    for device in ("cpu", "cuda"):
        mine = student.to(device).requires_grad_()
        distance = score_distance(mine, teacher.to(device), make_layout(lengths).to(device))
        result.append([distance.detach().cpu(), torch.autograd.grad(distance, mine)[0].cpu()])
    for left, right in zip(*result, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-3, atol=1e-2)  # a GPU may multiply in TF32

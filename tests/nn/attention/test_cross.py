"""Attention between two packed sides: every path equals the formula, pair by pair, and its gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from etude.errors import UserError
from etude.nn.attention.cross import attend_cross, attend_cross_reference, make_plan
from etude.nn.packed import Layout

TARGETS = [[3, 5, 1], [4, 4], [7], [0, 3, 2], [0, 0], [1] * 40 + [30]]
SOURCES = [[2, 9, 4], [6, 6], [1], [3, 1, 0], [2, 0], [5] * 40 + [3]]


def layout(lengths: list[int]) -> Layout:
    return Layout.from_bounds(np.concatenate([[0], np.cumsum(lengths)]), max(lengths))


def tensors(targets: Layout, sources: Layout, requires_grad: bool = False) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(side.total, 2, 4, generator=generator, dtype=torch.float64).requires_grad_(requires_grad)
        for side in (targets, sources, sources)
    ]


@pytest.mark.parametrize("case", [0, 1, 2, 5])
def test_grouped_equals_a_plain_softmax_of_each_pair(case: int) -> None:
    targets, sources = layout(TARGETS[case]), layout(SOURCES[case])
    inputs = tensors(targets, sources, requires_grad=True)
    grouped = attend_cross(*inputs, targets, sources, path="grouped")
    expected = []
    for number in range(len(TARGETS[case])):
        t, s = (slice(side.host[number], side.host[number + 1]) for side in (targets, sources))
        scores = torch.einsum("thd,shd->hts", inputs[0][t], inputs[1][s]) / 2.0
        expected.append(torch.einsum("hts,shd->thd", scores.softmax(-1), inputs[2][s]))
    plain = torch.cat(expected)
    torch.testing.assert_close(grouped, plain)
    weight = torch.randn_like(plain)
    grads = [torch.autograd.grad((out * weight).sum(), inputs) for out in (grouped, plain)]
    for left, right in zip(*grads, strict=True):
        torch.testing.assert_close(left, right)


@pytest.mark.parametrize("case", [3, 4])
def test_empty_sides_are_skipped(case: int) -> None:
    """Targets without tokens leave their sources without a gradient; padded bounds do no harm."""
    targets, sources = layout(TARGETS[case]), layout(SOURCES[case])
    inputs = tensors(targets, sources, requires_grad=True)
    if case == 3:
        with pytest.raises(ValueError, match="target 2 has tokens, and its source has none"):
            attend_cross(*inputs, targets, sources, path="grouped")
        return
    result = attend_cross(*inputs, targets, sources, path="grouped")
    assert result.shape == (0, 2, 4)
    result.sum().backward()


def test_a_source_is_seen_by_its_own_target_alone() -> None:
    targets, sources = layout(TARGETS[0]), layout(SOURCES[0])
    query, key, value = tensors(targets, sources)
    for path in ("grouped", "reference"):
        before = attend_cross(query, key, value, targets, sources, path=path)
        changed = value.clone()
        changed[2:11] += 1.0  # of the second source
        moved = (attend_cross(query, key, changed, targets, sources, path=path) - before).abs().amax((1, 2)) > 1e-9
        assert moved.nonzero().flatten().tolist() == [3, 4, 5, 6, 7]


def test_the_reference_gives_weights_that_sum_to_one() -> None:
    targets, sources = layout(TARGETS[0]), layout(SOURCES[0])
    query, key, value = tensors(targets, sources)
    mixed, weights = attend_cross_reference(query, key, value, targets, sources)
    torch.testing.assert_close(mixed, attend_cross(query, key, value, targets, sources, path="grouped"))
    assert [tuple(pair.shape) for pair in weights] == [(2, 3, 2), (2, 5, 9), (2, 1, 4)]
    for pair in weights:
        torch.testing.assert_close(pair.sum(-1), torch.ones_like(pair.sum(-1)))


def test_buckets_waste_little() -> None:
    """A long pair among forty short ones is padded alone: one more bucket costs as much as a thousand scores."""
    plan = make_plan(layout(TARGETS[5]).host, layout([5] * 40 + [300]).host, torch.device("cpu"))
    assert sum(plan.counts) == 41 and plan.counts[-1] < 41 and plan.target.lengths[0] == 1


def test_mistakes_are_told() -> None:
    targets, sources = layout([3, 5]), layout([2, 9, 4])
    query, key, value = tensors(targets, sources)
    with pytest.raises(ValueError, match="got 2 targets, but 3 sources"):
        attend_cross(query, key, value, targets, sources)
    with pytest.raises(ValueError, match="got 8 tokens, but the layout ends at 10"):
        attend_cross(query, key, value, layout([3, 5, 2]), sources)
    with pytest.raises(UserError, match="unknown attention path 'short'"):
        attend_cross(query, key, value, layout([3, 4, 1]), sources, path="short")


@pytest.mark.gpu
def test_varlen_equals_the_reference_on_a_gpu() -> None:
    targets, sources = layout(TARGETS[0]).to("cuda"), layout(SOURCES[0]).to("cuda")
    generator = torch.Generator("cuda").manual_seed(0)
    inputs = [
        torch.randn(side.total, 2, 64, generator=generator, device="cuda", dtype=torch.bfloat16)
        for side in (targets, sources, sources)
    ]
    expected = attend_cross(*(part.float() for part in inputs), targets, sources, path="reference")
    torch.testing.assert_close(
        attend_cross(*inputs, targets, sources, path="varlen").float(), expected, atol=2e-2, rtol=0
    )

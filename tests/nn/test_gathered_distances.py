"""Distances to rows of a table by number: without kernels they are those of the rows copied out."""

from __future__ import annotations

import pytest
import torch

from etude.nn.gathered_distances import gathered_distances, has_kernels
from etude.nn.pair_distances import Distance
from tests.nn.test_pair_distances import DISTANCES, exact

SHAPES = [(3, 7, 9, 6), (5, 40, 33, 10), (4, 1, 3, 2)]  # queries, candidates of each, rows of the table, width


def compare(shape: tuple[int, int, int, int], distance: Distance, device: str) -> None:
    """Values and gradients of queries and table; numbers repeat, and a row is the candidate of no query."""
    batch, count, entities, width = shape
    torch.manual_seed(0)
    queries, table = torch.randn(batch, width), torch.randn(entities, width)
    numbers = torch.randint(entities - 1, (batch, count))
    grad = torch.randn(batch, count)
    left = [tensor.to(device).requires_grad_() for tensor in (queries, table)]
    right = [tensor.double().requires_grad_() for tensor in (queries, table)]
    actual = gathered_distances(left[0], left[1], numbers.to(device), distance)
    expected = exact(right[0][:, None], right[1][numbers], distance)[:, 0]
    torch.testing.assert_close(actual.double().cpu(), expected, rtol=1e-5, atol=1e-5)
    actual_grads = torch.autograd.grad(actual, left, grad.to(device))
    expected_grads = torch.autograd.grad(expected, right, grad.double())
    for a, b in zip(actual_grads, expected_grads, strict=True):
        torch.testing.assert_close(a.double().cpu(), b, rtol=1e-4, atol=1e-4)
    assert actual_grads[1][-1].abs().max() == 0


def check_zero_distance(distance: Distance, device: str) -> None:
    """A candidate that is the query itself has the gradient 0, where a root has no slope."""
    queries = torch.randn(1, 6, device=device, requires_grad=True)
    table = queries.detach().clone().requires_grad_()
    value = gathered_distances(queries, table, torch.zeros(1, 2, dtype=torch.int64, device=device), distance).sum()
    assert value.item() < 1e-6
    assert all(grad.abs().max() == 0 for grad in torch.autograd.grad(value, [queries, table]))


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients_are_the_formulas(shape: tuple[int, int, int, int], distance: Distance) -> None:
    compare(shape, distance, "cpu")


@pytest.mark.parametrize("distance", DISTANCES)
def test_a_distance_of_zero_has_no_gradient(distance: Distance) -> None:
    check_zero_distance(distance, "cpu")


def test_a_table_on_a_cpu_has_no_kernels() -> None:
    assert not has_kernels(torch.zeros(2, 2))

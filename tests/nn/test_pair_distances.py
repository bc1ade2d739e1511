"""Distances of queries to candidates against float64 formulas: by arrays and by compiled loops."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import Tensor

from etude.nn import pair_distances as distances
from etude.nn.pair_distances import Distance

DISTANCES: list[Distance] = ["l1", "l2", "modulus"]
SHAPES = [(3, 5, 7, 6), (1, 40, 33, 10), (4, 1, 3, 2)]


def exact(queries: Tensor, candidates: Tensor, distance: Distance) -> Tensor:
    """The definition, in float64."""
    difference = queries[:, :, None] - candidates[:, None]
    if distance == "l1":
        return difference.abs().sum(-1)
    if distance == "l2":
        return difference.square().sum(-1).sqrt()
    real, imaginary = difference.chunk(2, -1)
    return (real.square() + imaginary.square()).sqrt().sum(-1)


def compare(shape: tuple[int, int, int, int], distance: Distance, device: str) -> None:
    """Values and both gradients."""
    groups, query_count, candidate_count, width = shape
    torch.manual_seed(0)
    queries, candidates = torch.randn(groups, query_count, width), torch.randn(groups, candidate_count, width)
    grad = torch.randn(groups, query_count, candidate_count)
    left = [tensor.to(device).requires_grad_() for tensor in (queries, candidates)]
    right = [tensor.double().requires_grad_() for tensor in (queries, candidates)]
    actual, expected = distances.pair_distances(left[0], left[1], distance), exact(right[0], right[1], distance)
    torch.testing.assert_close(actual.double().cpu(), expected, rtol=1e-5, atol=1e-5)
    actual_grads = torch.autograd.grad(actual, left, grad.to(device))
    expected_grads = torch.autograd.grad(expected, right, grad.double())
    for a, b in zip(actual_grads, expected_grads, strict=True):
        torch.testing.assert_close(a.double().cpu(), b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("compiled", [False, True])
def test_values_and_gradients_are_the_formulas(
    shape: tuple[int, int, int, int], distance: Distance, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiled and importlib.util.find_spec("numba") is None:
        pytest.skip("numba is not installed")
    if not compiled:
        monkeypatch.setattr(distances, "_compiled_loops", lambda: None)
        monkeypatch.setattr(distances, "BLOCK", 64)  # several blocks
    compare(shape, distance, "cpu")


@pytest.mark.parametrize("distance", DISTANCES)
def test_threads_do_not_change_a_bit(distance: Distance) -> None:
    if importlib.util.find_spec("numba") is None:
        pytest.skip("numba is not installed")
    torch.manual_seed(0)
    queries, candidates = torch.randn(1, 50, 8), torch.randn(1, 20, 8)
    threads = torch.get_num_threads()
    one = distances.pair_distances(queries, candidates, distance)
    try:
        torch.set_num_threads(3)
        several = distances.pair_distances(queries, candidates, distance)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(one, several)


@pytest.mark.parametrize("distance", DISTANCES)
def test_rows_are_the_diagonal_of_pairs(distance: Distance) -> None:
    torch.manual_seed(1)
    left, right = torch.randn(6, 4), torch.randn(6, 4)
    pairs = distances.pair_distances(left[None], right[None], distance)[0]
    torch.testing.assert_close(distances.row_distances(left, right, distance), pairs.diagonal())


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("compiled", [False, True])
def test_a_distance_of_zero_has_no_gradient(
    distance: Distance, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(distances, "_compiled_loops", lambda: None)
    queries = torch.ones(1, 2, 4, requires_grad=True)
    candidates = torch.ones(1, 3, 4, requires_grad=True)
    distances.pair_distances(queries, candidates, distance).sum().backward()
    assert queries.grad is not None and candidates.grad is not None
    assert not queries.grad.any() and not candidates.grad.any()

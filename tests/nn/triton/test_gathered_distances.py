"""Triton kernels of distances to rows of a table against float64 formulas: on a GPU by name, elsewhere interpreted."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch

from etude.nn import gathered_distances as distances
from etude.nn.pair_distances import Distance
from tests.nn.test_gathered_distances import SHAPES, check_zero_distance, compare
from tests.nn.test_pair_distances import DISTANCES


def test_in_the_interpreter(in_the_interpreter: Callable[[str], None]) -> None:
    in_the_interpreter(__file__)


@pytest.mark.interpreted
@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("shape", [(3, 19, 9, 6), (2, 1, 3, 2)])
def test_kernels_in_the_interpreter(
    shape: tuple[int, int, int, int], distance: Distance, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels: ModuleType = pytest.importorskip("etude.nn.triton.gathered_distances")
    monkeypatch.setattr(kernels, "COLUMNS", 2)  # several blocks
    monkeypatch.setattr(distances, "_kernels", lambda _: kernels)
    compare(shape, distance, "cpu")
    check_zero_distance(distance, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("shape", [*SHAPES, (1024, 256, 14541, 1000), (512, 1024, 40943, 500)])
def test_kernels_on_a_gpu(shape: tuple[int, int, int, int], distance: Distance) -> None:
    compare(shape, distance, "cuda")
    check_zero_distance(distance, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("distance", DISTANCES)
def test_gradients_on_a_gpu_repeat_to_the_bit(distance: Distance) -> None:
    torch.manual_seed(0)
    queries = torch.randn(64, 200, device="cuda", requires_grad=True)
    table = torch.randn(50, 200, device="cuda", requires_grad=True)
    numbers = torch.randint(50, (64, 256), device="cuda")
    results = [
        torch.autograd.grad(distances.gathered_distances(queries, table, numbers, distance).sum(), [queries, table])
        for _ in range(3)
    ]
    for repeated in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], repeated, strict=True))

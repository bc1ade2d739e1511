"""Triton kernels of pair distances against float64 formulas: on a GPU by name, elsewhere interpreted."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from etude.nn import pair_distances as distances
from etude.nn.pair_distances import Distance
from tests.nn.test_pair_distances import DISTANCES, SHAPES, compare


def test_in_the_interpreter(in_the_interpreter: Callable[[str], None]) -> None:
    in_the_interpreter(__file__)


@pytest.mark.interpreted
@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("shape", [(2, 5, 7, 6), (1, 33, 3, 2)])
def test_kernels_in_the_interpreter(
    shape: tuple[int, int, int, int], distance: Distance, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels: ModuleType = pytest.importorskip("etude.nn.triton.pair_distances")
    monkeypatch.setattr(distances, "_kernels", lambda _: kernels)
    compare(shape, distance, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("shape", [*SHAPES, (8, 128, 256, 1000), (16, 1, 64, 200)])
def test_kernels_on_a_gpu(shape: tuple[int, int, int, int], distance: Distance) -> None:
    compare(shape, distance, "cuda")

"""Triton kernels of pair distances against float64 formulas: on a GPU by name, elsewhere interpreted."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from etude.nn import pair_distances as distances
from etude.nn.pair_distances import Distance
from tests.nn.test_pair_distances import DISTANCES, SHAPES, compare
from tests.nn.triton.launches import Watched, compile_launches


def test_in_the_interpreter(in_the_interpreter: Callable[[str], None]) -> None:
    in_the_interpreter(__file__)


@pytest.mark.interpreted
@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("shape", [(2, 5, 7, 6), (1, 33, 3, 2), (3, 1, 40, 4)])
def test_kernels_in_the_interpreter(
    shape: tuple[int, int, int, int], distance: Distance, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels: ModuleType = pytest.importorskip("etude.nn.triton.pair_distances")
    monkeypatch.setattr(distances, "_kernels", lambda _: kernels)
    compare(shape, distance, "cpu")


def test_millions_of_candidates_fit_into_a_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA has 2^31 programs along the first axis of a grid and 65,535 along others: all entities of a large graph."""
    kernels: ModuleType = pytest.importorskip("etude.nn.triton.pair_distances")
    grids: list[tuple[int, ...]] = []
    monkeypatch.setattr(kernels, "_forward", Watched(lambda grid, *args, **options: grids.append(grid)))
    kernels.forward(torch.zeros(1, 1, 2), torch.zeros(1, 4_600_000, 2), "l1")
    assert grids == [(143_750, 1)]


def test_very_many_groups_fit_into_a_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each triple of a large batch has candidates of its own, also where they are not read from the table."""
    kernels: ModuleType = pytest.importorskip("etude.nn.triton.pair_distances")
    grids: list[tuple[int, ...]] = []
    for name in ("_forward", "_slopes"):
        monkeypatch.setattr(kernels, name, Watched(lambda grid, *args, **options: grids.append(grid)))
    queries, candidates = torch.zeros(70_000, 1, 2), torch.zeros(70_000, 3, 2)
    kernels.backward(queries, candidates, kernels.forward(queries, candidates, "l1"), "l1")
    assert len(grids) == 3
    assert all(grid[0] == 70_000 and max(grid[1:]) <= 65_535 for grid in grids)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_kernels_compile_for_a_gpu_without_one(compiled_kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every distance; also for a single query, which is a constant of the kernel."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("runs without the interpreter")
    from etude.nn.triton import pair_distances as kernels

    variants = compile_launches(kernels, ["_forward", "_slopes"], monkeypatch, compiled_kernels)
    for distance in DISTANCES:
        queries, candidates = torch.zeros(2, 1, 6), torch.zeros(2, 7, 6)
        kernels.backward(queries, candidates, kernels.forward(queries, candidates, distance), distance)
    assert {name: len(found) for name, found in variants.items()} == {"_forward": 3, "_slopes": 6}


@pytest.mark.gpu
def test_candidates_of_more_than_two_to_the_31_numbers() -> None:
    """The last of them is the nearest: its columns lie beyond what 32 bits count."""
    if torch.cuda.mem_get_info()[0] < 30 * 2**30:
        pytest.skip("needs 30 GB of a GPU")
    candidates = torch.ones(1, 2_200_000, 1000, device="cuda")
    candidates[0, -1] = 0.0
    found = distances.pair_distances(torch.zeros(1, 1, 1000, device="cuda"), candidates, "l1")[0, 0]
    assert found[-1].item() == 0.0 and (found[:-1] == 1000.0).all()


@pytest.mark.gpu
@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("shape", [*SHAPES, (8, 128, 256, 1000), (16, 1, 64, 200), (70_000, 1, 3, 4)])
def test_kernels_on_a_gpu(shape: tuple[int, int, int, int], distance: Distance) -> None:
    compare(shape, distance, "cuda")

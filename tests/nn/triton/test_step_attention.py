"""The kernel of a step of attention, against a loop in float64: on a GPU by name, elsewhere interpreted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from etude.nn.attention import step
from tests.nn.attention.test_step import check_step


def test_in_the_interpreter(in_the_interpreter: Callable[[str], None]) -> None:
    in_the_interpreter(__file__)


@pytest.mark.interpreted
@pytest.mark.parametrize(("shared", "is_lockstep"), [(False, False), (False, True), (True, True)])
@pytest.mark.parametrize("window", [None, 20])
def test_a_step(shared: bool, is_lockstep: bool, window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads that are no power of two wide, as well."""
    from etude.nn.triton import step_attention

    monkeypatch.setattr(step, "_find_kernel", lambda query: step_attention)
    check_step("cpu", torch.float32, 24 if shared else 16, shared, is_lockstep, window)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [64, 80, 128])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("window", [None, 20])
def test_a_step_on_a_gpu(dtype: torch.dtype, size: int, shared: bool, window: int | None) -> None:
    assert step._find_kernel(torch.zeros(1, device="cuda")) is not None
    for is_lockstep in {shared, True}:
        check_step("cuda", dtype, size, shared, is_lockstep, window)

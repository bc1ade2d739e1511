"""The kernel of linear layers on few rows, against float64: on a GPU by name, elsewhere interpreted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from etude.nn import few_rows_linear
from tests.nn.test_few_rows_linear import check_linear, check_moments


def test_in_the_interpreter(in_the_interpreter: Callable[[str], None]) -> None:
    in_the_interpreter(__file__)


@pytest.mark.interpreted
def test_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and columns that no tile divides, and more rows than a tile has."""
    from etude.nn.triton import few_rows_linear as kernel

    monkeypatch.setattr(few_rows_linear, "_find_kernel", lambda device, dtype: kernel)
    check_linear("cpu", torch.float32, 3, 40, 20)
    monkeypatch.setattr(kernel, "choose_launch", lambda *shape: kernel.Launch(16, 16, 32, 4, 1))
    check_linear("cpu", torch.float32, 18, 64, 32)
    check_moments("cpu", torch.float32, 18, 40, 20)


@pytest.mark.interpreted
def test_a_row_of_too_many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its moments are not written: the norm reads the rows."""
    from etude.nn.triton import few_rows_linear as kernel

    monkeypatch.setattr(few_rows_linear, "_find_kernel", lambda device, dtype: kernel)
    monkeypatch.setattr(kernel, "MAX_PARTS", 2)
    stream = few_rows_linear.StepStream(torch.ones(2, 40))
    with torch.no_grad():
        total = few_rows_linear.add_linear(stream, torch.ones(2, 8), torch.nn.Linear(8, 40))
    assert isinstance(total, few_rows_linear.StepStream) and total.moments is None


@pytest.mark.interpreted
@pytest.mark.parametrize("rows", [1, 16, 32, 64, 128])
@pytest.mark.parametrize("inputs", [256, 768, 3072])
def test_a_small_gpu_has_the_memory(rows: int, inputs: int) -> None:
    from etude.nn.triton.few_rows_linear import choose_launch

    for has_norm in (False, True):
        large, small = (choose_launch(rows, inputs, 2304, has_norm, memory) for memory in (2**18, 99_000))
        for launch, memory in ((large, 2**18), (small, 99_000)):
            assert launch.stages * launch.depth * (launch.rows + launch.columns) * 2 <= memory
            assert launch.depth >= 32 and launch.stages >= 2
        assert (small.rows, small.columns, small.warps) == (large.rows, large.columns, large.warps)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"), [(1, 768, 2304), (16, 3072, 768), (40, 256, 1024), (64, 80, 50), (128, 768, 768)]
)
def test_few_rows_on_a_gpu(dtype: torch.dtype, rows: int, inputs: int, outputs: int) -> None:
    check_linear("cuda", dtype, rows, inputs, outputs)
    check_moments("cuda", dtype, rows, inputs, outputs)

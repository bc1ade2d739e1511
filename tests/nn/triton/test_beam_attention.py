"""The kernel of attention of hypotheses to their sources: on a GPU by name, elsewhere interpreted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from etude.nn.attention import beams
from tests.nn.attention.test_beams import check_beams


def test_in_the_interpreter(in_the_interpreter: Callable[[str], None]) -> None:
    in_the_interpreter(__file__)


@pytest.mark.interpreted
def test_hypotheses_attend_to_their_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths and heads that no block divides."""
    from etude.nn.triton import beam_attention

    monkeypatch.setattr(beams, "_find_kernel", lambda query, beams: beam_attention)
    check_beams("cpu", torch.float32, 3, 4, 40, 12)
    check_beams("cpu", torch.float32, 2, 1, 5, 16)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("beams_of_source", "length", "size"), [(4, 48, 64), (1, 16, 80), (16, 33, 128), (5, 100, 32)])
def test_hypotheses_attend_to_their_source_on_a_gpu(
    dtype: torch.dtype, beams_of_source: int, length: int, size: int
) -> None:
    assert beams._find_kernel(torch.zeros(1, device="cuda", dtype=dtype), beams_of_source) is not None
    check_beams("cuda", dtype, 9, beams_of_source, length, size)

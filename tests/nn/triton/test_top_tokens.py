"""The kernel of the likeliest tokens, against float64: on a GPU by name, elsewhere interpreted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from etude.nn import top_tokens
from tests.nn.test_top_tokens import check_likeliest, check_no_numbers, check_top


def test_in_the_interpreter(in_the_interpreter: Callable[[str], None]) -> None:
    in_the_interpreter(__file__)


@pytest.mark.interpreted
@pytest.mark.parametrize(("rows", "vocab", "count"), [(3, 100, 8), (2, 64, 1)])
def test_the_likeliest_tokens(rows: int, vocab: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from etude.nn.triton import top_tokens as kernel

    monkeypatch.setattr(top_tokens, "_find_kernel", lambda logits: kernel)
    check_top("cpu", torch.float32, rows, vocab, count)
    check_no_numbers("cpu", vocab, count)


@pytest.mark.interpreted
@pytest.mark.parametrize("vocab", [64, 100])
def test_the_likeliest_token(vocab: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one part, and in parts of which the last is not full."""
    from etude.nn.triton import top_tokens as kernel

    monkeypatch.setattr(top_tokens, "_find_kernels", lambda logits: kernel)
    monkeypatch.setattr(kernel, "MAX_COLUMNS", 64)
    check_likeliest("cpu", torch.float32, 4, vocab)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("vocab", [900, 8000, 16_384, 50_257])
def test_the_likeliest_tokens_on_a_gpu(dtype: torch.dtype, vocab: int) -> None:
    assert (top_tokens._find_kernel(torch.zeros(1, vocab, device="cuda")) is None) == (vocab > 16_384)
    check_top("cuda", dtype, 64, vocab, 8)
    check_no_numbers("cuda", vocab, 8)
    check_likeliest("cuda", dtype, 64, vocab)

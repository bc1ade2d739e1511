"""Attention of hypotheses to their sources, against one after the other in float64."""

from __future__ import annotations

import torch

from etude.nn.attention.beams import attend_beams


def check_beams(device: str, dtype: torch.dtype, sources: int, beams: int, length: int, size: int) -> None:
    """Sources of several lengths in one rectangle, and one of which nothing is seen: its values do not matter."""
    torch.manual_seed(length)
    heads = 2
    lengths = [max(1, length - number) for number in range(sources)]
    query = torch.randn(sources * beams, heads, size).to(device, dtype)
    keys, values = (torch.randn(sources, heads, length, size).to(device, dtype) for _ in range(2))
    mask = torch.zeros(sources, 1, 1, length)
    for number, visible in enumerate(lengths):
        mask[number, ..., visible:] = torch.finfo(dtype).min
    mask[-1] = torch.finfo(dtype).min
    mixed = attend_beams(query, keys, values, mask.to(device, dtype), beams)
    assert mixed.shape == query.shape and mixed.dtype == dtype and bool(mixed.isfinite().all())
    for number, visible in enumerate(lengths[:-1]):
        for row in range(number * beams, (number + 1) * beams):
            scores = torch.einsum("hd,hld->hl", query[row].double(), keys[number, :, :visible].double()) * size**-0.5
            expected = torch.einsum("hl,hld->hd", scores.softmax(-1), values[number, :, :visible].double())
            tolerance = 1e-5 if dtype == torch.float32 else 2e-2
            torch.testing.assert_close(mixed[row].double(), expected, rtol=tolerance, atol=tolerance)


def test_hypotheses_attend_to_their_source() -> None:
    check_beams("cpu", torch.float32, 4, 3, 7, 8)

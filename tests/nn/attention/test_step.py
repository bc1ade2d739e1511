"""Attention of one new token a sequence, against a loop over sequences and heads in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from etude.nn.attention.step import attend_step

SEQUENCES, ROOM, HEADS = 5, 40, 2


def check_step(device: str, dtype: torch.dtype, size: int, shared: bool, is_lockstep: bool, window: int | None) -> None:
    """Results, and what the cache holds afterwards: the new tokens and all else as it was."""
    generator = torch.Generator().manual_seed(size)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    query, key, value = draw(SEQUENCES, 3, HEADS, size).unbind(1)  # as the layers give them: strided
    keys, values = draw(SEQUENCES, ROOM, HEADS, size), draw(SEQUENCES, ROOM, HEADS, size)
    places = torch.tensor([34] if is_lockstep else [0, 1, 33, ROOM - 1, 32], device=device)
    origins = torch.randint(0, SEQUENCES, (SEQUENCES, ROOM), generator=generator).to(device, torch.int32)
    past_keys, past_values = keys.clone(), values.clone()
    mixed = attend_step(query, key, value, keys, values, places, origins if shared else None, window)

    rows = torch.arange(SEQUENCES, device=device)
    expected = torch.empty(mixed.shape, dtype=torch.float64)
    for row, place in enumerate(places.expand(SEQUENCES).tolist()):
        tokens = torch.arange(0 if window is None else max(0, place - window), place, device=device)
        source = origins[row, tokens].long() if shared else row
        for head in range(HEADS):
            seen, weighed = (
                torch.cat([past[source, tokens, head], new[row, head][None]]).double().cpu()
                for past, new in ((past_keys, key), (past_values, value))
            )
            weights = (seen @ query[row, head].double().cpu() / size**0.5).softmax(0)
            expected[row, head] = weights @ weighed
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(mixed.double().cpu(), expected, atol=tolerance, rtol=tolerance)
    for cache, past, new in ((keys, past_keys, key), (values, past_values, value)):
        past[rows, places.expand(SEQUENCES)] = new
        assert torch.equal(cache, past)


@pytest.mark.parametrize(("shared", "is_lockstep"), [(False, False), (False, True), (True, True)])
@pytest.mark.parametrize("window", [None, 1, 20])
def test_a_step_is_attention_up_to_the_new_token(shared: bool, is_lockstep: bool, window: int | None) -> None:
    check_step("cpu", torch.float32, 16, shared, is_lockstep, window)

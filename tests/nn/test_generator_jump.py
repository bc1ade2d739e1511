"""A generator that jumps goes on with the bits of one that draws; a share of a parameter is drawn without the rest."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from etude.nn import generator_jump
from etude.nn.generator_jump import CHUNK, FEWEST, WORDS, skip_words
from etude.nn.initialization import RECORDS, _redraws_all, fill_constant, fill_normal, fill_uniform


@pytest.mark.parametrize("drawn", [0, 1, WORDS - 1, WORDS, 1000])
@pytest.mark.parametrize("count", [0, 1, 5000, CHUNK + 3, FEWEST, FEWEST + 4321])
def test_what_follows_a_jump_is_what_follows_the_draws(count: int, drawn: int) -> None:
    jumping, drawing = torch.Generator().manual_seed(7), torch.Generator().manual_seed(7)
    for generator in (jumping, drawing):
        torch.empty(drawn).uniform_(generator=generator)
    skip_words(jumping, count)
    torch.empty(count).uniform_(generator=drawing)
    assert torch.equal(jumping.get_state(), drawing.get_state()) or count >= FEWEST
    for _ in range(3):  # across the places where words are made anew
        left, right = (torch.empty(WORDS + 5).normal_(generator=generator) for generator in (jumping, drawing))
        assert torch.equal(left, right)


def test_jumps_add_up() -> None:
    """What is too far to be drawn is reached alike by one jump and by two."""
    far, near = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    skip_words(far, 300_000_000_007)
    skip_words(near, 175_000_000_000)
    skip_words(near, 125_000_000_007)
    assert torch.equal(torch.empty(2000).uniform_(generator=far), torch.empty(2000).uniform_(generator=near))


def test_the_polynomial_is_that_of_the_paper() -> None:
    degree, lower = generator_jump._characteristic()
    assert degree == 19937 and len(lower) + 1 == 135  # terms, by Matsumoto & Nishimura 1998


def test_a_state_of_another_layout_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    jumping, drawing = torch.Generator().manual_seed(2), torch.Generator().manual_seed(2)
    monkeypatch.setattr(generator_jump, "STATE_BYTES", 1)
    skip_words(jumping, FEWEST)
    torch.empty(FEWEST).uniform_(generator=drawing)
    assert torch.equal(jumping.get_state(), drawing.get_state())


def fill_shares(kind: str, total: int, shares: int) -> tuple[Tensor, list[Tensor]]:
    """Fill a parameter as a whole, and in shares by what is recorded of it on the meta device."""
    whole, parameter, records = torch.empty(total), torch.empty(total, device="meta"), {}
    token = RECORDS.set(records)
    try:
        for each in (whole, parameter):
            if kind == "uniform":
                fill_uniform(each, 11, 0.5)
            elif kind == "constant":
                fill_constant(each, 0.25)
            else:
                fill_normal(each, 11, 0.02, truncated=kind == "truncated")
    finally:
        RECORDS.reset(token)
    size = -(-total // shares)
    parts = [torch.empty(max(0, min(size, total - start))) for start in range(0, shares * size, size)]
    for number, part in enumerate(parts):
        if len(part):
            records[parameter](part, number * size, total)
    return whole, parts


@pytest.mark.parametrize("fewest", [700, FEWEST])
@pytest.mark.parametrize("total", [1, 15, 16, 31, 333, 4096, 20_011])
@pytest.mark.parametrize("kind", ["normal", "truncated", "uniform", "constant"])
def test_shares_have_the_bits_of_the_whole(kind: str, total: int, fewest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator_jump, "FEWEST", fewest)
    monkeypatch.setattr(generator_jump, "CHUNK", 64)
    for shares in (2, 3, 7):
        whole, parts = fill_shares(kind, total, shares)
        assert torch.equal(whole, torch.cat(parts))


@pytest.mark.parametrize("redraws", [True, False])
def test_truncated_shares_on_either_torch(redraws: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if redraws and not _redraws_all():
        pytest.skip("trunc_normal_ of this torch draws one value each")
    monkeypatch.setattr("etude.nn.initialization._redraws_all", lambda: redraws)
    whole, parts = fill_shares("truncated", 1003, 4)
    assert torch.equal(whole, torch.cat(parts)) and whole.abs().max() <= 0.04

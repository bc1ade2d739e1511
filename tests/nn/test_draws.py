"""Draws from a softmax: the right frequencies, the same token in any batch, and a slow way to the same token."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from etude import chance
from etude.nn import draws
from etude.nn.draws import BLOCK, draw_tokens


def draw_slowly(logits: list[float], key: int, vocab: int) -> int:
    """Draw a block by the sum of its weights, then a token of it, each as the largest of noisy scores."""
    token_noise = chance.gumbel(key, np.arange(vocab))
    blocks = [range(start, min(start + BLOCK, vocab)) for start in range(0, vocab, BLOCK)]
    block_noise = chance.gumbel(key, np.arange(vocab, vocab + len(blocks)))
    peak = max(logits)
    sums = [sum(math.exp(logits[token] - peak) for token in block) for block in blocks]
    scores = [
        math.log(total) + float(noise) if total else -math.inf for total, noise in zip(sums, block_noise, strict=True)
    ]
    return max(blocks[int(np.argmax(scores))], key=lambda token: logits[token] + float(token_noise[token]))


def spread_keys(count: int, seed: int = 5) -> Tensor:
    return torch.from_numpy(chance.random_bits(seed, np.arange(count)).view(np.int64))


@settings(max_examples=60, deadline=None)
@given(
    vocab=st.integers(1, 3 * BLOCK + 5),
    slots=st.integers(0, 7),
    padding=st.sampled_from([0, 1, 63]),
    temperature=st.sampled_from([0.5, 1.0, 3.0]),
    scale=st.sampled_from([0.0, 1.0, 30.0]),
    has_bias=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_draws_are_those_of_the_slow_way(
    vocab: int, slots: int, padding: int, temperature: float, scale: float, has_bias: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    product = scale * torch.randn(slots, vocab + padding, generator=generator)
    product[:, vocab:] = 1e4  # columns behind the vocabulary are no tokens, whatever they hold
    bias = torch.randn(vocab, generator=generator) if has_bias else None
    keys = spread_keys(slots, seed)
    drawn = draw_tokens(product, bias, keys, vocab, temperature)
    logits = ((product[:, :vocab] + (0 if bias is None else bias)) / temperature).tolist()
    assert drawn.dtype == torch.int64 and drawn.shape == (slots,)
    assert drawn.tolist() == [draw_slowly(row, int(key), vocab) for row, key in zip(logits, keys, strict=True)]


@pytest.mark.parametrize("vocab", [40, BLOCK, 3 * BLOCK + 20])
def test_draws_have_the_frequencies_of_the_softmax(vocab: int) -> None:
    generator = torch.Generator().manual_seed(vocab)
    logits, count = torch.randn(vocab, generator=generator), 60_000
    drawn = draw_tokens(logits.expand(count, vocab), None, spread_keys(count), vocab, 1.0)
    expected = count * logits.double().softmax(-1)
    observed = torch.bincount(drawn, minlength=vocab)
    assert stats.chisquare(observed.numpy(), expected.numpy()).pvalue > 1e-3


def test_a_block_beside_a_far_likelier_one() -> None:
    """Weights that are too small for float32 are never drawn, and do not disturb those that are."""
    logits = torch.full((1, 3 * BLOCK), -200.0)
    logits[0, BLOCK + 1], logits[0, BLOCK + 2] = 0.0, -1.0
    drawn = draw_tokens(logits.expand(2000, -1), None, spread_keys(2000), logits.shape[1], 1.0)
    share = (drawn == BLOCK + 2).double().mean()
    assert set(drawn.tolist()) == {BLOCK + 1, BLOCK + 2}
    assert abs(share - 1 / (1 + math.e)) < 0.04  # four deviations


def test_logits_that_are_no_numbers_give_a_token() -> None:
    """The step finds them by its loss, and names the tensor; an index outside the vocabulary would stop the device."""
    logits = torch.randn(5, 100)
    logits[0], logits[1, 7], logits[2, 80], logits[3] = torch.nan, torch.nan, torch.inf, -torch.inf
    drawn = draw_tokens(logits, None, spread_keys(5), 100, 1.0)
    assert bool(((drawn >= 0) & (drawn < 100)).all())


def test_slightly_other_logits_seldom_give_another_token() -> None:
    """Other kernels round differently: few draws may follow that, or paths and ranks would train on other texts."""
    logits, keys = torch.randn(3000, 1000), spread_keys(3000)
    moved = logits + 1e-3 * torch.randn_like(logits)
    same = draw_tokens(logits, None, keys, 1000, 1.0) == draw_tokens(moved, None, keys, 1000, 1.0)
    assert float(same.double().mean()) > 0.99


def test_weights_come_in_bounded_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    product, keys, sizes = torch.randn(100, 300), spread_keys(100), []
    whole = draw_tokens(product, None, keys, 300, 1.0)
    plain: Any = draws._draw

    def watched(part: Tensor, *rest: Any) -> Tensor:
        sizes.append(part.numel())
        drawn: Tensor = plain(part, *rest)
        return drawn

    monkeypatch.setattr(draws, "_draw", watched)
    monkeypatch.setattr(draws, "PART", 1000)
    assert torch.equal(draw_tokens(product, None, keys, 300, 1.0), whole)
    assert max(sizes) == 900 and sum(sizes) == 30_000


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_draws_what_a_cpu_draws(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    product = (2 * torch.randn(2000, 30528, generator=generator)).to(dtype)
    bias, keys = torch.randn(30522, generator=generator), spread_keys(2000)
    expected = draw_tokens(product, bias, keys, 30522, 1.0)
    drawn = draw_tokens(product.cuda(), bias.cuda(), keys.cuda(), 30522, 1.0)
    assert float((drawn.cpu() == expected).double().mean()) > 0.999  # logarithms differ in their last bits

"""Tokens that a generator puts in place of others (ELECTRA, section 3.2).

A draw's key is one of (seed, step, row, place), so that a row gets the same tokens in any batch and on any rank
(nn/draws.py). A training step draws from the logits of its loss (nn/losses.py); `sample` is for what has no loss.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from etude.nn import draws
from etude.nn.losses import cast_table, choose_chunk_size
from etude.objectives.base import IGNORE


@torch.no_grad()
def sample(
    states: Tensor,
    table: Tensor,
    bias: Tensor | None,
    keys: Tensor,
    temperature: float = 1.0,
    chunk: int | None = None,
) -> Tensor:
    """(M, E), (V, E), (V,), (M,) int64 -> (M,) int64: a token for each slot, a chunk of slots at a time."""
    vocab, device = table.shape[0], states.device.type
    chunk = chunk or choose_chunk_size(vocab, device, states.shape[0])
    # cast here, once for all chunks: without gradients autocast would cast the table anew for each
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
    states, table, samples = states.to(dtype), cast_table(table, dtype), []
    with torch.autocast(device, enabled=False):
        for part, key in zip(states.split(chunk), keys.split(chunk), strict=True):
            samples.append(draws.draw_tokens(F.linear(part, table), bias, key, vocab, temperature))
    return torch.cat(samples)


def put(tokens: Tensor, index: Tensor, targets: Tensor, values: Tensor) -> Tensor:
    """A copy of (N,) tokens with (M,) values at their places; slots without a target write nothing."""
    # they write behind the end, and that is cut off: a choice of slots would make the host wait for the device
    place = torch.where(targets == IGNORE, tokens.shape[0], index)
    return F.pad(tokens, (0, 1)).scatter(0, place, values)[:-1]

"""Tokens drawn from a model's softmax, on the device, the same in any batch (ELECTRA, section 3.2).

Gumbel-max: argmax over v of logits[v] / T + g[v] is a draw from softmax(logits / T) where every g[v] is an own
standard Gumbel number. Here g[v] is a hash of (the slot's key, v), and the key one of (seed, step, row, place), so a
draw does not depend on which rows share a micro-batch or a rank. No gradient passes through a draw.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from etude.chance import gumbel
from etude.nn.fusion import fuse
from etude.nn.losses import cast_table, choose_chunk_size
from etude.nn.precision import upcast
from etude.objectives.base import IGNORE

NOISE = 2**23  # numbers drawn at once on a CPU: 64-bit hashes of 64 MiB, a few of them alive at a time


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
    # in one kernel nothing but the products is held
    chunk = chunk or (choose_chunk_size(vocab, device, states.shape[0]) if device == "cuda" else max(1, NOISE // vocab))
    # cast here, once for all chunks: without gradients autocast would cast the table anew for each
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
    states, table, samples = states.to(dtype), cast_table(table, dtype), []
    tokens = torch.arange(vocab, device=states.device)
    with torch.autocast(device, enabled=False):
        for part, key in zip(states.split(chunk), keys.split(chunk), strict=True):
            samples.append(_draw(F.linear(part, table), bias, key, tokens, temperature))
    return torch.cat(samples)


@fuse
def _draw(product: Tensor, bias: Tensor | None, keys: Tensor, tokens: Tensor, temperature: float) -> Tensor:
    """(C, V') products -> (C,): argmax of logits / T + noise. Columns behind the vocabulary are never drawn.

    `tokens` are the numbers from 0 to V, made outside: a compiler would count them in 32 bits, and hashes need 64.
    """
    logits = upcast(product[:, : len(tokens)])
    if bias is not None:
        logits = logits + bias
    noise = gumbel(keys[:, None], tokens)
    return (logits / temperature + noise).argmax(-1)


def put(tokens: Tensor, index: Tensor, targets: Tensor, values: Tensor) -> Tensor:
    """A copy of (N,) tokens with (M,) values at their places; slots without a target write nothing."""
    # they write behind the end, and that is cut off: a choice of slots would make the host wait for the device
    place = torch.where(targets == IGNORE, tokens.shape[0], index)
    return F.pad(tokens, (0, 1)).scatter(0, place, values)[:-1]

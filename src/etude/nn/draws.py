"""Tokens drawn from a softmax, on the device, the same in any batch.

Gumbel-max: argmax over v of logits[v] / T + g[v] is a draw from softmax(logits / T) where every g[v] is an own
standard Gumbel number. Here g[v] is a hash of (the slot's key, v), so that a draw does not depend on which slots share
a batch. No gradient passes through a draw.
"""

from __future__ import annotations

import torch
from torch import Tensor

from etude.chance import gumbel_at, place_of
from etude.nn.fusion import fuse
from etude.nn.precision import upcast

NOISE = 2**23  # numbers drawn at once on a CPU: 64-bit hashes of 64 MiB, a few of them alive at a time


@torch.no_grad()
def draw_tokens(product: Tensor, bias: Tensor | None, keys: Tensor, vocab: int, temperature: float) -> Tensor:
    """(C, V') logits without their bias (V,), (C,) int64 keys -> (C,) int64; columns after V are no tokens.

    On a GPU one kernel makes the noise, adds and compares it; on a CPU it exists for a part of the slots at a time.
    """
    places = place_of(torch.arange(vocab, device=product.device))
    if product.is_cuda:
        return _draw(product, bias, keys, places, temperature)
    rows = max(1, NOISE // vocab)
    parts = zip(product.split(rows), keys.split(rows), strict=True)
    return torch.cat([_draw(part, bias, key, places, temperature) for part, key in parts])


@fuse
def _draw(product: Tensor, bias: Tensor | None, keys: Tensor, places: Tensor, temperature: float) -> Tensor:
    """`places` are those of tokens in a hash, made outside: they are the same for all slots, and a compiler that makes
    the numbers of tokens counts in 32 bits, where hashes need 64."""
    logits = upcast(product[:, : len(places)])
    if bias is not None:
        logits = logits + bias
    noise = gumbel_at(keys[:, None], places)
    return (logits / temperature + noise).argmax(-1)

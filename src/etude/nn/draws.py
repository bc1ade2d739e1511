"""Tokens drawn from a softmax, on the device, the same in any batch.

Gumbel-max: argmax over v of logits[v] / T + g[v] is a draw from softmax(logits / T) where every g[v] is an own
standard Gumbel number. Here g[v] is a hash of (the slot's key, v), so that a draw does not depend on which slots share
a batch. No gradient passes through a draw.

A hash and two logarithms for each token of the vocabulary would cost more than the product that gives the logits. So a
draw has two steps: a block of BLOCK neighbouring tokens, by the sum of their weights, then a token of that block. This
is the same distribution, p(block) p(token | block), from a number for each block and for each token of one block. Both
steps are an argmax, which logits that differ in their last bits seldom change; the inverse of a cumulative sum would
shift every later boundary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from etude.chance import gumbel_at, place_of
from etude.nn.fusion import fuse
from etude.nn.precision import upcast

BLOCK = 64  # tokens: a block's numbers and the blocks' together are the fewest for vocabularies of some thousands
PART = 2**19  # logits whose weights exist at once on a CPU: they stay in its caches


@torch.no_grad()
def draw_tokens(product: Tensor, bias: Tensor | None, keys: Tensor, vocab: int, temperature: float) -> Tensor:
    """(C, V') logits without their bias (V,), (C,) int64 keys -> (C,) int64; columns after V are no tokens."""
    blocks = -(-vocab // BLOCK)
    places = place_of(torch.arange(vocab + blocks, device=product.device))
    if product.is_cuda:
        return _draw(product, bias, keys, places, vocab, temperature)
    rows = max(1, PART // vocab)
    parts = zip(product.split(rows), keys.split(rows), strict=True)
    return torch.cat([_draw(part, bias, key, places, vocab, temperature) for part, key in parts])


@fuse
def _draw(product: Tensor, bias: Tensor | None, keys: Tensor, places: Tensor, vocab: int, temperature: float) -> Tensor:
    """`places` are those of tokens (V), then blocks (K), in a hash, made outside: they are the same for all slots, and
    a compiler that makes the numbers of tokens counts in 32 bits, where hashes need 64."""
    logits = upcast(product[:, :vocab])
    if bias is not None:
        logits = logits + bias
    logits = logits / temperature
    weights = (logits - logits.amax(-1, keepdim=True)).exp()
    whole = vocab // BLOCK * BLOCK
    sums = weights[:, :whole].unflatten(1, (-1, BLOCK)).sum(-1)  # (C, V // BLOCK)
    if whole < vocab:
        sums = torch.cat([sums, weights[:, whole:].sum(-1, keepdim=True)], 1)  # (C, K)
    block = (sums.log() + gumbel_at(keys[:, None], places[vocab:])).argmax(-1, keepdim=True)  # (C, 1)
    column = block * BLOCK + torch.arange(BLOCK, device=product.device)  # (C, BLOCK)
    is_token = column < vocab
    column = column.clamp(max=vocab - 1)
    scores = upcast(product.gather(1, column))
    if bias is not None:
        scores = scores + bias[column]
    scores = scores / temperature + gumbel_at(keys[:, None], places[column])
    best = scores.masked_fill(~is_token, -torch.inf).argmax(-1, keepdim=True)
    return column.gather(1, best).squeeze(1)

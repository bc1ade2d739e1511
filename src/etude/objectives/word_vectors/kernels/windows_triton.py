"""Word vectors on a GPU as on many cores: programs read and write the same tables unasked (Hogwild, Niu et al. 2011).

A program takes a stretch of centres and learns from one after another, so nothing waits for a block to be over, and a
frequent word is as late as there are programs, not as a block is long. Each is one warp: few of them keep the GPU busy,
and few at a time is what keeps the result that of one after another. Draws are those of `windows_compiled.py`.

Changes are added atomically: none is lost, but their order is nobody's, so no two runs agree. Tables are read past the
cache of a processor (`.cg`), which would keep a frequent word's vector as it was. Negative sampling only.
Triton comes with torch where that is built for CUDA; nothing imports this file elsewhere.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_GOLDEN, _FIRST = tl.constexpr(0x9E3779B97F4A7C15), tl.constexpr(0xBF58476D1CE4E5B9)  # of etude.chance.random_bits
_SECOND, _LOWER = tl.constexpr(0x94D049BB133111EB), tl.constexpr(0xFFFFFFFF)


@triton.jit
def _noise(key, index, accept, alias, vocab):  # type: ignore[no-untyped-def]
    """Words of the draws (T,) of a key."""
    x = key + (index + 1).to(tl.uint64) * _GOLDEN
    x = (x ^ (x >> 30)) * _FIRST
    x = (x ^ (x >> 27)) * _SECOND
    x = x ^ (x >> 31)
    slot = (((x >> 32) * vocab.to(tl.uint64)) >> 32).to(tl.int64)
    own = (x & _LOWER).to(tl.int64) < tl.load(accept + slot)
    return tl.where(own, slot, tl.load(alias + slot))


@triton.jit
def _contrast(  # type: ignore[no-untyped-def]
    hidden, word, key, first, accept, alias, vocab, outputs, rate, width, column, negatives: tl.constexpr,
    targets: tl.constexpr,
):  # fmt: skip
    """Moves a word and its noise; returns what the hidden vector should move by, and the loss."""
    number = tl.arange(0, targets)
    draw = tl.where((number > 0) & (number <= negatives), first + number - 1, first)
    noise = _noise(key, draw, accept, alias, vocab)
    truth = number == 0
    row = tl.where(truth, word, noise)
    counted = truth | ((number <= negatives) & (noise != word))
    place = outputs + row[:, None] * width + column[None, :]
    inside = counted[:, None] & (column < width)[None, :]
    vectors = tl.load(place, mask=inside, other=0.0, cache_modifier=".cg")
    scores = tl.sum(vectors * hidden[None, :], 1)
    grads = tl.where(counted, (tl.where(truth, 1.0, 0.0) - tl.sigmoid(scores)) * rate, 0.0)
    tl.atomic_add(place, grads[:, None] * hidden[None, :], mask=inside, sem="relaxed")
    wrong = tl.where(truth, -scores, scores)  # -log sigmoid(-wrong), without overflow
    losses = tl.maximum(wrong, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(wrong)))
    return tl.sum(grads[:, None] * vectors, 0), tl.sum(tl.where(counted, losses, 0.0), 0)


@triton.jit(do_not_specialize=["count", "share"])  # they differ from step to step
def _skip_gram(  # type: ignore[no-untyped-def]
    words, low, high, keys, count, share, inputs, outputs, accept, alias, vocab, bounds, rows, growth, losses, rate,
    width, negatives: tl.constexpr, targets: tl.constexpr, lanes: tl.constexpr, parts: tl.constexpr,
    spelled: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    column = tl.arange(0, lanes)
    inside = column < width
    loss = 0.0
    for centre in range(program * share, tl.minimum((program + 1) * share, count)):
        word, key = tl.load(words + centre), tl.load(keys + centre).to(tl.uint64, bitcast=True)
        start, stop = tl.load(low + centre), tl.load(high + centre)
        grown = 1.0
        if spelled:
            piece, end = tl.load(bounds + word), tl.load(bounds + word + 1)
            before = tl.zeros([lanes], tl.float32)
            for some in range(piece, end, parts):
                place = some + tl.arange(0, parts)
                row = tl.load(rows + place, mask=place < end, other=0).to(tl.int64)
                there = (place < end)[:, None] & inside[None, :]
                pieces = inputs + row[:, None] * width + column[None, :]
                before += tl.sum(tl.load(pieces, mask=there, other=0.0, cache_modifier=".cg"), 0)
            before = before / (end - piece).to(tl.float32)
            grown = tl.load(growth + word)
        else:
            before = tl.load(inputs + word * width + column, mask=inside, other=0.0, cache_modifier=".cg")
        total = tl.zeros([lanes], tl.float32)
        for neighbour in range(start, stop):
            if neighbour != centre:
                context = tl.load(words + neighbour)
                first = (neighbour - start) * negatives
                change, pair = _contrast(before + grown * total, context, key, first, accept, alias, vocab, outputs,
                                        rate, width, column, negatives, targets)  # fmt: skip
                total += change
                loss += pair
        if spelled:
            piece, end = tl.load(bounds + word), tl.load(bounds + word + 1)
            for some in range(piece, end, parts):
                place = some + tl.arange(0, parts)
                row = tl.load(rows + place, mask=place < end, other=0).to(tl.int64)
                there = (place < end)[:, None] & inside[None, :]
                changes = tl.broadcast_to(total[None, :], [parts, lanes])
                tl.atomic_add(inputs + row[:, None] * width + column[None, :], changes, mask=there, sem="relaxed")
        else:
            tl.atomic_add(inputs + word * width + column, total, mask=inside, sem="relaxed")
    tl.store(losses + program, loss)


@triton.jit(do_not_specialize=["count", "share"])
def _cbow(  # type: ignore[no-untyped-def]
    words, low, high, keys, count, share, inputs, outputs, accept, alias, vocab, losses, rate, width,
    negatives: tl.constexpr, targets: tl.constexpr, lanes: tl.constexpr, parts: tl.constexpr, divide: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    column = tl.arange(0, lanes)
    loss = 0.0
    for centre in range(program * share, tl.minimum((program + 1) * share, count)):
        word, key = tl.load(words + centre), tl.load(keys + centre).to(tl.uint64, bitcast=True)
        start, stop = tl.load(low + centre), tl.load(high + centre)
        if stop - start > 1:  # a word alone is predicted by nobody
            place = start + tl.arange(0, parts)
            around = (place < stop) & (place != centre)
            row = tl.load(words + place, mask=around, other=0)
            there = around[:, None] & (column < width)[None, :]
            pieces = inputs + row[:, None] * width + column[None, :]
            vectors = tl.load(pieces, mask=there, other=0.0, cache_modifier=".cg")
            size = (stop - start - 1).to(tl.float32)
            change, new = _contrast(tl.sum(vectors, 0) / size, word, key, 0, accept, alias, vocab, outputs, rate, width,
                                    column, negatives, targets)  # fmt: skip
            loss += new
            if divide:
                change = change / size
            changes = tl.broadcast_to(change[None, :], [parts, lanes])
            tl.atomic_add(pieces, changes, mask=there, sem="relaxed")
    tl.store(losses + program, loss)


PARTS = 8  # rows of n-grams that are read together: a word has some twenty


def skip_gram(
    words: Tensor, low: Tensor, high: Tensor, keys: Tensor, inputs: Tensor, outputs: Tensor, accept: Tensor,
    alias: Tensor, spelled: tuple[Tensor, Tensor, Tensor] | None, negatives: int, rate: float, programs: int,
) -> Tensor:  # fmt: skip
    """Moves the tables; returns the sum of losses. `spelled`: bounds, rows and growth of words that have n-grams."""
    count, losses = len(words), torch.zeros(programs, device=words.device)
    with torch.cuda.device_of(words):
        _skip_gram[(programs,)](
            words, low, high, keys, count, -(-count // programs), inputs, outputs, accept, alias, len(accept),
            *(spelled or (words, words, outputs)), losses, rate, outputs.shape[1], negatives, _power(negatives + 1),
            _power(outputs.shape[1]), PARTS, spelled is not None, num_warps=1,
        )  # fmt: skip
    return losses.sum(dtype=torch.float64)


def cbow(
    words: Tensor, low: Tensor, high: Tensor, keys: Tensor, inputs: Tensor, outputs: Tensor, accept: Tensor,
    alias: Tensor, window: int, divide: bool, negatives: int, rate: float, programs: int,
) -> Tensor:  # fmt: skip
    count, losses = len(words), torch.zeros(programs, device=words.device)
    with torch.cuda.device_of(words):
        _cbow[(programs,)](
            words, low, high, keys, count, -(-count // programs), inputs, outputs, accept, alias, len(accept), losses,
            rate, outputs.shape[1], negatives, _power(negatives + 1), _power(outputs.shape[1]), _power(2 * window + 1),
            divide, num_warps=1,
        )  # fmt: skip
    return losses.sum(dtype=torch.float64)


def _power(size: int) -> int:
    """The power of two that holds it: what a warp's tiles are made of."""
    return 1 << (size - 1).bit_length()

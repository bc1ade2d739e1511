"""Which attention weights stay, from their place alone: for our Triton kernels, which never hold all weights at once.
The kernels of nn/triton/residual_norm.py drop elements of a branch the same way.

Forward and backward passes, which go through a sequence in different tiles, must draw the same. So each row and each
column of a (sequence, head) gets a well-mixed number, and the two of a weight are mixed once more. That costs a
quarter of a Philox draw, which took more time than the attention around it (H200, 128 tokens, forward: 0.34 ms, and
0.10 without dropout). Products and shifts are MurmurHash3's way to mix (Appleby), with constants that Wellons found.
"""

from __future__ import annotations

import triton
import triton.language as tl

STEPS = 2**24  # a rate is rounded to a multiple of 1 / STEPS
_STEPS = tl.constexpr(STEPS)


@triton.jit
def hash_bits(x):  # type: ignore[no-untyped-def]
    """A bijection of 32 bits under which near numbers fall far apart."""
    x = x.to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def head_key(seed, program):  # type: ignore[no-untyped-def]
    """The key of a sequence and head: `seed` is one number, already loaded."""
    return hash_bits(seed.to(tl.uint32) + hash_bits(program))


@triton.jit
def dropout_factor(key, row, column, drops: tl.constexpr):  # type: ignore[no-untyped-def]
    """What the weights of `row` and `column`, which broadcast, are multiplied by: 0 at a rate of drops / STEPS, or the
    inverse of the share that stays. `key` is a number of the sequence and head, from `key_of`."""
    x = hash_bits(row.to(tl.uint32) + key) ^ hash_bits((column.to(tl.uint32) ^ 0x5BD1E995) - key)
    x = x * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return tl.where((x >> 8).to(tl.int32) < drops, 0.0, _STEPS / (_STEPS - drops))

"""Dropout masks computed from positions, for Triton kernels that never hold all weights at once.

The attention kernels, and those of nn/triton/residual_norm.py, which drop elements of a branch, share these functions.
Forward and backward passes, which go through a sequence in different tiles, must draw the same. So each row and each
column of a (sequence, head) gets a hash, and the two of a weight are mixed once more. That costs a quarter of a Philox
draw, which took more time than the attention around it (H200, 128 tokens, forward: 0.34 ms, and 0.10 without dropout).
Products and shifts are those of MurmurHash3 (Appleby), with constants found by Wellons.
"""

from __future__ import annotations

import triton
import triton.language as tl

STEPS = 2**24  # a rate is rounded to a multiple of 1 / STEPS
_STEPS = tl.constexpr(STEPS)


@triton.jit
def hash_bits(x):  # type: ignore[no-untyped-def]
    """Apply a bijection of 32 bits that maps near numbers far apart."""
    x = x.to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def head_key(seed, program):  # type: ignore[no-untyped-def]
    """Return the key of a sequence and head. `seed` is one number, already loaded."""
    return hash_bits(seed.to(tl.uint32) + hash_bits(program))


@triton.jit
def dropout_factor(key, row, column, drops: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the factors of the weights at `row` and `column`, which broadcast.

    They are 0 at a rate of drops / STEPS, or else the inverse of the rate that stays. `key` is that of the sequence and
    head, from `head_key`.
    """
    x = hash_bits(row.to(tl.uint32) + key) ^ hash_bits((column.to(tl.uint32) ^ 0x5BD1E995) - key)
    x = x * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return tl.where((x >> 8).to(tl.int32) < drops, 0.0, _STEPS / (_STEPS - drops))

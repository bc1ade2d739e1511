"""Jumps of torch's CPU generator: values are passed over without being drawn.

The generator is MT19937 (Matsumoto & Nishimura 1998): each of its words x[k+624] is a sum, bit by bit, of x[k+397] and
of bits of x[k] and x[k+1]. So every bit of the words satisfies one linear recurrence, that of the characteristic
polynomial p of degree 19,937, and x[k+J] is the sum of those x[k+i] whose i are exponents of t^J mod p (Haramoto et al.
2008, "Efficient Jump Ahead for F2-Linear Random Number Generators"). A jump costs about the same over a million values
as over a hundred billion: a part of a second for the polynomial, which is kept, and some milliseconds for the words.

A process that holds a share of a large parameter draws its share alone by it, with the bits of the whole.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

WORDS, MIDDLE = 624, 397
UPPER, LOWER, MATRIX = np.uint32(0x80000000), np.uint32(0x7FFFFFFF), np.uint32(0x9908B0DF)
STATE_BYTES, FIRST_WORD = 5056, 24  # of torch's state: a seed and two positions, then words of 64 bits that hold 32
FEWEST = 1 << 23  # values for which a jump is faster than drawing them
CHUNK = 1 << 20  # values that are drawn at once; a multiple of 16, in which torch draws normal values


def skip_words(generator: torch.Generator, count: int) -> None:
    """Pass over `count` words of 32 bits: a value of float32 takes one, uniform or (from 16 values on) normal."""
    blocks = count // WORDS if count >= FEWEST else 0
    if blocks and not _jump(generator, blocks):
        blocks = 0  # a state of another layout: what is drawn is the same
    count -= blocks * WORDS
    values = torch.empty(min(count, CHUNK), dtype=torch.float32, device="cpu")
    while count:
        values[:count].uniform_(generator=generator)
        count -= min(count, CHUNK)


def count_normal_words(size: int) -> int:
    """Words that torch takes for 16 normal values or more: where 16 is no divisor, the last 16 are drawn again."""
    return size + (16 if size % 16 else 0)


def draw_normal(values: Tensor, generator: torch.Generator, deviation: float, start: int, total: int) -> int:
    """Fill flat values with those from `start` on of `total` normal ones; return the words that were passed."""
    if len(values) == total or total < 16:  # torch draws fewer than 16 otherwise
        whole = values if len(values) == total else torch.empty(total, dtype=torch.float32, device="cpu")
        whole.normal_(0.0, deviation, generator=generator)
        if whole is not values:
            values.copy_(whole[start : start + len(values)])
        return count_normal_words(total)
    stop, even = start + len(values), total - total % 16
    place, last = start - start % 16, min(even, stop + -stop % 16)  # sixteen values come from sixteen words
    skip_words(generator, place)
    while place < last:
        size = min(CHUNK, last - place)
        drawn = torch.empty(size, dtype=torch.float32, device="cpu").normal_(0.0, deviation, generator=generator)
        left, right = max(start, place), min(stop, place + size)
        values[left - start : right - start] = drawn[left - place : right - place]
        place += size
    if even < total and stop > total - 16:  # the last sixteen are drawn again, after all others
        skip_words(generator, total - place)
        drawn = torch.empty(16, dtype=torch.float32, device="cpu").normal_(0.0, deviation, generator=generator)
        left = max(start, total - 16)
        values[left - start :] = drawn[left - total + 16 : stop - total + 16]
        place = total + 16
    return place


def _jump(generator: torch.Generator, blocks: int) -> bool:
    """Replace the words of a generator by those `blocks` times 624 later; False where its state is not as expected."""
    state = generator.get_state()
    if state.numel() != STATE_BYTES:
        return False
    words = state.numpy()[FIRST_WORD : FIRST_WORD + 8 * WORDS].view(np.uint64)
    # the lower bits of the first word of a seed are no part of the recurrence: begin with the second
    exponents = _find_exponents(blocks * WORDS - 1)
    sequence = _extend(words.astype(np.uint32), len_after=int(exponents[-1]) + 1 + WORDS)[1:]
    later = np.zeros(WORDS, dtype=np.uint32)
    for exponent in exponents.tolist():
        later ^= sequence[exponent : exponent + WORDS]
    words[:] = later
    generator.set_state(state)
    return True


def _extend(words: np.ndarray, len_after: int) -> np.ndarray:
    """Return the words and those that follow them by the recurrence, `len_after` at least."""
    sequence = np.empty(len_after + WORDS, dtype=np.uint32)
    sequence[:WORDS] = words
    size = WORDS - MIDDLE  # words that depend on none of each other
    for begin in range(0, len_after - WORDS + 1, size):
        mixed = (sequence[begin : begin + size] & UPPER) | (sequence[begin + 1 : begin + size + 1] & LOWER)
        twisted = (mixed >> np.uint32(1)) ^ np.where(mixed & np.uint32(1), MATRIX, np.uint32(0))
        after = sequence[begin + MIDDLE : begin + MIDDLE + size] ^ twisted
        sequence[begin + WORDS : begin + WORDS + size] = after
    return sequence


# --- polynomials over two elements: bit i of a whole number is the coefficient of t^i -------------------


@cache
def _find_exponents(distance: int) -> np.ndarray:
    """Return the exponents of t^distance modulo the characteristic polynomial, in rising order."""
    polynomial = 1
    for bit in bin(distance)[2:]:
        square = int("0".join(bin(polynomial)[2:]), 2)  # squares of sums are sums of squares
        polynomial = _reduce(square << (bit == "1"))
    return np.flatnonzero(np.array(list(bin(polynomial)[:1:-1]), dtype=np.uint8))


def _reduce(polynomial: int) -> int:
    """Return the remainder of a division by the characteristic polynomial."""
    degree, lower = _characteristic()
    mask = (1 << degree) - 1
    while upper := polynomial >> degree:
        polynomial &= mask
        for exponent in lower:
            polynomial ^= upper << exponent
    return polynomial


@cache
def _characteristic() -> tuple[int, list[int]]:
    """Return the degree of the characteristic polynomial and the exponents of its other terms.

    With a = t^624 + t^397, b = t^623 + t^396 and the bits m_0 ... m_31 of the matrix from the lowest on, it is
    a b^31 + the sum of m_i a b^(30-i) for i < 31 + m_31 (Matsumoto & Nishimura 1998, appendix A).
    """
    matrix, polynomial = int(MATRIX), 1
    for i in range(31):  # Horner's rule in b
        polynomial = polynomial << (WORDS - 1) ^ polynomial << (MIDDLE - 1) ^ (matrix >> i & 1)
    polynomial = polynomial << WORDS ^ polynomial << MIDDLE ^ (matrix >> 31)
    degree = polynomial.bit_length() - 1
    return degree, [exponent for exponent in range(degree) if polynomial >> exponent & 1]

"""Random numbers as pure functions of a key and an index (design decision 2).

Nothing here holds state. A *key* is a 64-bit integer folded from (seed, step, row, purpose); the value at *index* i
under a key is a fixed mixing of both (SplitMix64, Steele et al. 2014). So any value can be computed anywhere, in any
order, on any device, with the same bits. Arrays may be numpy (uint64) or torch (int64, where multiplication wraps the
same way); the type of `index` decides which is used.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, overload

import numpy as np

if TYPE_CHECKING:  # numpy alone at run time: processes that prepare a corpus never load torch
    from torch import Tensor

Array = TypeVar("Array", np.ndarray, "Tensor")

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: consecutive indices land far apart
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def mix(value: int) -> int:
    """Apply SplitMix64's finalizer to one Python integer."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)


def fold(*parts: int | str) -> int:
    """Fold several parts into one key. The order matters; strings are hashed."""
    state = 0
    for part in parts:
        state = mix(state ^ mix(_to_int(part) + _GOLDEN))
    return state


def _to_int(part: int | str) -> int:
    if isinstance(part, str):
        return int.from_bytes(hashlib.blake2b(part.encode(), digest_size=8).digest(), "little")
    return part


def fold_arrays(*parts: int | str | np.ndarray) -> np.ndarray:
    """Compute `fold` for every element, uint64. Some parts are arrays of one shape."""
    state: int | np.uint64 | np.ndarray = 0
    for number, part in enumerate(parts):
        if isinstance(part, np.ndarray):
            if not isinstance(state, np.ndarray):
                state = np.uint64(state)
            state = mix_array(state ^ mix_array(part.astype(np.uint64) + np.uint64(_GOLDEN)))
        elif isinstance(state, np.ndarray):
            # the contribution of a plain part does not depend on those before it
            state = mix_array(state ^ np.uint64(mix(_to_int(part) + _GOLDEN)))
        else:
            state = fold(*parts[: number + 1])  # type: ignore[arg-type]
    keys: np.ndarray = state  # type: ignore[assignment]  # an array from the first array on
    return keys


def mix_array(value: np.ndarray) -> np.ndarray:
    """Apply `mix` to an array of uint64, in place."""
    value = _mix_upper(value)
    value ^= value >> np.uint64(31)
    return value


def _mix_upper(value: Array) -> Array:
    """Apply all of `mix` but its last step, which changes the lower 33 bits alone; arrays of numpy in place."""
    if isinstance(value, np.ndarray):
        value ^= value >> np.uint64(30)
        value *= np.uint64(_FIRST)
        value ^= value >> np.uint64(27)
        value *= np.uint64(_SECOND)
        return value
    # torch shifts int64 arithmetically: the mask clears the copied sign bits
    value = (value ^ ((value >> 30) & (_MASK >> 30))) * _to_signed(_FIRST)
    return (value ^ ((value >> 27) & (_MASK >> 27))) * _to_signed(_SECOND)


def _to_signed(value: int) -> int:
    """Reinterpret 64 bits as a signed integer, the only 64-bit integer torch has."""
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def random_bits(key: int | Array, index: Array) -> Array:
    """Return 64 random bits for each index: uint64 from numpy, int64 with the same bits from torch.

    `key` is an int, or an array of the same library that broadcasts with `index`.
    """
    x = _mix_upper(_add_key(key, place_of(index)))
    if isinstance(x, np.ndarray):
        x ^= x >> np.uint64(31)
        return x
    return x ^ ((x >> 31) & (_MASK >> 31))


def place_of(index: Array) -> Array:
    """Return what of a hash its index decides alone: the same for all keys (see `gumbel_at`)."""
    if not isinstance(index, np.ndarray):
        return (index.long() + 1) * _to_signed(_GOLDEN)
    x = index.astype(np.uint64)
    x += np.uint64(1)
    x *= np.uint64(_GOLDEN)
    return x


def _add_key(key: int | Array, place: Array) -> Array:
    """Return the state that is mixed, a new array."""
    if not isinstance(place, np.ndarray):
        return (_to_signed(key) if isinstance(key, int) else key) + place
    addend = key.astype(np.uint64, copy=False) if isinstance(key, np.ndarray) else np.uint64(key & _MASK)
    return np.asarray(place + addend)


def uniform(key: int | Array, index: Array) -> Array:
    """Return float32 in [0, 1).

    Only the top 24 bits are used, so every value is exact and equal on every device.
    """
    return _uniform_at(key, place_of(index))


def _uniform_at(key: int | Array, place: Array) -> Array:
    x = _mix_upper(_add_key(key, place))  # the upper bits are those of `random_bits`
    if isinstance(x, np.ndarray):
        return (x >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
    return ((x >> 40) & ((1 << 24) - 1)).float() * 2.0**-24


def integers(key: int | Array, index: Array, limit: int | Array) -> Array:
    """Return integers in [0, limit), limit < 2^31. The bias of the multiply-shift is below limit / 2^32."""
    x = random_bits(key, index)
    if isinstance(x, np.ndarray):
        limits: np.ndarray = np.asarray(limit).astype(np.uint64)
        drawn: np.ndarray = ((x >> np.uint64(32)) * limits) >> np.uint64(32)
        return drawn.astype(np.int64)
    return (((x >> 32) & 0xFFFFFFFF) * limit) >> 32


def gumbel(key: int | Array, index: Array) -> Array:
    """Return Gumbel noise, -log(-log(1 - v)) for uniform v, to sample from logits by argmax.

    v is at least 2^-25, so the noise is at most 17.3. It is computed from the end where float32 is fine, because large
    noise decides a draw. At the other end the last of 2^24 values would round to v = 1 and is kept below it; its noise
    is the smallest there is.
    """
    return gumbel_at(key, place_of(index))


def gumbel_at(key: int | Array, place: Array) -> Array:
    """Return the same noise for an index that `place_of` has taken: many keys share its product."""
    v = _uniform_at(key, place) + 2.0**-25
    if isinstance(v, np.ndarray):
        return -np.log(-np.log1p(-np.minimum(v, np.float32(1 - 2.0**-24))))
    return -(-(-v.clamp(max=1 - 2.0**-24)).log1p()).log()


class Permutation:
    """A keyed permutation of range(size) in O(1) an index (Feistel network with cycle walking)."""

    rounds = 6  # 4 suffice for a strong pseudo-random permutation; 6 because small domains have few bits a round

    def __init__(self, size: int, key: int) -> None:
        if size < 1:
            raise ValueError(f"a permutation needs at least one element, not {size}")
        self.size = size
        self.half = max(1, ((size - 1).bit_length() + 1) // 2)
        self.keys = [fold(key, number) for number in range(self.rounds)]

    @overload
    def __call__(self, index: int) -> int: ...
    @overload
    def __call__(self, index: np.ndarray) -> np.ndarray: ...
    def __call__(self, index: np.ndarray | int) -> np.ndarray | int:
        if not isinstance(index, np.ndarray):
            return int(self(np.asarray([index]))[0])
        if index.size and (int(index.min()) < 0 or int(index.max()) >= self.size):
            raise IndexError(f"permutation of {self.size}: index out of range")
        value = self._encrypt(index.astype(np.uint64))
        outside = value >= self.size  # the Feistel domain is a power of four: walk on until inside
        while outside.any():
            value[outside] = self._encrypt(value[outside])
            outside = value >= self.size
        return value.astype(np.int64)

    def _encrypt(self, value: np.ndarray) -> np.ndarray:
        half, low = np.uint64(self.half), np.uint64((1 << self.half) - 1)
        left, right = value >> half, value & low
        for key in self.keys:
            left, right = right, left ^ (random_bits(key, right) & low)
        return (left << half) | right


@dataclass(frozen=True)
class Chance:
    """The random numbers of one training step. Purposes are words: "mask", "replace", "negative"."""

    seed: int
    step: int

    def key(self, purpose: str, row: int = 0) -> int:
        """Return the key of one row for one purpose."""
        return fold(self.seed, self.step, row, purpose)

    def keys(self, purpose: str, rows: np.ndarray) -> np.ndarray:
        """Return one key for each row, uint64 (R,)."""
        return fold_arrays(self.seed, self.step, np.asarray(rows), purpose)

"""Korean particles: a name is followed by them inside one word, as in 서울에서는 (서울 + 에서 + 는).

Some have a form after a consonant and another after a vowel (은/는, 이/가, 을/를, 과/와, 으로/로): 서울는 is no mention
of 서울. After letters of other scripts and digits (NASA가, 3M은), whose reading is not in the spelling, both forms are
taken.
"""

from __future__ import annotations

from functools import cache

import numpy as np

AFTER_CONSONANT, AFTER_VOWEL, AFTER_RIEUL = 1, 2, 4  # what a stem may end in; AFTER_RIEUL is also a consonant
ANYWHERE = AFTER_CONSONANT | AFTER_VOWEL | AFTER_RIEUL

# case particles and the copula by what stands before them; each line is a set of alternatives
_CONSONANT = """
    은 이 을 과 이나 이란 이라 이라는 이라고 이라도 이며 이고 이자 이다 이었다 이었던 이야 이여 이랑 이든 이라면
"""
_VOWEL = "는 가 를 와 나 란 라는 라고 라도 며 다 였다 였던 랑 라면"
_DIRECTION_CONSONANT = "으로 으로는 으로도 으로의 으로서 으로써 으로부터"  # not after ㄹ
_DIRECTION_VOWEL = "로 로는 로도 로의 로서 로써 로부터"  # also after ㄹ
_ANY = """
    의 에 에서 에게 에게서 께 께서 한테 한테서 에는 에도 에만 에의 에서는 에서도 에서만 에서의 에게는 에게도 께서는
    도 만 만은 만이 만을 만의 만도 까지 까지는 까지도 까지의 부터 부터는 부터의 마저 조차 밖에 보다 보다는 보다도
    처럼 처럼은 같이 마다 뿐 뿐만 하고 하고는 대로 씩 쯤 들 들은 들이 들을 들의 들에 들에게 들과 들도 들로 들에서
    들까지 들처럼 이라든지 에서부터 에까지 입니다 이에요 예요 인 인지 인데 이지만 이면서 이므로
"""
LONGEST = 4  # syllables
_FIRST_SYLLABLE, _LAST_SYLLABLE, _FINALS, _RIEUL = 0xAC00, 0xD7A3, 28, 8


def list_particles() -> dict[str, int]:
    """Return each particle with what may stand before it, as bits."""
    particles: dict[str, int] = {}
    for words, before in (
        (_CONSONANT, AFTER_CONSONANT | AFTER_RIEUL), (_VOWEL, AFTER_VOWEL), (_DIRECTION_CONSONANT, AFTER_CONSONANT),
        (_DIRECTION_VOWEL, AFTER_VOWEL | AFTER_RIEUL), (_ANY, ANYWHERE),
    ):  # fmt: skip
        for word in words.split():
            particles[word] = particles.get(word, 0) | before
    return particles


@cache
def _tables() -> list[tuple[np.ndarray, np.ndarray]]:
    """Return by length the particles as sorted numbers, and what may stand before each."""
    tables = []
    for length in range(1, LONGEST + 1):
        particles = {word: before for word, before in list_particles().items() if len(word) == length}
        codes = np.array([[ord(letter) for letter in word] for word in particles], np.int64).reshape(-1, length)
        numbers = _pack(list(codes.T))
        order = np.argsort(numbers)
        tables.append((numbers[order], np.array(list(particles.values()), np.uint8)[order]))
    return tables


def _pack(codes: list[np.ndarray]) -> np.ndarray:
    """Return syllables as digits of one number; they take 14 bits each, so four fit."""
    numbers = np.zeros(len(codes[0]), np.int64)
    for column in codes:
        numbers = (numbers << 14) | (column.astype(np.int64) - _FIRST_SYLLABLE)
    return numbers


def find_stems(codes: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the words that end in a particle, by number, and the end of the stem before it; a word may be there twice.

    codes: the characters of the text. starts, ends: of its words.
    """
    is_hangul = _is_syllable(codes[ends - 1])
    words = np.flatnonzero(is_hangul & (ends - starts > 1))
    numbers, stem_ends = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for length, (particles, before) in enumerate(_tables(), start=1):
        # the last `length` characters are syllables, and something is left before them
        words = words[(ends[words] - starts[words] > length) & _is_syllable(codes[ends[words] - length])]
        if not len(words):
            break
        suffixes = _pack([codes[ends[words] - place] for place in range(length, 0, -1)])
        places = np.minimum(np.searchsorted(particles, suffixes), len(particles) - 1)
        last = codes[ends[words] - length - 1]  # of the stem
        matches = (particles[places] == suffixes) & ((before[places] & _classify_final(last)) != 0)
        numbers.append(words[matches])
        stem_ends.append(ends[words[matches]] - length)
    words, stems = np.concatenate(numbers), np.concatenate(stem_ends)
    order = np.argsort(words, kind="stable")
    return words[order], stems[order]


def _is_syllable(codes: np.ndarray) -> np.ndarray:
    return (codes >= _FIRST_SYLLABLE) & (codes <= _LAST_SYLLABLE)


def _classify_final(codes: np.ndarray) -> np.ndarray:
    """Return what the last character of a stem is, as bits: a consonant, a vowel, ㄹ, or any of them."""
    final = (codes.astype(np.int64) - _FIRST_SYLLABLE) % _FINALS
    kinds = np.where(final == 0, AFTER_VOWEL, np.where(final == _RIEUL, AFTER_RIEUL, AFTER_CONSONANT))
    return np.where(_is_syllable(codes), kinds, ANYWHERE).astype(np.uint8)

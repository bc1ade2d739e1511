"""Invented names of three syllables, in Latin letters and in Hangul: they say nothing of what they name."""

from __future__ import annotations

import numpy as np

from etude.chance import Permutation, fold
from etude.world.words import Word

_OPEN = """ba 바, be 베, bo 보, da 다, de 데, do 도, ga 가, go 고, ha 하, ho 호, ka 카, ki 키, ko 코, la 라, le 레,
    li 리, lo 로, ma 마, mi 미, mo 모, na 나, ne 네, no 노, pa 파, pe 페, sa 사, so 소, su 수, ta 타, te 테, to 토,
    yo 요"""
_CLOSED = """ren 렌, lan 란, tan 탄, mel 멜, vin 빈, dal 달, kam 캄, nel 넬, sol 솔, bon 본, gan 간, tem 템, lin 린,
    dun 둔, mar 마르, tis 티스"""


def _syllables(text: str) -> list[tuple[str, str]]:
    pairs = (entry.split() for entry in text.replace("\n", " ").split(","))
    return [(latin, hangul) for latin, hangul in pairs]


OPEN, CLOSED = _syllables(_OPEN), _syllables(_CLOSED)


def make_names(seed: int, count: int, category: str) -> list[Word]:
    """Return different names in an order drawn from the seed; the key of each is the name in Latin letters."""
    combinations = len(OPEN) * len(OPEN) * len(CLOSED)
    names = []
    for place in Permutation(combinations, fold(seed, "district names"))(np.arange(count)).tolist():
        first, rest = divmod(place, len(OPEN) * len(CLOSED))
        second, third = divmod(rest, len(CLOSED))
        parts = (OPEN[first], OPEN[second], CLOSED[third])
        latin, hangul = ("".join(part[side] for part in parts) for side in (0, 1))
        names.append(Word(latin.capitalize(), hangul, category, "PROPN"))
    return names

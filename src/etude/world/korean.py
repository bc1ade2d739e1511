"""Korean particles and endings, chosen by sound.

A particle has two shapes, after a consonant and after a vowel (책은, 나무는); 으로 has a third case, since ㄹ
counts as a vowel there (연필로). What decides is the last sound as it is read aloud, so digits and Latin
letters have one too (3은 "삼은", B는 "비는"). Endings follow the regular rules of the language and its
irregular classes (ㅂ ㄷ ㅅ 르 ㅎ, 이 for the copula), which the lexicon names beside a verb: "굽다/ㅂ" -> 구웠다.
"""

from __future__ import annotations

import re
from functools import cache

_BASE = 0xAC00  # 가; a syllable is BASE + (lead * 21 + vowel) * 28 + final
_LAST = 0xD7A3  # 힣
_FINALS = " ㄱㄲㄳㄴㄵㄶㄷㄹㄺㄻㄼㄽㄾㄿㅀㅁㅂㅄㅅㅆㅇㅈㅊㅋㅌㅍㅎ"
_VOWELS = "ㅏㅐㅑㅒㅓㅔㅕㅖㅗㅘㅙㅚㅛㅜㅝㅞㅟㅠㅡㅢㅣ"
_DIGITS = "ㅇㄹ ㅁ  ㄱㄹㄹ "  # 영 일 이 삼 사 오 육 칠 팔 구
_POWERS = {1: "ㅂ", 2: "ㄱ", 3: "ㄴ"}  # 십 백 천: what a number that ends in so many zeros ends in

# after a consonant -> after a vowel
_PAIRS = {
    "은": "는",
    "이": "가",
    "을": "를",
    "과": "와",
    "으로": "로",
    "으로는": "로는",
    "으로도": "로도",
    "이나": "나",
    "이랑": "랑",
    "아": "야",
    "이다": "다",
    "이었다": "였다",
    "이며": "이며",
    "이고": "고",
    "이라는": "라는",
    "이라고": "라고",
    "이라서": "라서",
    "이지만": "지만",
    "인": "인",
    "이에요": "예요",
    "이었고": "였고",
    "이었지만": "였지만",
    "이었을까": "였을까",
    "이나마": "나마",
}
PARTICLES = {closed: (closed, opened) for closed, opened in _PAIRS.items()}
PARTICLES |= {opened: (closed, opened) for closed, opened in _PAIRS.items() if opened not in PARTICLES}


def is_hangul(character: str) -> bool:
    return _BASE <= ord(character) <= _LAST


def _split(syllable: str) -> tuple[int, str, str]:
    """(lead, vowel, final) of one syllable; no final is a space."""
    code = ord(syllable) - _BASE
    return code // 588, _VOWELS[code % 588 // 28], _FINALS[code % 28]


def _join(lead: int, vowel: str, final: str = " ") -> str:
    return chr(_BASE + (lead * 21 + _VOWELS.index(vowel)) * 28 + _FINALS.index(final))


def last_sound(word: str) -> str:
    """The final consonant of the word as it is read aloud; a space where it ends in a vowel."""
    spoken = word.rstrip()
    while spoken and not spoken[-1].isalnum():  # 은 after "집)" or 집" is that of 집
        spoken = spoken[:-1]
    if not spoken:
        return " "
    last = spoken[-1]
    if is_hangul(last):
        return _split(last)[2]
    if last in "0123456789":
        zeros = len(spoken) - len(spoken.rstrip("0"))
        if zeros == 0:
            return _DIGITS[int(last)]
        if zeros == len(spoken) or not spoken[-zeros - 1].isdigit():
            return _DIGITS[0]  # 0 itself is 영
        if zeros >= 4:
            return {0: "ㄴ", 1: "ㄱ", 2: " "}.get(zeros // 4 - 1, " ")  # 만 억 조
        return _POWERS[zeros]
    if last.isascii():
        return _latin(spoken)
    return " "


def _latin(word: str) -> str:
    """By letter name for capitals (FM은 "에프엠은"), by usual transcription otherwise (Tom은, book은, Anna는)."""
    last = word[-1]
    if last.isupper():
        return {"L": "ㄹ", "M": "ㅁ", "N": "ㄴ", "R": "ㄹ"}.get(last, " ")
    if word.endswith("ng"):
        return "ㅇ"
    if last in "lmn":
        return {"l": "ㄹ", "m": "ㅁ", "n": "ㄴ"}[last]
    if last in "ckpt" and re.search(r"(?:^|[^aeiou])(?:[aeiou]|oo)$", word[:-1]):  # 북 맵 캣, but 데스크, 스케이트
        return {"c": "ㄱ", "k": "ㄱ", "p": "ㅂ", "t": "ㅅ"}[last]
    return " "


def particle(word: str, name: str) -> str:
    """The shape of a particle that fits the word; either shape names it. Others (에서, 의, 도) have only one."""
    pair = PARTICLES.get(name)
    if pair is None:
        return name
    sound = last_sound(word)
    if sound == "ㄹ" and pair[0].startswith("으로"):
        return pair[1]
    return pair[1] if sound == " " else pair[0]


def attach(word: str, name: str) -> str:
    return word + particle(word, name)


@cache
def conjugate(entry: str, ending: str, adjective: bool = False) -> str:
    """One form of a dictionary entry such as "굽다/ㅂ".

    Endings: 다 (plain present), 었다, 었고, 어 (and 어서, 어도), 은 (what it is like, or what was done), 는 (what is
    being done), 으러, 으려고, 으면, and those that simply follow the stem: 고, 지만, 지, 기, 게, 던.
    """
    form, _, irregular = entry.partition("/")
    stem = form.removesuffix("다")
    if stem == form:
        raise ValueError(f"'{entry}' is not a dictionary form: it must end in 다")
    if ending == "다":
        if adjective:
            return form
        return stem + "는다" if _closed(stem) else _with_final(_bare(stem), "ㄴ") + "다"
    if stem.endswith("색이") and ending in ("은", "게"):  # a colour is a noun: 갈색 모자, 갈색으로
        return stem[:-1] + ("" if ending == "은" else "으로")
    if irregular == "이" and ending in ("다고", "다는"):  # reported, the copula is 라: 매력적이라고
        return stem + "라" + ending[1:]
    if ending.startswith("었"):
        return _with_final(_infinitive(stem, irregular), "ㅆ") + ending[1:]
    if ending.startswith("어"):
        return _infinitive(stem, irregular) + ending[1:]
    if ending == "은":
        if adjective and stem.endswith(("있", "없")):
            return stem + "는"
        if irregular == "ㅂ":
            return _bare_any(stem) + "운"
        if irregular == "ㅎ":
            return _with_final(stem, "ㄴ")
        if irregular == "ㄷ":
            return _with_final(stem, "ㄹ") + "은"
        if irregular == "ㅅ":
            return _bare_any(stem) + "은"
        return stem + "은" if _closed(stem) else _with_final(_bare(stem), "ㄴ")
    if ending == "는":
        return _bare(stem) + "는"
    if ending in ("으러", "으려고", "으면"):
        if irregular == "ㅂ":
            return _bare_any(stem) + "우" + ending[1:]
        if irregular == "ㅅ":
            return _bare_any(stem) + ending
        if irregular == "ㅎ":
            return _bare_any(stem) + ending[1:]
        if irregular == "ㄷ":
            return _with_final(stem, "ㄹ") + ending
        return stem + (ending if _closed(stem) else ending[1:])
    return stem + ending


def _closed(stem: str) -> bool:
    """Whether the stem ends in a consonant other than ㄹ, which falls away or acts as a vowel."""
    return _split(stem[-1])[2] not in " ㄹ"


def _bare_any(stem: str) -> str:
    """Without its final consonant, whichever it is."""
    return _with_final(stem, " ")


def _bare(stem: str) -> str:
    """Without a final ㄹ: 만들 -> 만드."""
    return _bare_any(stem) if _split(stem[-1])[2] == "ㄹ" else stem


def _with_final(text: str, final: str) -> str:
    lead, vowel, _ = _split(text[-1])
    return text[:-1] + _join(lead, vowel, final)


def _infinitive(stem: str, irregular: str) -> str:
    """The 아/어 form with its contractions: 가 와 배워 마셔 써 해 구워 들어 몰라."""
    lead, vowel, final = _split(stem[-1])
    head = stem[:-1]
    if irregular == "이":  # the copula stays apart after a consonant: 적이었다, not 적였다
        return stem + "어"
    if stem[-1] == "하":
        return head + "해"
    if irregular == "ㅂ":
        bright = vowel in "ㅏㅗ" and len(stem) == 1  # only 돕다 and 곱다 keep 와
        return head + _join(lead, vowel) + ("와" if bright else "워")
    if irregular == "ㄷ":
        return head + _join(lead, vowel, "ㄹ") + ("아" if vowel in "ㅏㅗ" else "어")
    if irregular == "ㅅ":
        return head + _join(lead, vowel) + ("아" if vowel in "ㅏㅗ" else "어")
    if irregular == "ㅎ":
        return head + _join(lead, {"ㅏ": "ㅐ", "ㅑ": "ㅒ", "ㅓ": "ㅔ"}[vowel])  # 빨개 하얘 퍼레
    if irregular == "르":
        before = _split(head[-1])[1]
        return _with_final(head, "ㄹ") + ("라" if before in "ㅏㅗ" else "러")
    if final != " ":
        return stem + ("아" if vowel in "ㅏㅗ" else "어")
    if vowel == "ㅡ":
        bright = bool(head) and _split(head[-1])[1] in "ㅏㅗ"
        return head + _join(lead, "ㅏ" if bright else "ㅓ")
    contracted = {"ㅗ": "ㅘ", "ㅜ": "ㅝ", "ㅣ": "ㅕ", "ㅚ": "ㅙ"}
    if vowel in contracted:
        return head + _join(lead, contracted[vowel])
    if vowel in "ㅏㅓㅐㅔㅕ":
        return stem
    return stem + "어"

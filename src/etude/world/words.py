"""A word of the world: one concept with its English and its Korean forms.

`word.en["s"]` and `word.ko["를"]` are the forms a sentence pattern asks for. They are made on first use and
kept, so that writing a sentence is a few dictionary look-ups.

English forms       "" apple   "a" an apple (some soup)   "one" an apple (soup)   "s" apples
                    "are" are (is)   "were" were (was)   "they" they (it)   "them" them (it)
   of a name        "" Anna    "~" Anna Hale  "he" she   "him" her   "his" her   "'s" Anna's
   of a verb        "" bake    "s" bakes      "ed" baked   "ing" baking
Korean forms        "" 사과    "를" 사과를 (any particle, named by either shape)
   of a name        "~를" with the family name; "그를" the pronoun
   of a verb        "다" "었다" "은" ... any ending of `korean.conjugate`
"""

from __future__ import annotations

from etude.world import english, korean

_MALE = {"he": "he", "him": "him", "his": "his", "man": "man"}
_FEMALE = {"he": "she", "him": "her", "his": "her", "man": "woman"}


class Word:
    """A concept, or one person, pet, street of the town. `links` are its facts: relation -> word."""

    __slots__ = (
        "category",
        "en",
        "english",
        "forms",
        "full",
        "key",
        "ko",
        "korean",
        "links",
        "mass",
        "mood",
        "ner",
        "sex",
        "tag",
    )

    def __init__(self, english: str, korean: str, category: str, tag: str = "NOUN", *, key: str = "") -> None:
        self.mass = english.startswith("~")  # ~bread: no plural, no article
        self.english = english.removeprefix("~")
        self.korean = korean
        self.category = category
        self.tag = tag  # its part of speech, universal tag set
        self.key = key or self.english
        self.ner = ""  # PER, LOC, ORG, MISC for names
        self.sex = ""  # "f" or "m" for people
        self.mood = 0  # +1 or -1 for words of praise and blame
        self.full: tuple[str, str] | None = None  # the whole name of a person, both languages
        self.links: dict[str, Word] = {}
        self.en = EnglishForms(self)
        self.ko = KoreanForms(self)
        self.forms = {"en": self.en, "ko": self.ko}

    def __repr__(self) -> str:
        return f"Word({self.key})"


class EnglishForms(dict[str, str]):
    def __init__(self, word: Word) -> None:
        self.word = word

    def __missing__(self, form: str) -> str:
        surface = self[form] = self._make(form)
        return surface

    def _make(self, form: str) -> str:
        word, base = self.word, self.word.english
        if form == "":
            return base
        if word.sex or word.full:
            if form == "~":
                return word.full[0] if word.full else base
            if form == "'s":
                return base + "'s"
            return (_FEMALE if word.sex == "f" else _MALE)[form]
        if word.tag == "VERB":
            return {"s": english.third, "ed": english.past, "ing": english.ing}[form](base)
        if form == "~":
            return base
        if form == "'s":
            return base + "'s"
        if form == "a" and word.tag == "ADJ":
            return f"{english.article(base)} {base}"
        if form == "a":
            return f"some {base}" if word.mass else f"{english.article(base)} {base}"
        if form == "one":  # what something is: a pie, or soup
            return base if word.mass else f"{english.article(base)} {base}"
        if form == "s":
            return base if word.mass else english.plural(base)
        number = {"are": ("is", "are"), "were": ("was", "were"), "they": ("it", "they"), "them": ("it", "them")}
        if form in number:
            return number[form][0 if word.mass else 1]
        raise KeyError(f"no English form '{form}' of {word.key}")


class KoreanForms(dict[str, str]):
    def __init__(self, word: Word) -> None:
        self.word = word

    def __missing__(self, form: str) -> str:
        surface = self[form] = self._make(form)
        return surface

    def _make(self, form: str) -> str:
        word, base = self.word, self.word.korean
        if word.tag in ("VERB", "ADJ"):
            return korean.conjugate(base, form, adjective=word.tag == "ADJ")
        if form.startswith("~"):
            return korean.attach(word.full[1] if word.full else base, form[1:])
        if form.startswith("그") and word.sex:
            return korean.attach("그녀" if word.sex == "f" else "그", form[1:])
        return korean.attach(base, form)


def table(text: str, category: str, tag: str = "NOUN") -> list[Word]:
    """Words from "apple 사과, sweet potato 고구마": the Korean begins at the first Hangul letter."""
    words = []
    for entry in text.replace("\n", " ").split(","):
        entry = entry.strip()
        if not entry:
            continue
        start = next(place for place, character in enumerate(entry) if korean.is_hangul(character))
        words.append(Word(entry[:start].strip(), entry[start:].strip(), category, tag))
    return words


_SHARED: dict[tuple[str, str, str], Word] = {}
_KEYS: set[str] = set()


def noun_table(text: str, category: str, tag: str = "NOUN") -> list[Word]:
    """Like `table`, but a noun that stands in several lists is one word, and keys are never shared: of two
    English homonyms the second has its Korean in its key."""
    words = []
    for word in table(text, category, tag):
        place = (word.english, word.korean, tag)
        if place not in _SHARED:
            if word.key in _KEYS:
                word.key = f"{word.english} ({word.korean})"
            _KEYS.add(word.key)
            _SHARED[place] = word
        words.append(_SHARED[place])
    return words

"""Analysis of a sentence: words with their parts of speech and entity tags, mentions of entities, slots.

Everything is read off the pattern and its words while the text is put together, so tags and offsets are true
by construction. English words are split as in the UD treebanks ('s apart); a Korean word is what stands
between spaces, particle and all, and its tag is that of its head.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from etude.world.lexicon import tags_en, tags_ko
from etude.world.pattern import NAME
from etude.world.script import Sentence
from etude.world.words import Word

_TOKEN = {"en": re.compile(r"'s|[^\W_]+(?:-[^\W_]+)*|[^\w\s]"), "ko": re.compile(r"[^\W_]+|[^\w\s]")}
_TABLE = {"en": tags_en.TAGS, "ko": tags_ko.TAGS}

# inside a compound noun or adjective, where the last word alone has the tag of the whole
_MODIFIERS = {
    "the": "DET", "sweet": "ADJ", "wild": "ADJ", "hot": "ADJ", "sick": "ADJ", "wooden": "ADJ", "fried": "ADJ",
    "damp": "ADJ", "hollow": "ADJ", "small": "ADJ", "first": "ADJ", "잊을": "VERB", "정직하지": "ADJ", "아픈": "ADJ",
    "축축한": "ADJ", "낯선": "ADJ", "빈": "ADJ", "작은": "ADJ", "긴": "ADJ", "큰": "ADJ", "속": "NOUN",
}  # fmt: skip
_PRONOUNS = ("he", "him", "his", "they", "them")
_ARTICLES = ("a", "an", "some")
_COPULA = ("이다", "다", "이었다", "였다", "이며", "이고", "이라는", "라는", "인", "이라고", "라고")


@dataclass(frozen=True)
class Mention:
    """An entity in a text: characters [start, end), the key of its facts, and whether only a pronoun stands there."""

    start: int
    end: int
    entity: str
    kind: str
    pronoun: bool = False

    def shift(self, offset: int) -> Mention:
        return replace(self, start=self.start + offset, end=self.end + offset)


@dataclass
class Analysis:
    """The tokens of one sentence with their gold labels."""

    text: str
    tokens: list[str] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)  # the place of each token in the text
    upos: list[str] = field(default_factory=list)
    ner: list[str] = field(default_factory=list)
    mentions: list[Mention] = field(default_factory=list)
    # the span of each slot's bare word, without article or particle
    slots: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, start: int, end: int, upos: str, ner: str = "O") -> None:
        self.tokens.append(self.text[start:end])
        self.starts.append(start)
        self.upos.append(upos)
        self.ner.append(ner)


def analyse(sentence: Sentence, language: str) -> Analysis:
    """Write a sentence and read its labels off the pattern."""
    pattern = sentence.frame.patterns[language]
    analysis = Analysis(sentence.write(language))
    place = 0
    for literal, slot, forms in pattern.parts:
        _read_literal(analysis, literal, place, language, pattern.marked)
        place += len(literal)
        word = sentence.cast[slot]
        mode = sentence.modes.get(slot, NAME)
        form = forms[mode]
        surface = word.forms[language][form]
        _read_slot(analysis, word, form, surface, place, language)
        start, end = _find_bare_word(word, form, surface, language)
        if slot not in analysis.slots and not _is_pronoun(word, form, language):
            analysis.slots[slot] = (place + start, place + end)
        pronoun = _is_pronoun(word, form, language)
        if word.tag in ("NOUN", "PROPN") and (word.sex or not pronoun) and form not in ("are", "were"):
            analysis.mentions.append(Mention(place + start, place + end, word.key, word.category, pronoun))
        place += len(surface)
    _read_literal(analysis, pattern.tail, place, language, pattern.marked)
    _resolve_ambiguous_tags(analysis, language)
    return analysis


def _read_literal(analysis: Analysis, literal: str, place: int, language: str, marked: dict[str, str]) -> None:
    for match in _TOKEN[language].finditer(literal):
        token = match.group()
        known = token if language == "ko" else token.lower()
        tag = marked.get(token) or _TABLE[language].get(known)
        if tag is None:
            raise KeyError(f"the word '{token}' of a pattern has no tag: add it to lexicon/tags_{language}.py")
        analysis.add(place + match.start(), place + match.end(), tag)


def _is_pronoun(word: Word, form: str, language: str) -> bool:
    if language == "en":
        return form in _PRONOUNS
    return bool(word.sex) and form.startswith("그")


def _find_bare_word(word: Word, form: str, surface: str, language: str) -> tuple[int, int]:
    """Return the span of the word itself within its surface form."""
    if language == "ko":
        if word.tag in ("VERB", "ADJ"):
            return 0, len(surface)
        if _is_pronoun(word, form, language):
            return 0, 2 if word.sex == "f" else 1
        whole = word.full[1] if form.startswith("~") and word.full else word.korean
        return 0, len(whole)
    first, space, _ = surface.partition(" ")
    start = len(first) + 1 if space and first.lower() in (*_ARTICLES, "the") else 0
    return start, len(surface) - (2 if form == "'s" else 0)


def _read_slot(analysis: Analysis, word: Word, form: str, surface: str, place: int, language: str) -> None:
    spans = [(place + match.start(), place + match.end()) for match in _TOKEN[language].finditer(surface)]
    if _is_pronoun(word, form, language):
        analysis.add(*spans[0], "PRON")
        return
    if language == "en" and form in ("are", "were"):
        analysis.add(*spans[0], "AUX")
        return
    in_entity = False
    for number, (start, end) in enumerate(spans):
        token = analysis.text[start:end].lower()
        last = number == len(spans) - 1 or analysis.text[spans[number + 1][0] :].startswith("'s")
        if token == "'s":
            analysis.add(start, end, "PART")
            continue
        if language == "en" and number == 0 and len(spans) > 1 and form in ("a", "one") and token in _ARTICLES:
            analysis.add(start, end, "DET")
            continue
        if last:
            tag = word.tag
            if language == "ko" and form in _COPULA and tag == "NOUN":
                tag = "VERB"
        else:
            tag = _MODIFIERS.get(token, "PROPN" if word.tag == "PROPN" else "NOUN")
        ner = "O"
        if word.ner and tag != "DET":
            ner = ("I-" if in_entity else "B-") + word.ner
            in_entity = True
        analysis.add(start, end, tag, ner)


def _resolve_ambiguous_tags(analysis: Analysis, language: str) -> None:
    """Tag the words whose tag depends on their neighbours: to, have and do; 있다 after a verb."""
    tags = analysis.upos
    for place, token in enumerate(analysis.tokens):
        after = place + 1
        while after < len(tags) and tags[after] in ("ADV", "PART") and analysis.tokens[after] != "to":
            after += 1
        next_tag = tags[after] if after < len(tags) else ""
        if language == "en":
            lower = token.lower()
            if lower == "to":
                tags[place] = "PART" if place + 1 < len(tags) and tags[place + 1] in ("VERB", "AUX") else "ADP"
            elif lower in ("have", "has", "had"):
                tags[place] = "AUX" if next_tag == "VERB" else "VERB"
            elif lower in ("do", "does", "did"):
                negated = place + 1 < len(tags) and analysis.tokens[place + 1] == "not"
                tags[place] = "AUX" if negated or "?" in analysis.tokens[place:] else "VERB"
        elif token.startswith("있") and place and tags[place - 1] in ("VERB", "ADJ"):
            tags[place] = "AUX"

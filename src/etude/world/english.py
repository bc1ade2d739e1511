"""English word forms: plural, third person, past, -ing, and a or an. Only what the lexicon needs is an exception."""

from __future__ import annotations


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.split(":") for pair in text.split())


_PLURALS = _pairs(
    """mouse:mice goose:geese child:children foot:feet sheep:sheep fish:fish deer:deer ox:oxen trout:trout
    salmon:salmon knife:knives leaf:leaves wolf:wolves shelf:shelves scarf:scarves calf:calves thief:thieves
    potato:potatoes tomato:tomatoes squid:squid moose:moose larva:larvae cod:cod policeman:policemen tooth:teeth"""
)
_PASTS = _pairs(
    """build:built teach:taught grow:grew catch:caught grind:ground weave:wove lend:lent cut:cut lay:laid blow:blew
    drive:drove sell:sold take:took make:made give:gave buy:bought"""
)
_DOUBLED = {"trim", "cut", "stop", "plan"}  # trimmed, cutting
_THIRDS = {"have": "has", "do": "does", "go": "goes"}
_SILENT_H = ("hour", "honest", "heir")
_LIKE_CONSONANTS = ("uni", "use", "eu", "one", "ukulele")  # a uniform: the vowel sounds like y or w


def plural(noun: str) -> str:
    head, space, last = noun.rpartition(" ")
    return head + space + (_PLURALS.get(last) or _add_s(last))


def third(verb: str) -> str:
    return _THIRDS.get(verb) or _add_s(verb)


def past(verb: str) -> str:
    if verb in _PASTS:
        return _PASTS[verb]
    if verb.endswith("e"):
        return verb + "d"
    if verb in _DOUBLED:
        return verb + verb[-1] + "ed"
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return verb[:-1] + "ied"
    return verb + "ed"


def ing(verb: str) -> str:
    if verb in _DOUBLED:
        return verb + verb[-1] + "ing"
    if verb.endswith("e") and not verb.endswith("ee"):
        return verb[:-1] + "ing"
    return verb + "ing"


def article(word: str) -> str:
    """a or an, by the first sound."""
    lower = word.lower()
    if lower.startswith(_SILENT_H):
        return "an"
    return "an" if lower[0] in "aeiou" and not lower.startswith(_LIKE_CONSONANTS) else "a"


def _add_s(word: str) -> str:
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"

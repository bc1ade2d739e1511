"""English word forms: plural, third person, past, -ing, and a or an."""

from __future__ import annotations

_PLURALS = {
    "mouse": "mice", "goose": "geese", "child": "children", "man": "men", "woman": "women", "tooth": "teeth",
    "foot": "feet", "sheep": "sheep", "fish": "fish", "deer": "deer", "ox": "oxen", "trout": "trout", "salmon": "salmon",
    "knife": "knives", "loaf": "loaves", "leaf": "leaves", "wolf": "wolves", "shelf": "shelves", "scarf": "scarves",
    "calf": "calves", "thief": "thieves", "wife": "wives", "half": "halves", "potato": "potatoes", "tomato": "tomatoes",
    "hero": "heroes", "bookshelf": "bookshelves", "squid": "squid", "moose": "moose",
}  # fmt: skip
_PASTS = {
    "be": "was", "have": "had", "do": "did", "go": "went", "buy": "bought", "sell": "sold", "make": "made", "take": "took",
    "give": "gave", "get": "got", "see": "saw", "eat": "ate", "drink": "drank", "build": "built", "bring": "brought",
    "catch": "caught", "teach": "taught", "grow": "grew", "sew": "sewed", "cut": "cut", "lay": "laid", "lend": "lent",
    "blow": "blew", "drive": "drove", "write": "wrote", "grind": "ground", "weave": "wove", "find": "found",
    "lose": "lost", "hold": "held", "keep": "kept", "sing": "sang", "swim": "swam", "run": "ran", "fly": "flew",
    "sleep": "slept", "feed": "fed", "read": "read", "sit": "sat", "stand": "stood", "hear": "heard", "tell": "told",
    "say": "said", "think": "thought", "know": "knew", "come": "came", "leave": "left", "meet": "met", "win": "won",
    "draw": "drew", "wear": "wore", "throw": "threw", "ride": "rode", "shake": "shook", "steal": "stole", "dig": "dug",
    "creep": "crept", "spin": "spun", "hide": "hid", "bite": "bit",
}  # fmt: skip
_DOUBLED = {"chop", "trim", "plan", "stop", "drop", "hug", "pat", "knit", "cut", "run", "swim", "sit", "dig", "win", "get", "hum", "nap", "jog", "chat", "grab", "pet", "hop", "beg", "spin"}  # fmt: skip
_AN = ("hour", "honest", "heir")  # a silent h
_A = ("uni", "use", "eu", "one", "ukulele")  # a vowel that sounds like a consonant


def plural(noun: str) -> str:
    head, space, last = noun.rpartition(" ")
    if last in _PLURALS:
        return head + space + _PLURALS[last]
    return head + space + _add_s(last)


def third(verb: str) -> str:
    if verb in ("have", "do", "go", "be"):
        return {"have": "has", "do": "does", "go": "goes", "be": "is"}[verb]
    first, space, rest = verb.partition(" ")
    return _add_s(first) + space + rest


def past(verb: str) -> str:
    first, space, rest = verb.partition(" ")
    return _past(first) + space + rest


def _past(verb: str) -> str:
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
    first, space, rest = verb.partition(" ")
    if first in _DOUBLED:
        first += first[-1]
    elif first.endswith("ie"):
        first = first[:-2] + "y"
    elif first.endswith("e") and not first.endswith("ee") and first != "be":
        first = first[:-1]
    return first + "ing" + space + rest


def article(word: str) -> str:
    """a or an, by the first sound."""
    lower = word.lower()
    if lower.startswith(_AN):
        return "an"
    return "an" if lower[0] in "aeiou" and not lower.startswith(_A) else "a"


def _add_s(word: str) -> str:
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"

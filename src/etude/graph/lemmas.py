"""Lemmas of words by rule, with irregular forms: enough to match the words of a text with the names of concepts.

A lexicon (the words of all concepts) decides between the stems that the rules of English spelling allow: `making` is
`make` because `mak` is no word of a concept. A word may have several lemmas (`saw`: see, saw), the likeliest first.
Korean words lose a particle behind a word of the lexicon (고양이가 -> 고양이).
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache, cached_property

VOWELS = frozenset("aeiouy")
# lemma:form or several forms
IRREGULAR_FORMS = """
    be:am,is,are,was,were,been,being have:has,had,having do:does,did,done,doing go:goes,went,gone,going
    say:said make:made get:got,gotten see:saw,seen come:came take:took,taken know:knew,known give:gave,given
    find:found think:thought tell:told become:became leave:left feel:felt bring:brought begin:began,begun keep:kept
    hold:held write:wrote,written stand:stood hear:heard mean:meant meet:met run:ran pay:paid sit:sat speak:spoke,spoken
    lie:lay,lain,lying die:dying,dies,died tie:tying,tied,ties lead:led grow:grew,grown lose:lost fall:fell,fallen
    send:sent build:built understand:understood draw:drew,drawn break:broke,broken spend:spent rise:rose,risen
    drive:drove,driven buy:bought wear:wore,worn choose:chose,chosen eat:ate,eaten drink:drank,drunk sing:sang,sung
    swim:swam,swum fly:flew,flown,flies throw:threw,thrown catch:caught teach:taught fight:fought sell:sold
    sleep:slept win:won wake:woke,woken ride:rode,ridden hide:hid,hidden steal:stole,stolen freeze:froze,frozen
    shake:shook,shaken forget:forgot,forgotten forgive:forgave,forgiven bite:bit,bitten blow:blew,blown tear:tore,torn
    swear:swore,sworn bear:bore,born,borne feed:fed bleed:bled breed:bred dig:dug hang:hung stick:stuck strike:struck
    swing:swung ring:rang,rung sink:sank,sunk shrink:shrank,shrunk spring:sprang,sprung stink:stank,stunk shoot:shot
    shine:shone light:lit slide:slid bend:bent lend:lent burn:burnt learn:learnt dream:dreamt smell:smelt spell:spelt
    deal:dealt kneel:knelt leap:leapt sweep:swept weep:wept creep:crept spit:spat seek:sought bind:bound grind:ground
    wind:wound weave:wove,woven speed:sped flee:fled lay:laid arise:arose,arisen awake:awoke withdraw:withdrew,withdrawn
    child:children man:men woman:women person:people foot:feet tooth:teeth goose:geese mouse:mice louse:lice ox:oxen
    knife:knives life:lives wife:wives leaf:leaves loaf:loaves half:halves calf:calves shelf:shelves wolf:wolves
    thief:thieves self:selves scarf:scarves hoof:hooves elf:elves bus:buses,busses gas:gases,gasses quiz:quizzes
    analysis:analyses crisis:crises basis:bases axis:axes thesis:theses cactus:cacti fungus:fungi medium:media
    phenomenon:phenomena criterion:criteria datum:data good:better,best bad:worse,worst far:farther,further
    clothe:clothes,clothed
"""
# irregular forms that are words of their own too
OWN_WORDS = """
    saw left found felt lay rose lead light ground wound bore spring ring wind bit people lives leaves clothes better
    best bases axes media data thought building meaning being lit fell shot bound worn born lost broken drunk
"""
# words that only look like forms
UNCHANGED_WORDS = """
    news physics mathematics series species means always perhaps gas bus lens christmas pants glasses scissors
    something anything nothing everything thing king ring wing spring string sing bring swing ceiling evening morning
    during red bed need feed seed speed weed hundred sacred bleed breed shed sled
"""
KOREAN_PARTICLES = """
    에서는 으로는 에게서 으로써 이라는 에서 에게 한테 께서 으로 부터 까지 처럼 보다 마다 조차 이나 이랑 하고 라는
    은 는 이 가 을 를 에 의 도 만 와 과 로 나 랑 께 요 란
"""
OWN = frozenset(OWN_WORDS.split())
UNCHANGED = frozenset(UNCHANGED_WORDS.split())
PARTICLES = KOREAN_PARTICLES.split()


class Lemmatizer:
    """Lemmas over a lexicon; each word is analysed once."""

    def __init__(self, lexicon: Collection[str] = ()) -> None:
        self.lexicon = frozenset(lexicon)
        self._known: dict[str, tuple[str, ...]] = {}

    def lemmas(self, word: str) -> tuple[str, ...]:
        """All lemmas of a word in lower case, the likeliest first; the word itself is always among them."""
        lemmas = self._known.get(word)
        if lemmas is None:
            lemmas = self._known[word] = tuple(dict.fromkeys([*self._analyse(word), word]))
        return lemmas

    def lemma(self, word: str) -> str:
        """The likeliest lemma of a word."""
        return self.lemmas(word)[0]

    def _analyse(self, word: str) -> list[str]:
        irregular = self._irregular.get(word)
        if irregular is not None:
            return [word, irregular] if word in OWN and word in self.lexicon else [irregular]
        if word and "가" <= word[-1] <= "힣":  # of any length: nouns of one syllable are common (책을 -> 책)
            return [
                word[: -len(particle)]
                for particle in PARTICLES
                if word.endswith(particle) and word[: -len(particle)] in self.lexicon and word not in self.lexicon
            ]
        if word in UNCHANGED or len(word) < 3:
            return [word]
        stems = english_stems(word)
        known = [stem for stem in stems if stem in self.lexicon]
        return known or stems[:1]

    @cached_property
    def _irregular(self) -> dict[str, str]:
        entries = (entry.split(":") for entry in IRREGULAR_FORMS.split())
        return {form: lemma for lemma, forms in entries for form in forms.split(",")}


def english_stems(word: str) -> list[str]:
    """What a regular plural, -s, -ed or -ing may come from, the likeliest first; [] where the ending is none."""
    if word.endswith("ies") and len(word) > 4:
        return [word[:-3] + "y", word[:-1]]
    if word.endswith("ied") and len(word) > 4:
        return [word[:-3] + "y", word[:-1]]
    if word.endswith(("sses", "shes", "ches", "xes", "zes", "oes")):
        return [word[:-2], word[:-1]]
    if word.endswith("s") and not word.endswith(("ss", "us", "is")) and len(word) > 3:
        return [word[:-1]]
    if word.endswith("ing"):
        return _verb_stems(word[:-3])
    if word.endswith("ed"):
        return _verb_stems(word[:-2])
    return []


def pluralize(phrase: str) -> str | None:
    """The plural of a phrase in lower case by its last word; None where that does not end with a letter."""
    start = phrase.rfind(" ") + 1
    word = phrase[start:]
    plural = _irregular_plurals().get(word)
    if plural is None and (not word.isalpha() or word in UNCHANGED):
        return None
    return phrase[:start] + (plural or _add_s(word))


def _add_s(word: str) -> str:
    if word.endswith("y") and word[-2:-1] not in VOWELS:
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "sh", "ch", "x", "z")) else "s")


@cache
def _irregular_plurals() -> dict[str, str]:
    """Of the nouns among the irregular forms: those behind child, up to datum."""
    entries = [entry.split(":") for entry in IRREGULAR_FORMS.split()]
    nouns = entries[entries.index(["child", "children"]) :]
    return {lemma: forms.split(",")[0] for lemma, forms in nouns if lemma not in ("good", "bad", "far", "clothe")}


def _verb_stems(stem: str) -> list[str]:
    """What stands before -ed or -ing: as it is, with an e, or with its last consonant once."""
    if len(stem) < 2 or not VOWELS & set(stem):
        return []
    if len(stem) > 2 and stem[-1] == stem[-2] and stem[-1] not in VOWELS:
        return [stem, stem[:-1]] if stem[-1] in "lsz" else [stem[:-1], stem]
    # a short stem that ends with one consonant behind one vowel lost an e (mak-ing); longer ones mostly did not
    lost = len(stem) <= 4 and stem[-1] not in VOWELS | set("wx") and stem[-2] in VOWELS and stem[-3:-2] not in VOWELS
    if lost or stem[-1] in "vu" or stem.endswith(("dg", "nc", "rs", "ang", "eng", "ung")):
        return [stem + "e", stem]
    return [stem, stem + "e"]

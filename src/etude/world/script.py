"""Scripts: what happens in a document, in order.

A script names its cast and its steps; a step has one or more frames (ways to say it), each an English and a
Korean pattern of the same content. Performing a script draws the cast and the frames, decides how each person
is spoken of, and gives sentences without language: the same performance is written in English or in Korean.
A pronoun is used only when the sentence before makes it plain who is meant.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, cached_property

from etude.world.draw import Draw
from etude.world.facts import Missing, Town
from etude.world.lexicon.nouns import NOUNS
from etude.world.lexicon.qualities import MOODS, QUALITIES
from etude.world.pattern import FULL, NAME, PRONOUN, Pattern
from etude.world.words import Word

_PEOPLE = ("a", "b", "c")  # slots that people play; all other slots are things
_PRONOUN = 0.75  # of the places where a pronoun would be plain; the rest repeat the name
_CASTS = 200  # to find people who have what a script asks for; half the town has a pet, so a few suffice
_TRIES = 40  # to draw a word not yet in the cast; lists are longer than casts, so this is never reached in practice


def fact_slots(patterns: dict[str, Pattern]) -> tuple[str, ...]:
    """The facts that patterns speak of: a.home, a.pet.kind."""
    return tuple(dict.fromkeys(slot for pattern in patterns.values() for slot in pattern.slots if "." in slot))


@dataclass(frozen=True)
class Question:
    """Asks for the word in `slot` of the sentence it belongs to."""

    slot: str
    patterns: dict[str, Pattern]

    @property
    def facts(self) -> tuple[str, ...]:
        return fact_slots(self.patterns)


class Frame:
    """One way to say something, in both languages."""

    def __init__(self, english: str, korean: str, *questions: tuple[str, str, str]) -> None:
        self.patterns = {"en": Pattern(english, "en"), "ko": Pattern(korean, "ko")}
        self.questions = tuple(
            Question(slot, {"en": Pattern(en, "en"), "ko": Pattern(ko, "ko")}) for slot, en, ko in questions
        )
        self.facts = fact_slots(self.patterns)
        sources = [pattern.source for pattern in self.patterns.values()]
        slots = {slot for pattern in self.patterns.values() for slot in pattern.slots}
        self.people = tuple(slot for slot in _PEOPLE if slot in slots)
        self.free = tuple(slot for slot in _PEOPLE if any("{@" + slot in source for source in sources))

    def __repr__(self) -> str:
        return f"Frame({self.patterns['en'].source!r})"


@dataclass(frozen=True)
class Step:
    frames: tuple[Frame, ...]
    chance: float = 1.0


@dataclass(frozen=True)
class Script:
    name: str
    topic: str  # "" where a document has none
    cast: str  # "a=person b=other f=dish": slot = source, drawn in this order
    steps: tuple[Step, ...]
    weight: float = 1.0
    intro: bool = True  # whether a sentence that introduces person a may come first
    sense: str = ""  # "bank.river": the script is about this sense of a homonym
    language: str = ""  # in which the homonym is one

    @cached_property
    def sources(self) -> list[tuple[str, str]]:
        return [(slot, source) for slot, source in (entry.split("=") for entry in self.cast.split())]


@dataclass(slots=True)
class Sentence:
    """A frame with its words, in no language yet."""

    frame: Frame
    cast: dict[str, Word]
    modes: dict[str, int]

    def write(self, language: str) -> str:
        return self.frame.patterns[language].write(self.cast, self.modes)


def resolve(cast: dict[str, Word], path: str) -> Word | None:
    """The word at the end of a path of facts: "a.friend.home"."""
    first, *rest = path.split(".")
    word: Word | None = cast.get(first)
    for relation in rest:
        if word is None:
            return None
        word = word.links.get(relation)
    return word


def draw_word(draw: Draw, town: Town, source: str, cast: dict[str, Word], mood: int) -> Word:
    """One word for a slot. Sources: a category; "person"; "other" (of the other sex than a); "food*" praise or
    blame as the document's mood has it, "food!" the contrary, "food+" and "food-" always so; "a.friend" a fact;
    "r<home" somebody whose home is r; "bank/강둑" that very word."""
    if "." in source and "<" not in source:
        word = resolve(cast, source)
        if word is None or word in cast.values():
            raise Missing(f"{cast} has no {source}")
        return word
    if "/" in source:
        return _literal(source)
    if "<" in source:
        return draw.common(town.whose(*_inverse(cast, source)))
    pool = _pool(town, source, cast, mood)
    pick = draw.pick if source[-1] in "*!+-" else draw.common  # praise and blame are used evenly
    for _ in range(_TRIES):
        drawn = pick(pool)
        if all(drawn is not other and drawn.korean != other.korean for other in cast.values()):
            break
    return drawn


@cache
def _literal(source: str) -> Word:
    english, _, korean = source.partition("/")
    return Word(english, korean.replace("_", " "), "homonym", key=source)


def _inverse(cast: dict[str, Word], source: str) -> tuple[str, Word]:
    slot, _, path = source.partition("<")
    return path, cast[slot]


def _pool(town: Town, source: str, cast: dict[str, Word], mood: int) -> list[Word]:
    if source == "person":
        return town.people
    if source == "other":
        return town.men if cast["a"].sex == "f" else town.women
    if source in ("street", "village", "firm", "trade"):
        words: list[Word] = getattr(town, source + "s")
        return words
    if source[-1] in "*!+-":
        sign = {"*": mood, "!": -mood, "+": 1, "-": -1}[source[-1]]
        return MOODS[source[:-1]][0 if sign > 0 else 1]
    if source in QUALITIES:
        return QUALITIES[source]
    return NOUNS[source.replace("_", " ")]


@dataclass
class Performance:
    """A script with its cast drawn, and the sentences it gave."""

    script: Script
    cast: dict[str, Word]
    mood: int
    sentences: list[Sentence] = field(default_factory=list)


def perform(script: Script, town: Town, draw: Draw, intros: tuple[Frame, ...]) -> Performance:
    mood = 1 if draw.chance(0.5) else -1
    cast = _cast(script, town, draw, mood)
    show = Performance(script, cast, mood)
    seen: set[str] = set()
    subject = ""  # who the sentence before was about,
    around: tuple[str, ...] = ()  # and all who were in it
    if script.intro and intros and draw.chance(0.5):
        steps: tuple[Step, ...] = (Step(intros), *script.steps)
    else:
        steps = script.steps
    for each in steps:
        if each.chance < 1.0 and not draw.chance(each.chance):
            continue
        frames = each.frames
        if script.sense and seen:  # a short text: only those already in it are spoken of again
            frames = tuple(frame for frame in frames if seen.issuperset(frame.people))
        frame = _frame(frames, cast, draw) if frames else None
        if frame is None:
            continue
        modes = {}
        for slot in frame.free:
            if slot not in seen:
                modes[slot] = FULL if draw.chance(0.5) else NAME
            elif slot == subject and _plain(cast, slot, around) and draw.chance(_PRONOUN):
                modes[slot] = PRONOUN
            else:
                modes[slot] = NAME
        show.sentences.append(Sentence(frame, cast, modes))
        seen.update(frame.people)
        subject = frame.free[0] if frame.free else ""
        around = frame.people
    return show


def _plain(cast: dict[str, Word], slot: str, around: tuple[str, ...]) -> bool:
    """Whether he or she can only be the one in `slot`: nobody else of the same sex was in the sentence before."""
    return all(other == slot or cast[other].sex != cast[slot].sex for other in around)


def _cast(script: Script, town: Town, draw: Draw, mood: int) -> dict[str, Word]:
    for _ in range(_CASTS):
        cast: dict[str, Word] = {}
        try:
            for slot, source in script.sources:
                cast[slot] = draw_word(draw, town, source, cast, mood)
        except Missing:
            continue  # this person has no pet, no sister: draw another
        return cast
    raise Missing(f"in this town nobody can play '{script.name}'")


def _frame(frames: tuple[Frame, ...], cast: dict[str, Word], draw: Draw) -> Frame | None:
    """One of the frames whose facts this cast has; its facts join the cast."""
    if len(frames) == 1 and not frames[0].facts:
        return frames[0]
    start = draw.below(len(frames))
    for shift in range(len(frames)):
        frame = frames[(start + shift) % len(frames)]
        for path in frame.facts:
            if path not in cast:
                word = resolve(cast, path)
                if word is None:
                    break
                cast[path] = word
        else:
            return frame
    return None

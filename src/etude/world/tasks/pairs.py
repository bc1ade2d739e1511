"""Sentence pairs: entailment, contradiction or neutral; paraphrase or not.

The hypothesis is drawn first and is of the same kind whatever the label; only the premise changes: it
tells the same event, the same but for the one word (or the one direction) that decides, or another event. So neither
sentence alone says anything about the label, and many of the same words stand in both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from etude.chance import fold
from etude.world.draw import Draw
from etude.world.facts import Town
from etude.world.script import Frame, Question, Script, Sentence, draw_word, resolve
from etude.world.tasks.events import EVENTS
from etude.world.tasks.sampling import Candidate, balanced
from etude.world.words import Word

LABELS = ("entailment", "neutral", "contradiction")


def entailment(town: Town, language: str, split: str) -> Iterator[dict[str, Any]]:
    def make(draw: Draw, label: str) -> Candidate:
        event = draw.pick(EVENTS)
        cast = draw_cast(event, town, draw, {})
        question = draw.pick(event.steps[0].frames[0].questions)
        hypothesis = question.patterns[language].write(_filled(cast, *_frames(event), question), {})
        if label == "entailment":
            premise_event, words = event, cast
        elif label == "contradiction":
            premise_event, words = event, changed(event, question.slot, cast, town, draw)
        else:
            premise_event = draw.pick(EVENTS)
            if premise_event.topic == event.topic:
                return None
            words = draw_cast(premise_event, town, draw, {source: cast[slot] for slot, source in event.sources})
        premise = _write_premise(premise_event, words, draw, language)
        # what is held out is who the pair is about and what is claimed: the same claim never meets two splits
        return hypothesis, {"text_a": premise, "text_b": hypothesis, "label": label}

    return balanced(LABELS, make, fold(town.seed, "entailment", language), split)


def paraphrase(town: Town, language: str, split: str) -> Iterator[dict[str, Any]]:
    def make(draw: Draw, label: int) -> Candidate:
        event = draw.pick(EVENTS)
        cast = draw_cast(event, town, draw, {})
        first, second = draw.shuffled(_frames(event))
        text = Sentence(first, _filled(cast, first), {}).write(language)
        second_cast = cast if label else changed(event, _within(event, draw), cast, town, draw)
        return text, {
            "text_a": text,
            "text_b": Sentence(second, _filled(second_cast, second), {}).write(language),
            "label": label,
        }

    return balanced((1, 0), make, fold(town.seed, "paraphrase", language), split)


def draw_cast(event: Script, town: Town, draw: Draw, given: dict[str, Word]) -> dict[str, Word]:
    """The words of an event. Those given by source are taken over, so that two events can be about the same
    people and things."""
    cast: dict[str, Word] = {}
    for slot, source in event.sources:
        cast[slot] = given[source] if source in given else draw_word(draw, town, source, cast, 1)
    return cast


def changed(event: Script, how: str, cast: dict[str, Word], town: Town, draw: Draw) -> dict[str, Word]:
    """The cast with the one thing altered that decides a hypothesis."""
    words = {slot: word for slot, word in cast.items() if "." not in slot}
    if how == "ab":
        return words | {"a": words["b"], "b": words["a"]}
    slot, _, source = how.partition(">")
    return words | {slot: draw_word(draw, town, source or dict(event.sources)[slot], cast, 1)}


def _within(event: Script, draw: Draw) -> str:
    """Something to alter that keeps to its kind: another instrument for an instrument. Praise turns to blame,
    since one praise for another would still be a paraphrase."""
    slot = draw.pick(_frames(event)[0].questions).slot.partition(">")[0]
    source = "" if slot == "ab" else dict(event.sources)[slot]
    flip = {"+": "-", "-": "+"}.get(source[-1:], "")
    return f"{slot}>{source[:-1]}{flip}" if flip else slot


def _frames(event: Script) -> tuple[Frame, ...]:
    return event.steps[0].frames


def _write_premise(event: Script, cast: dict[str, Word], draw: Draw, language: str) -> str:
    frame = draw.pick(_frames(event))
    return Sentence(frame, _filled(cast, frame), {}).write(language)


def _filled(cast: dict[str, Word], *needs: Frame | Question) -> dict[str, Word]:
    """The cast with the facts (t.tool) that these patterns ask for."""
    words = dict(cast)
    for need in needs:
        for path in need.facts:
            word = resolve(cast, path)
            if word is None:
                raise LookupError(f"{path} is not known")
            words[path] = word
    return words

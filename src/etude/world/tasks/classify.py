"""One text, one label: topic (two sentences of a story), sentiment (an opinion), sense (a homonym in a sentence)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from etude.chance import fold
from etude.world.draw import Draw
from etude.world.facts import Town
from etude.world.script import perform
from etude.world.stories import REVIEWS, STORIES, TOPICS, homonyms
from etude.world.tasks.sampling import Candidate, balanced

_LENGTH = 2  # sentences of a topic example: few enough that a handful of labels cannot cover the words
_COMPANY = 0.7  # of the sense examples are in the frames all senses share
_BY_TOPIC = {topic: tuple(script for script in STORIES if script.topic == topic) for topic in TOPICS}
MOODS = {"positive": 1, "negative": -1}


def topic(town: Town, language: str, split: str) -> Iterator[dict[str, Any]]:
    def make(draw: Draw, label: str) -> Candidate:
        show = perform(draw.pick(_BY_TOPIC[label]), town, draw, ())
        start = draw.below(len(show.sentences) - _LENGTH + 1)
        text = " ".join(sentence.write(language) for sentence in show.sentences[start : start + _LENGTH])
        return text, {"text": text, "label": label}

    return balanced(TOPICS, make, fold(town.seed, "topic", language), split)


def sentiment(town: Town, language: str, split: str) -> Iterator[dict[str, Any]]:
    def make(draw: Draw, label: str) -> Candidate:
        show = perform(draw.pick(REVIEWS), town, draw, ())
        if show.mood != MOODS[label]:
            return None
        text = " ".join(sentence.write(language) for sentence in show.sentences)
        return text, {"text": text, "label": label}

    return balanced(tuple(MOODS), make, fold(town.seed, "sentiment", language), split)


def sense(town: Town, language: str, split: str) -> Iterator[dict[str, Any]]:
    stories = {script.sense: script for script in homonyms.TOLD if script.language == language}
    company = {script.sense: script for script in homonyms.COMPANY if script.language == language}

    def make(draw: Draw, label: str) -> Candidate:
        scripts = company if draw.chance(_COMPANY) else stories
        text = perform(scripts[label], town, draw, ()).sentences[0].write(language)
        word = label.partition(".")[0]
        start = place_of(word, text, language)
        return None if start is None else (text, {"text": text, "word": word, "start": start, "label": label})

    return balanced(tuple(stories), make, fold(town.seed, "sense", language), split)


_ENDINGS = {
    "en": r"(?:es|s)?\b",
    "ko": r"(?:이|가|은|는|을|를|와|과|의|도|에|에는|에게|에서|로|으로)?(?=[\s.,])",
}


def place_of(word: str, text: str, language: str) -> int | None:
    """Where the homonym stands: an English word or its plural, a Korean one with or without a particle. None
    where chance has put it there twice (벌이 벌 쪽으로)."""
    places = [match.start() for match in re.finditer(rf"\b{word}{_ENDINGS[language]}", text, re.IGNORECASE)]
    return places[0] if len(places) == 1 else None

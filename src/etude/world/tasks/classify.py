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
from etude.world.tasks.sampling import Made, balanced

_LENGTH = 2  # sentences of a topic example: few enough that a handful of labels cannot cover the words
_COMPANY = 0.7  # of the sense examples are in the frames all senses share
_BY_TOPIC = {topic: tuple(script for script in STORIES if script.topic == topic) for topic in TOPICS}
MOODS = {"positive": 1, "negative": -1}


def topic(town: Town, language: str, split: str) -> Iterator[dict[str, Any]]:
    def make(draw: Draw, label: str) -> Made:
        show = perform(draw.pick(_BY_TOPIC[label]), town, draw, ())
        start = draw.below(len(show.sentences) - _LENGTH + 1)
        text = " ".join(sentence.write(language) for sentence in show.sentences[start : start + _LENGTH])
        return text, {"text": text, "label": label}

    return balanced(TOPICS, make, fold(town.seed, "topic", language), split)


def sentiment(town: Town, language: str, split: str) -> Iterator[dict[str, Any]]:
    def make(draw: Draw, label: str) -> Made:
        show = perform(draw.pick(REVIEWS), town, draw, ())
        if show.mood != MOODS[label]:
            return None
        text = " ".join(sentence.write(language) for sentence in show.sentences)
        return text, {"text": text, "label": label}

    return balanced(tuple(MOODS), make, fold(town.seed, "sentiment", language), split)


def sense(town: Town, language: str, split: str) -> Iterator[dict[str, Any]]:
    told = {script.sense: script for script in homonyms.TOLD if script.language == language}
    company = {script.sense: script for script in homonyms.COMPANY if script.language == language}

    def make(draw: Draw, label: str) -> Made:
        scripts = company if draw.chance(_COMPANY) else told
        text = perform(scripts[label], town, draw, ()).sentences[0].write(language)
        word = label.partition(".")[0]
        found = place_of(word, text, language)
        return text, {"text": text, "word": word, "start": found, "label": label}

    return balanced(tuple(told), make, fold(town.seed, "sense", language), split)


def place_of(word: str, text: str, language: str) -> int:
    """Where the homonym stands: a whole English word (or its plural), or the head of a Korean one."""
    ending = r"(?:es|s)?\b" if language == "en" else ""
    found = re.search(rf"\b{word}{ending}", text, re.IGNORECASE)
    if found is None:
        raise LookupError(f"'{word}' is not in: {text}")
    return found.start()

"""Topic (two sentences of a story) and sentiment (an opinion, or the end of a story with one)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from etude.chance import fold
from etude.world.draw import Draw
from etude.world.facts import Town
from etude.world.script import Performance, perform
from etude.world.stories import REVIEWS, STORIES, TOPICS
from etude.world.tasks.sampling import balanced

_LENGTH = 2  # sentences of a topic example: few enough that a handful of labels cannot cover the words
_BY_TOPIC = {topic: tuple(script for script in STORIES if script.topic == topic) for topic in TOPICS}
MOODS = {"positive": 1, "negative": -1}


def topic(town: Town, language: str, split: str) -> Iterator[dict[str, Any]]:
    def make(draw: Draw, label: str) -> tuple[str, dict[str, Any]]:
        show = perform(draw.pick(_BY_TOPIC[label]), town, draw, ())
        start = draw.below(len(show.sentences) - _LENGTH + 1)
        text = " ".join(sentence.write(language) for sentence in show.sentences[start : start + _LENGTH])
        return text, {"text": text, "label": label}

    return balanced(TOPICS, make, fold(town.seed, "topic", language), split)


def sentiment(town: Town, language: str, split: str) -> Iterator[dict[str, Any]]:
    def make(draw: Draw, label: str) -> tuple[str, dict[str, Any]] | None:
        show: Performance = perform(draw.pick(REVIEWS), town, draw, ())
        if show.mood != MOODS[label]:
            return None
        text = " ".join(sentence.write(language) for sentence in show.sentences)
        return text, {"text": text, "label": label}

    return balanced(tuple(MOODS), make, fold(town.seed, "sentiment", language), split)

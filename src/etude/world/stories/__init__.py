"""All scripts. A topic is one file, and its name is the label."""

from __future__ import annotations

from etude.world.script import Script
from etude.world.stories import animals, food, market, people, reviews

STORIES: tuple[Script, ...] = (*food.SCRIPTS, *market.SCRIPTS, *animals.SCRIPTS)
SCRIPTS: tuple[Script, ...] = (*STORIES, *people.SCRIPTS, *reviews.SCRIPTS)
REVIEWS = reviews.SCRIPTS
INTROS = people.INTROS
TOPICS: tuple[str, ...] = tuple(dict.fromkeys(script.topic for script in STORIES))

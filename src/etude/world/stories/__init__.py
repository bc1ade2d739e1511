"""All scripts. A topic is one file, and its name is the label."""

from __future__ import annotations

from etude.world.script import Script
from etude.world.stories import (
    animals,
    family,
    food,
    garden,
    homonyms,
    lore,
    market,
    music,
    people,
    reviews,
    travel,
    work,
)

STORIES: tuple[Script, ...] = tuple(
    script for topic in (food, work, animals, family, market, travel, music, garden) for script in topic.SCRIPTS
)
REVIEWS = reviews.SCRIPTS
LORE = lore.SCRIPTS
PORTRAITS = people.SCRIPTS
SCRIPTS: tuple[Script, ...] = (*STORIES, *PORTRAITS, *LORE, *REVIEWS, *homonyms.SCRIPTS)
FACTS = people.FACTS
INTROS = people.INTROS
TOPICS: tuple[str, ...] = tuple(dict.fromkeys(script.topic for script in STORIES))

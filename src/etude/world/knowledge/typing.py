"""Entity typing where the text does not tell the type: only who knows the entity's place in the graph can know it.

Entities are split by hash, so test mentions are of entities that no training example has: a model of text alone is left
with the frequency of types there. The split "seen" has other sentences with the entities of training. The columns
`entities`, `entities_10` and `entities_30` hold the links, with 0, 10 and 30 % of them wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from etude.chance import fold
from etude.errors import UserError, suggest_name
from etude.world.draw import Draw
from etude.world.facts import Town
from etude.world.knowledge.district import District
from etude.world.knowledge.sentences import SINGLE, Link, disturb, draw_cast, write_linked
from etude.world.tasks.sampling import Candidate, balanced

SPLITS = ("train", "valid", "test", "seen")
NOISES = (0, 10, 30)  # percent of wrong links
_SEEN_SHARE = 4  # one sentence in so many is kept for the split "seen"


def make_typing(town: Town, district: District, language: str, split: str) -> Iterator[dict[str, Any]]:
    """Yield examples with the fine types in turn."""
    if split not in SPLITS:
        raise UserError(f"Entity typing has no split '{split}'.{suggest_name(split, SPLITS)}")
    is_seen = split == "seen"

    def make(draw: Draw, fine: str) -> Candidate:
        subject = draw.pick(district.members[fine])
        pattern = draw.pick(SINGLE)[language]
        text, links = write_linked(pattern, draw_cast(draw, pattern, town, district, subject))
        if (fold("seen", text) % _SEEN_SHARE == 0) != is_seen:
            return None
        mention = links["a"]
        ordered = sorted(links.values(), key=lambda link: link.start)
        key = fold(town.seed, language, text)
        example: dict[str, Any] = {
            "id": f"{key:016x}", "text": text, "start": mention.start, "end": mention.end,
            "labels": district.types_of(subject),
        }  # fmt: skip
        for noise in NOISES:
            column = "entities" if not noise else f"entities_{noise}"
            example[column] = format_links(disturb(ordered, district, noise / 100, key))
        return subject.key, example

    key = fold(town.seed, "typing", language, "seen" if is_seen else "")
    return balanced(tuple(district.coarse), make, key, "train" if is_seen else split)


def format_links(links: list[Link]) -> list[dict[str, Any]]:
    """Return links as records."""
    return [{"entity": link.entity, "start": link.start, "end": link.end} for link in links]

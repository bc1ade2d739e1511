"""Labelled examples read off the same world: one file a family of tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from etude.errors import UserError, nearest
from etude.world.facts import Town
from etude.world.tasks import classify

SPLITS = ("train", "valid", "test")
Maker = Callable[[Town, str, str], Iterator[dict[str, Any]]]

# task -> what makes its examples from (town, language, split), without end
TASKS: dict[str, Maker] = {
    "topic": classify.topic,
    "sentiment": classify.sentiment,
}


def make_task(town: Town, language: str, name: str, split: str, count: int) -> list[dict[str, Any]]:
    if name not in TASKS:
        raise UserError(f"The world has no task '{name}'.{nearest(name, TASKS)}")
    if split not in SPLITS:
        raise UserError(f"The world has no split '{split}'.{nearest(split, SPLITS)}")
    examples = TASKS[name](town, language, split)
    return [next(examples) for _ in range(count)]

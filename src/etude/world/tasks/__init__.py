"""Labelled examples read off the same world: one file a family of tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from etude.errors import UserError, suggest_name
from etude.world.facts import Town
from etude.world.tasks import choices, classify, pairs, spans, tokens

SPLITS = ("train", "valid", "test")
Maker = Callable[[Town, str, str], Iterator[dict[str, Any]]]

# task -> what makes its examples from (town, language, split)
TASKS: dict[str, Maker] = {
    "topic": classify.topic,  # text, label
    "sentiment": classify.sentiment,  # text, label
    "sense": classify.sense,  # text, word, start, label
    "entailment": pairs.entailment,  # text_a, text_b, label
    "paraphrase": pairs.paraphrase,  # text_a, text_b, label
    "tags": tokens.tags,  # tokens, upos, ner
    "linking": tokens.linking,  # text, mentions
    "questions": spans.questions,  # id, title, context, question, answers, is_impossible
    "choices": choices.choices,  # id, concept, question, choices, answer, facts
    "translation": tokens.translation,  # en, ko
}


def make_task(town: Town, language: str, name: str, split: str, count: int) -> list[dict[str, Any]]:
    if name not in TASKS:
        raise UserError(f"The world has no task '{name}'.{suggest_name(name, TASKS)}")
    if split not in SPLITS:
        raise UserError(f"The world has no split '{split}'.{suggest_name(split, SPLITS)}")
    examples = TASKS[name](town, language, split)
    return [next(examples) for _ in range(count)]

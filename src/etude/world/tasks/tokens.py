"""Token by token: parts of speech and entities, entity links; and whole sentences in two languages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from etude.chance import fold
from etude.world.analysis import analyse
from etude.world.document import perform_document
from etude.world.draw import Draw
from etude.world.facts import Town
from etude.world.tasks.sampling import Candidate, balanced


def tags(town: Town, language: str, split: str) -> Iterator[dict[str, Any]]:
    def make(draw: Draw, label: None) -> Candidate:
        analysis = analyse(draw.pick(perform_document(town, draw).sentences), language)
        return analysis.text, {"tokens": analysis.tokens, "upos": analysis.upos, "ner": analysis.ner}

    return balanced((None,), make, fold(town.seed, "tags", language), split)


def linking(town: Town, language: str, split: str) -> Iterator[dict[str, Any]]:
    """Every mention of a being of the town or of a thing facts are told of, with the key it has in the facts."""

    def make(draw: Draw, label: None) -> Candidate:
        analysis = analyse(draw.pick(perform_document(town, draw).sentences), language)
        mentions = [
            {"start": mention.start, "end": mention.end, "entity": mention.entity, "kind": mention.kind}
            for mention in analysis.mentions
            if mention.entity in town.keys and not mention.pronoun
        ]
        return (analysis.text, {"text": analysis.text, "mentions": mentions}) if mentions else None

    return balanced((None,), make, fold(town.seed, "linking", language), split)


def translation(town: Town, language: str, split: str) -> Iterator[dict[str, Any]]:
    """The same pairs whichever language asks: the content is one."""

    def make(draw: Draw, label: None) -> Candidate:
        sentence = draw.pick(perform_document(town, draw).sentences)
        english = sentence.write("en")
        return english, {"en": english, "ko": sentence.write("ko")}

    return balanced((None,), make, fold(town.seed, "translation"), split)

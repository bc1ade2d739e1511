"""What a block of documents is made of: classes of characters, words, and documents that look like no text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from etude.text.prepare.documents import Documents
from etude.text.prepare.pairs import is_uneven
from etude.text.tokenizer import characters
from etude.text.tokenizer.text_batch import CONTINUATION, TextBatch

MAX_EXAMPLES = 3
MIN_CHARACTERS = 20  # of a document: fewer are too few to judge


@dataclass(frozen=True)
class TextMeasure:
    """The counts of a batch of documents."""

    classes: np.ndarray  # (CLASSES,) int64: characters of each class
    words: int  # runs of characters other than white space
    is_odd: np.ndarray  # (T,) bool: documents that look like no text, or like no pair

    @classmethod
    def of(cls, batch: TextBatch, are_pairs: bool) -> Self:
        classes = batch.classes
        is_solid, is_letter = ~batch.is_space, classes >= characters.MARK
        if len(batch.leads):  # each character counts once
            is_character = classes != CONTINUATION
            is_solid, is_letter = is_solid & is_character, is_letter & is_character
        solid, letters = _sum(batch, is_solid), _sum(batch, is_letter)
        is_control = classes == characters.CONTROL
        control = _sum(batch, is_control) if is_control.any() else np.zeros(len(batch), np.int64)
        # tables of numbers, code dumps, encoded data: under half letters
        is_odd = (solid >= MIN_CHARACTERS) & ((2 * letters < solid) | (20 * control > solid))
        if are_pairs:
            is_odd |= np.array([is_uneven(text) for text in batch.texts])
        return cls(batch.count_classes(), len(batch.starts) - int(batch.has_only_space.sum()), is_odd)


def _sum(batch: TextBatch, mask: np.ndarray) -> np.ndarray:
    """Count the marked bytes of each text, (T,) int64."""
    return np.add.reduceat(mask.view(np.uint8), batch.bounds[:-1], dtype=np.uint32).astype(np.int64)


def summarize(measures: Sequence[tuple[np.ndarray, TextMeasure]], documents: Documents) -> dict[str, Any]:
    """Add up the measures of documents, given with their numbers; the first odd ones are named."""
    classes = sum((measure.classes for _, measure in measures), np.zeros(characters.CLASSES, np.int64))
    odd = sorted(number for numbers, measure in measures for number in numbers[measure.is_odd].tolist())
    return {
        "classes": classes.tolist(),
        "words": sum(measure.words for _, measure in measures),
        "non_text": len(odd),
        "examples": [list(documents.find_place(number)) for number in odd[:MAX_EXAMPLES]],
    }

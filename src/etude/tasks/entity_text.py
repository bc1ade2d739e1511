"""Texts with their entities: what tasks give to a model that reads entities beside tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from etude.graph.entity_links import EntitySpan, NamedMention, align_spans
from etude.models.base import Model
from etude.text.tokenizer.tokenizer import Tokenizer

CHUNK = 1000  # texts that are encoded together: encodings are large, so not all of them are held at once


class EncodedText(NamedTuple):
    ids: np.ndarray  # (n,) int32
    entities: np.ndarray | None  # (n,) int64, rows of the model's entity table; None where it reads none


class EntityEncoder:
    """Encodes texts with the entities that somebody names in them, or that the model's linker finds."""

    def __init__(self, model: Model, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.links, self.alignment = model.base.links, model.base.entity_alignment

    def encode(self, texts: Sequence[str], mentions: Sequence[Sequence[NamedMention] | None]) -> list[EncodedText]:
        """The ids of texts with their entities: of the mentions given, or, where there are None, of the linker's."""
        encoded: list[EncodedText] = []
        for start in range(0, len(texts), CHUNK):
            part = texts[start : start + CHUNK]
            encodings = self.tokenizer.encode_batch(part)
            for text, given, encoding in zip(part, mentions[start : start + CHUNK], encodings, strict=True):
                encoded.append(EncodedText(encoding.ids, self._align(text, given, encoding.offsets)))
        return encoded

    def find_mentions(self, text: str) -> list[NamedMention]:
        """What the model's linker finds in a text, by name; nothing where it has none."""
        if self.links is None:
            return []
        spans = self.links.find(self.tokenizer.normalise(text))
        return [NamedMention(span.start, span.end, self.links.names[span.row - 1]) for span in spans]

    def _align(self, text: str, given: Sequence[NamedMention] | None, offsets: np.ndarray) -> np.ndarray:
        """(n,) the row of the entity table at each token."""
        if self.links is None:
            return np.zeros(len(offsets), np.int64)
        normal = self.tokenizer.normalise(text)  # what offsets point into
        if given is None:
            return align_spans(offsets, self.links.find(normal), self.alignment)
        spans = self.links.spans_of(given)
        if normal != text:
            places = {end: len(self.tokenizer.normalise(text[:end])) for span in spans for end in span[:2]}
            spans = [EntitySpan(places[span.start], places[span.end], span.row) for span in spans]
        return align_spans(offsets, spans, self.alignment)

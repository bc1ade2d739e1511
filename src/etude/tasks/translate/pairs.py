"""Pairs of a source and its reference, read from records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from etude.tasks.data.examples import Record, column_of, text_of
from etude.text.tokenizer.normalization import normalize_nfc

SOURCE = ("source", "src")
TARGET = ("target", "tgt", "reference")


@dataclass(frozen=True)
class SentencePair:
    """A source, and the reference where there is one."""

    source: str
    reference: str = ""


def parse_pair(
    record: Record, columns: Mapping[str, str], where: str, labelled: bool = True,
    usual: tuple[tuple[str, ...], tuple[str, ...]] = (SOURCE, TARGET),
) -> SentencePair:  # fmt: skip
    """A pair from the fields of a record, in NFC, blanks made single; `usual` are the names its columns may have.

    What a model writes is NFC: beside a reference in decomposed Hangul no n-gram of it would be right.
    """
    roles = [("source", usual[0])] + ([("target", usual[1])] if labelled else [])
    sides = (text_of(record, column_of(record, role, columns, names), where) for role, names in roles)
    return SentencePair(*(" ".join(normalize_nfc(text).split()) for text in sides))

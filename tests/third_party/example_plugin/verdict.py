"""A task: classification of texts whose files have columns of their own names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etude.models.base import Model
from etude.tasks import classify
from etude.tasks.base import Facts
from etude.tasks.classify import Classify, LabelledText, learn, majority, scoring, strata
from etude.tasks.data.examples import Examples, column_of, gather, label_of, text_of
from etude.tasks.data.records import FILES, records
from etude.text.tokenizer.tokenizer import Tokenizer

__all__ = [
    "COLUMNS", "FILES", "INPUTS", "PROMPT", "SCORES", "SUMMARY", "TEXTS", "Settings", "build", "learn", "majority",
    "parse", "read", "records", "scoring", "strata",
]  # fmt: skip

SUMMARY = "a verdict on a text"
SCORES = classify.SCORES
COLUMNS = {"statement": ("statement", "text"), "verdict": ("verdict", "label")}
INPUTS = TEXTS = ("statement",)
PROMPT = None


class Settings(classify.Settings):
    dropout: float = 0.0


def parse(record: dict[str, Any], columns: Mapping[str, str], where: str, labelled: bool = True) -> LabelledText:
    text = text_of(record, column_of(record, "statement", columns, COLUMNS["statement"]), where)
    label = column_of(record, "verdict", columns, COLUMNS["verdict"])
    return LabelledText((text,), label_of(record, label, where) if labelled else None)


def read(
    path: str | Path, columns: Mapping[str, str] | None = None, skip_bad: bool = False, labelled: bool = True
) -> Examples[LabelledText]:
    return gather(records(path), lambda record, where: parse(record, columns or {}, where, labelled), path, skip_bad)


def build(settings: Settings, model: Model, tokenizer: Tokenizer, facts: Facts) -> Classify:
    return Classify(settings, model, tokenizer, facts["labels"])

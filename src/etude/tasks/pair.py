"""Sentence pairs: one label for two texts (entailment, paraphrase, question and answer).

    both directions   [CLS] a [SEP] b [SEP] with segments (BERT, section 3.2)
    causal            start a delimiter b end (GPT-1, section 3.3: entailment)
    static, recurrent each text alone, joined as [u; v; |u - v|; u * v] (Conneau et al. 2017)

All else is classification (tasks/classify.py). Label names are kept as words, so that files whose numbers mean
different things (the order of MNLI's labels differs between copies) are refused and not mixed up.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from etude.errors import UserError
from etude.models.base import Model
from etude.tasks import classify
from etude.tasks.base import Facts
from etude.tasks.classify import Classify, LabelledText, TextPrompt, learn, majority, scoring, strata
from etude.tasks.data.examples import REMEDY, Examples, column_of, gather, label_of, text_of
from etude.tasks.data.records import FILES, records
from etude.tasks.pooled_head import PairReading
from etude.text.tokenizer.tokenizer import Tokenizer

__all__ = [
    "COLUMNS", "FILES", "INPUTS", "PROMPT", "SCORES", "SUMMARY", "TEXTS", "Settings", "build", "learn", "majority",
    "parse", "read", "records", "scoring", "strata",
]  # fmt: skip

SUMMARY = "one label for two texts (RTE, MNLI, QNLI, MRPC, QQP, KLUE-NLI)"
SCORES = classify.SCORES
FIRST = ("text_a", "sentence1", "premise", "question1", "#1 String", "question")
SECOND = ("text_b", "sentence2", "hypothesis", "question2", "#2 String", "sentence")
COLUMNS = {
    "first": FIRST,
    "second": SECOND,
    "label": ("label", "gold_label", "is_duplicate", "Quality"),
}
INPUTS = TEXTS = ("first", "second")
PROMPT = TextPrompt(("first", "second"))


class Settings(classify.Settings):
    texts: ClassVar[int] = 2
    reading: Literal["joint", "apart"] | None = Field(
        default=None, description="both texts in one sequence, or each alone; what suits the model unless given"
    )


def texts_of(record: dict[str, Any], columns: Mapping[str, str], where: str) -> tuple[str, str]:
    first = text_of(record, column_of(record, "first", columns, FIRST), where)
    return first, text_of(record, column_of(record, "second", columns, SECOND), where)


def pair_reading(reading: Literal["joint", "apart"] | None, model: Model, tokenizer: Tokenizer) -> PairReading:
    """How a pair is read: as the settings say, else what suits the model."""
    if reading is not None:
        return reading
    return "apart" if model.frame(tokenizer.special).separate else "joint"


def parse(record: dict[str, Any], columns: Mapping[str, str], where: str, labelled: bool = True) -> LabelledText:
    label = column_of(record, "label", columns, COLUMNS["label"])
    if labelled and label == "gold_label" and str(record.get(label)).strip() == "-":  # else it would be one more class
        raise UserError(f"{where}: '-' stands for no label: SNLI's annotators did not agree.", REMEDY)
    return LabelledText(texts_of(record, columns, where), label_of(record, label, where) if labelled else None)


def read(
    path: str | Path, columns: Mapping[str, str] | None = None, skip_bad: bool = False, labelled: bool = True
) -> Examples[LabelledText]:
    return gather(records(path), lambda record, where: parse(record, columns or {}, where, labelled), path, skip_bad)


def build(settings: Settings, model: Model, tokenizer: Tokenizer, facts: Facts) -> Classify:
    return Classify(settings, model, tokenizer, facts["labels"], pair_reading(settings.reading, model, tokenizer))

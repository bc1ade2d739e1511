"""One label for a text, or for two: n-grams and word vectors under multinomial logistic regression.

tfidf              words and characters, weighted by tf-idf
vectors            the idf-weighted mean of word vectors alone
tfidf+vectors      both, side by side
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from etude.baselines.base import BaselineTask
from etude.baselines.linear import classification, number_equal
from etude.baselines.linear_baseline import LinearBaseline, WordVectors, fit_pairs, fit_texts
from etude.baselines.text_features import softmax
from etude.tasks.base import Answer
from etude.tasks.classify import LabelledText
from etude.tasks.data.examples import Examples, label_numbers
from etude.tasks.relation import SIGNS, RelationExample
from etude.tasks.relation import Settings as RelationSettings

PREDICT_TEXT = '''def predict(line):
    """The likeliest label of a text, and the probability of every label."""
    probs = softmax(logits(line))
    return {"label": FACTS["labels"][int(probs.argmax())], "scores": dict(zip(FACTS["labels"], probs.tolist()))}'''
PREDICT_PAIR = PREDICT_TEXT.replace("of a text", "of two texts with a tab between them").replace(
    "logits(line)", 'logits(*line.split("\\t", 1))'
)
PREDICT_RELATION = '''# signs around an entity, and around its type
ENTITIES = SIGNS


def predict(line):
    """The likeliest relation of two entities: {"sentence": ..., "subject_entity": {"start": ..., "end": ...}, ...}.

    As in KLUE, "start_idx" and "end_idx" may stand in their place: the first and the last character.
    """
    probs = softmax(logits(mark(json.loads(line))))
    return {"label": FACTS["labels"][int(probs.argmax())], "scores": dict(zip(FACTS["labels"], probs.tolist()))}


def mark(record):
    """The sentence with signs around its entities, as in training."""
    text, signs = record["sentence"], []
    for name, (around, beside) in ENTITIES.items():
        entity = record[name]
        start = entity["start_idx"] if "start_idx" in entity else entity["start"]
        stop = entity["end_idx"] + 1 if "end_idx" in entity else entity["end"]
        kind = f" {beside} {entity['type']} {beside}" if TYPED and entity.get("type") else ""
        signs.append((start, stop, around + kind, around))
    pieces, place = [], 0
    for start, stop, before, behind in sorted(signs):
        pieces += [text[place:start], f" {before} ", text[start:stop], f" {behind} "]
        place = stop
    return " ".join("".join([*pieces, text[place:]]).split())'''


class LabelBaseline(LinearBaseline[LabelledText | RelationExample]):
    """A linear classifier over features of the text, or of both."""

    @classmethod
    def fit(
        cls,
        name: str,
        task: BaselineTask,
        examples: Examples[Any],
        seed: int = 0,
        vectors: WordVectors | None = None,
    ) -> Self:
        labels = label_numbers((item.label for item in examples), task.facts["labels"], examples.places)
        texts = [read_texts(task, item) for item in examples]
        problem = classification(labels, cls.outputs(task), number_equal(texts))
        if cls.reads_pairs(task):
            return cls(
                name, task, fit_pairs(name, [(first, second) for first, second in texts], problem, seed, vectors)
            )
        return cls(name, task, fit_texts(name, [text for (text,) in texts], problem, seed, vectors))

    @classmethod
    def outputs(cls, task: BaselineTask) -> int:
        return len(task.facts["labels"])

    @classmethod
    def reads_pairs(cls, task: BaselineTask) -> bool:
        return task.kind == "pair"

    @property
    def labels(self) -> list[str]:
        return list(self.task.facts["labels"])

    def log_probs(self, examples: Examples[Any]) -> np.ndarray:
        """(examples, labels) logarithms of the probabilities."""
        return np.log(np.maximum(self.probabilities(examples), 1e-300))

    def probabilities(self, examples: Examples[Any]) -> np.ndarray:
        """(examples, labels), in their order."""
        rows = [softmax(self.logits(*read_texts(self.task, item))) for item in examples]
        return np.array(rows).reshape(len(examples), len(self.labels))

    def predict(self, examples: Examples[Any]) -> list[Answer]:
        """The likeliest label, and the probability of every label."""
        return [answer_label(self.labels, row) for row in self.probabilities(examples)]

    @property
    def predict_script(self) -> str:
        if isinstance(self.task.settings, RelationSettings):
            signs = {f"{role}_entity": signs for role, signs in SIGNS[self.task.settings.signs].items()}
            script = PREDICT_RELATION.replace("TYPED", str(self.task.settings.typed))
            return script.replace("= SIGNS", f"= {json.dumps(signs)}")
        return PREDICT_PAIR if self.reads_pairs(self.task) else PREDICT_TEXT


def answer_label(labels: Sequence[str], probs: np.ndarray) -> Answer:
    """The answer of a classification task."""
    scores = {label: float(prob) for label, prob in zip(labels, probs, strict=True)}
    return {"label": labels[int(probs.argmax())], "scores": scores}


def read_texts(task: BaselineTask, item: LabelledText | RelationExample) -> tuple[str, ...]:
    """The texts of an example; of a relation, one with its two entities marked."""
    if isinstance(item, RelationExample):
        assert isinstance(task.settings, RelationSettings)
        return (item.marked(task.settings.typed, task.settings.signs),)
    return item.texts

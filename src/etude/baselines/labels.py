"""One label for a text: n-grams and word vectors under multinomial logistic regression.

tfidf              words and characters, weighted by tf-idf
vectors            the idf-weighted mean of word vectors alone
tfidf+vectors      both, side by side
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from etude.baselines import text_features
from etude.baselines.base import Baseline, BaselineTask, take_arrays
from etude.baselines.linear import fit_logistic, stack_vectors
from etude.baselines.text_features import FeatureSettings, TextFeatures, score_linear, softmax
from etude.errors import UserError
from etude.tasks.base import Answer
from etude.tasks.classify import LabelledText
from etude.tasks.data.examples import Examples, label_numbers
from etude.tasks.relation import RelationExample
from etude.tasks.relation import Settings as RelationSettings

RARE = 1000  # from so many examples on, an n-gram of one example alone is left out
NO_NGRAMS = FeatureSettings(word_sizes=(1, 0), char_sizes=(1, 0), syllable_sizes=(1, 0))

PREDICT_LABELS = '''"""Labels of texts, with numpy alone:   python predict.py < lines.txt"""

import json
import sys
from pathlib import Path

import numpy as np
from text_features import TextFeatures, score_linear, softmax

FOLDER = Path(__file__).resolve().parent
MODEL = json.loads((FOLDER / "model.json").read_text(encoding="utf-8"))
WEIGHTS = dict(np.load(FOLDER / "weights.npz"))
LABELS = MODEL["facts"]["labels"]
FEATURES = TextFeatures.restore(MODEL["model"]["features"], WEIGHTS)


def predict(text):
    """The likeliest label of a text, and the probability of every label."""
    probs = softmax(score_linear(FEATURES.vector(text), WEIGHTS["weight"], WEIGHTS["bias"]))
    return {"label": LABELS[int(probs.argmax())], "scores": dict(zip(LABELS, probs.tolist()))}


if __name__ == "__main__":
    for line in sys.stdin.buffer:
        print(json.dumps(predict(line.decode("utf-8").rstrip("\\r\\n")), ensure_ascii=False))
'''


@dataclass(frozen=True)
class WordVectors:
    """Words in lower case, and (words, D) their vectors."""

    words: list[str]
    matrix: np.ndarray


class LabelBaseline(Baseline[LabelledText | RelationExample]):
    """A linear classifier over features of the text."""

    def __init__(
        self, name: str, task: BaselineTask, features: TextFeatures, weight: np.ndarray, bias: np.ndarray,
        penalty: float,
    ) -> None:  # fmt: skip
        """`weight` (V, classes), `bias` (classes,); `penalty` is the C that was chosen."""
        super().__init__(name, task)
        self.labels: list[str] = list(task.facts["labels"])
        self.features, self.weight, self.bias, self.penalty = features, weight, bias, penalty

    @classmethod
    def fit(
        cls,
        name: str,
        task: BaselineTask,
        examples: Examples[Any],
        seed: int = 0,
        vectors: WordVectors | None = None,
    ) -> Self:
        settings = NO_NGRAMS if name == "vectors" else FeatureSettings()
        texts = [read_text(task, item) for item in examples]
        words, matrix = (vectors.words, vectors.matrix) if vectors is not None else ([], None)
        features = TextFeatures.learn(settings, texts, 1 if len(texts) < RARE else 2, words, matrix)
        labels = label_numbers((item.label for item in examples), task.facts["labels"], examples.places)
        rows = stack_vectors([features.vector(text) for text in texts], features.columns)
        fitted, penalty = fit_logistic(rows, labels, len(task.facts["labels"]), seed)
        return cls(name, task, features, fitted.weight.astype(np.float32), fitted.bias, penalty)

    def log_probs(self, examples: Examples[Any]) -> np.ndarray:
        """(examples, labels) logarithms of the probabilities."""
        return np.log(np.maximum(self.probabilities(examples), 1e-300))

    def probabilities(self, examples: Examples[Any]) -> np.ndarray:
        """(examples, labels), in their order."""
        vectors = (self.features.vector(read_text(self.task, item)) for item in examples)
        rows = [softmax(score_linear(vector, self.weight, self.bias)) for vector in vectors]
        return np.array(rows).reshape(len(examples), len(self.labels))

    def predict(self, examples: Examples[Any]) -> list[Answer]:
        """The likeliest label, and the probability of every label."""
        return [answer_label(self.labels, row) for row in self.probabilities(examples)]

    def scale_logits(self, temperature: float) -> None:
        self.weight = (self.weight / temperature).astype(np.float32)
        self.bias = self.bias / temperature

    def describe(self) -> dict[str, Any]:
        return {"features": self.features.describe(), "penalty": self.penalty}

    def arrays(self) -> dict[str, np.ndarray]:
        return {"weight": self.weight, "bias": self.bias, **self.features.arrays()}

    def standalone(self) -> dict[str, str]:
        return {"predict.py": PREDICT_LABELS, "text_features.py": inspect.getsource(text_features)}

    @classmethod
    def restore(
        cls, name: str, task: BaselineTask, description: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> Self:
        features = TextFeatures.restore(description["features"], arrays)
        classes = len(task.facts["labels"])
        own = {key: array.shape for key, array in features.arrays().items()}
        take_arrays(arrays, {"weight": (features.columns, classes), "bias": (classes,), **own})
        return cls(name, task, features, arrays["weight"], arrays["bias"], description["penalty"])


def answer_label(labels: Sequence[str], probs: np.ndarray) -> Answer:
    """The answer of a classification task."""
    scores = {label: float(prob) for label, prob in zip(labels, probs, strict=True)}
    return {"label": labels[int(probs.argmax())], "scores": scores}


def read_text(task: BaselineTask, item: LabelledText | RelationExample) -> str:
    """The text of an example; of a relation, with its two entities marked."""
    if isinstance(item, RelationExample):
        assert isinstance(task.settings, RelationSettings)
        return item.marked(task.settings.typed)
    if len(item.texts) != 1:
        raise UserError(f"The task {task.kind} has {len(item.texts)} texts an example; this baseline reads one.")
    return item.texts[0]

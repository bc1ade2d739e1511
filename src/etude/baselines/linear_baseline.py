"""What baselines of one linear layer share: features of a text or of a pair, weights, and how they are saved."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self, TypeVar

import numpy as np

from etude.baselines import pair_features, text_features
from etude.baselines.base import Baseline, BaselineTask, take_arrays
from etude.baselines.linear import Problem, fit_best, stack_vectors
from etude.baselines.pair_features import PairFeatures
from etude.baselines.text_features import FeatureSettings, TextFeatures, score_linear
from etude.baselines.word_clusters import cluster_words
from etude.text.tokenizer import char_ngrams
from etude.text.tokenizer.char_ngrams import NgramTable

E = TypeVar("E")
RARE = 1000  # from so many texts on, an n-gram of one text alone is left out
# of word vectors beside n-grams, where that suits the examples. 100 labels, dev from the pool, means of three draws,
# before and with it: SNIPS 95.4 and 97.2, YNAT 65.6 and 69.3, TREC-6 61.1 and 61.0, 3i4K 66.2 twice
HEAVY_VECTORS = 2.0
NGRAM_WEIGHTS = (0.0, 1.0)  # of the n-grams of pairs beside their overlaps: what suits the examples is chosen
NO_NGRAMS = FeatureSettings(word_sizes=(1, 0), char_sizes=(1, 0), syllable_sizes=(1, 0), jamo_sizes=(1, 0))


@dataclass(frozen=True)
class WordVectors:
    """Words in lower case, (words, D) their vectors, and those of n-grams for other words, where there are any."""

    words: list[str]
    matrix: np.ndarray
    ngram_table: NgramTable | None = None

    @cached_property
    def clusters(self) -> np.ndarray:
        """(words, grains) int16, computed once for all folds."""
        return cluster_words(self.matrix)


@dataclass(frozen=True)
class FittedLinear:
    """Features with the weights over them, and the C that was chosen."""

    features: TextFeatures | PairFeatures
    weight: np.ndarray  # (V, outputs) float32
    bias: np.ndarray  # (outputs,)
    penalty: float


def fit_texts(
    name: str, texts: Sequence[str], problem: Problem, seed: int, vectors: WordVectors | None
) -> FittedLinear:
    """A linear model over single texts, with idf or without, vectors light or heavy; `name` says which features."""
    readers = [learn_text_features(name, texts, vectors)]
    if len(readers[0].idf) and len(texts) < RARE:  # endings that nearly all texts have may be what tells labels apart
        readers.append(readers[0].without_idf())
        if vectors is not None:
            readers.append(readers[0].with_vector_weight(HEAVY_VECTORS))
    tables = [stack_vectors([reader.vector(text) for text in texts], reader.columns) for reader in readers]
    choice = fit_best(tables, problem, seed)
    model = choice.model
    return FittedLinear(readers[choice.features], model.weight.astype(np.float32), model.bias, choice.penalty)


def fit_pairs(
    name: str, pairs: Sequence[tuple[str, str]], problem: Problem, seed: int, vectors: WordVectors | None
) -> FittedLinear:
    """A linear model over pairs of texts, with or without their n-grams."""
    text = learn_text_features(name, list(dict.fromkeys(side for pair in pairs for side in pair)), vectors)
    readers = [PairFeatures.learn(text, pairs, weight) for weight in NGRAM_WEIGHTS]
    tables = [stack_vectors([reader.vector(*pair) for pair in pairs], reader.columns) for reader in readers]
    choice = fit_best(tables, problem, seed)
    model = choice.model
    return FittedLinear(readers[choice.features], model.weight.astype(np.float32), model.bias, choice.penalty)


def learn_text_features(name: str, texts: Sequence[str], vectors: WordVectors | None) -> TextFeatures:
    settings = NO_NGRAMS if name == "vectors" else FeatureSettings()
    smallest_count = 1 if len(texts) < RARE else 2
    if vectors is None:
        return TextFeatures.learn(settings, texts, smallest_count)
    return TextFeatures.learn(settings, texts, smallest_count, vectors.words, vectors.matrix, vectors.ngram_table)


class LinearBaseline(Baseline[E]):
    """A linear layer over features; subclasses make answers of its logits."""

    def __init__(self, name: str, task: BaselineTask, fitted: FittedLinear) -> None:
        super().__init__(name, task)
        self.fitted = fitted

    @classmethod
    @abstractmethod
    def fit(
        cls, name: str, task: BaselineTask, examples: Any, seed: int = 0, vectors: WordVectors | None = None
    ) -> Self:
        """Fit to labelled examples."""

    @classmethod
    @abstractmethod
    def outputs(cls, task: BaselineTask) -> int:
        """Of the linear layer."""

    @classmethod
    @abstractmethod
    def reads_pairs(cls, task: BaselineTask) -> bool:
        """Whether the features are those of two texts."""

    def logits(self, *texts: str) -> np.ndarray:
        """(outputs,) of a text, or of a pair."""
        vector = self.fitted.features.vector(*texts)
        return score_linear(vector, self.fitted.weight, self.fitted.bias)

    def scale_logits(self, temperature: float) -> None:
        old = self.fitted
        weight = (old.weight / temperature).astype(np.float32)
        self.fitted = FittedLinear(old.features, weight, old.bias / temperature, old.penalty)

    def describe(self) -> dict[str, Any]:
        return {"features": self.fitted.features.describe(), "penalty": self.fitted.penalty}

    def arrays(self) -> dict[str, np.ndarray]:
        return {"weight": self.fitted.weight, "bias": self.fitted.bias, **self.fitted.features.arrays()}

    @classmethod
    def restore(
        cls, name: str, task: BaselineTask, description: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> Self:
        return cls(name, task, cls.restore_layer(task, description, arrays))

    @classmethod
    def restore_layer(
        cls, task: BaselineTask, description: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> FittedLinear:
        """The features and the weights over them; ValueError where they do not fit each other."""
        reader = PairFeatures if cls.reads_pairs(task) else TextFeatures
        features = reader.restore(description["features"], arrays)
        own = {key: array.shape for key, array in features.arrays().items()}
        outputs = cls.outputs(task)
        take_arrays(arrays, {"weight": (features.columns, outputs), "bias": (outputs,), **own})
        return FittedLinear(features, arrays["weight"], arrays["bias"], description["penalty"])

    @property
    @abstractmethod
    def predict_script(self) -> str:
        """The function `predict` of the exported script, and what it reads."""

    def standalone(self) -> dict[str, str]:
        files = copy_text_features()
        head = "from text_features import TextFeatures as Features"
        if self.reads_pairs(self.task):
            source = inspect.getsource(pair_features)
            files["pair_features.py"] = source.replace("from etude.baselines.text_features", "from text_features")
            head = "from pair_features import PairFeatures as Features"
        return {"predict.py": SCRIPT.replace("HEAD", head).replace("PREDICT", self.predict_script), **files}


def copy_text_features() -> dict[str, str]:
    """The files of an export that read a text."""
    source = inspect.getsource(text_features)
    source = source.replace("from etude.text.tokenizer.char_ngrams", "from char_ngrams")
    return {"text_features.py": source, "char_ngrams.py": inspect.getsource(char_ngrams)}


SCRIPT = '''"""Answers with numpy alone; one line an input:   python predict.py < lines.txt"""

import json
import sys
from pathlib import Path

import numpy as np
HEAD
from text_features import score_linear, softmax

FOLDER = Path(__file__).resolve().parent
MODEL = json.loads((FOLDER / "model.json").read_text(encoding="utf-8"))
FACTS = MODEL["facts"]
WEIGHTS = dict(np.load(FOLDER / "weights.npz"))
FEATURES = Features.restore(MODEL["model"]["features"], WEIGHTS)


def logits(*texts):
    """The outputs of the linear layer for a text, or for a pair."""
    return score_linear(FEATURES.vector(*texts), WEIGHTS["weight"], WEIGHTS["bias"])


PREDICT


if __name__ == "__main__":
    for line in sys.stdin.buffer:
        print(json.dumps(predict(line.decode("utf-8").rstrip("\\r\\n")), ensure_ascii=False))
'''

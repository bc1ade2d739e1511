"""The bag of n-grams of fastText (Joulin et al. 2017): mean of embeddings, a linear softmax, SGD with linear decay.

    hidden = mean of the embeddings of all n-grams of a text;  p = softmax(hidden O)

Both layers are linear, so after training their product is one table of n-grams by labels, and the baseline is saved and
used as any other linear one. n-grams are kept by name and not hashed: those of unseen texts that training never saw
would add noise only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from etude.baselines.base import BaselineTask
from etude.baselines.labels import LabelBaseline, read_texts
from etude.baselines.linear_baseline import RARE, FittedLinear, WordVectors
from etude.baselines.text_features import FeatureSettings, SparseVector, TextFeatures, softmax
from etude.tasks.data.examples import Examples, label_numbers

WIDTH = 16
RATE = 0.5
UPDATES, MOST_EPOCHS, FEWEST_EPOCHS = 20_000, 100, 5  # epochs are as many as make so many updates, within bounds


class BagBaseline(LabelBaseline):
    """A linear classifier whose table of weights has a low rank, trained by SGD."""

    @classmethod
    def fit(
        cls,
        name: str,
        task: BaselineTask,
        examples: Examples[Any],
        seed: int = 0,
        vectors: WordVectors | None = None,
    ) -> Self:
        texts = [read_texts(task, item)[0] for item in examples]
        labels = label_numbers((item.label for item in examples), task.facts["labels"], examples.places)
        settings = FeatureSettings(weighting="mean", jamo_sizes=(1, 0))
        features = TextFeatures.learn(settings, texts, 1 if len(texts) < RARE else 2)
        rows = [features.vector(text) for text in texts]
        weight = train_bag(rows, labels, features.columns, len(task.facts["labels"]), seed)
        bias = np.zeros(weight.shape[1])
        return cls(name, task, FittedLinear(features, weight.astype(np.float32), bias, RATE))


def train_bag(rows: Sequence[SparseVector], labels: np.ndarray, columns: int, classes: int, seed: int) -> np.ndarray:
    """(columns, classes) the product of both layers."""
    draw = np.random.default_rng(seed)
    embedding = draw.uniform(-1 / WIDTH, 1 / WIDTH, (columns, WIDTH))
    output = np.zeros((WIDTH, classes))
    epochs = int(np.clip(UPDATES // len(rows), FEWEST_EPOCHS, MOST_EPOCHS))
    total, step = epochs * len(rows), 0
    for _ in range(epochs):
        for number in draw.permutation(len(rows)).tolist():
            places, shares = rows[number]
            rate = RATE * (1 - step / total)
            step += 1
            if not len(places):
                continue
            hidden = shares @ embedding[places]  # (WIDTH,)
            error = -softmax(hidden @ output)
            error[labels[number]] += 1
            slope = output @ error
            output += hidden[:, None] * (rate * error)
            embedding[places] += (rate * shares)[:, None] * slope
    return embedding @ output

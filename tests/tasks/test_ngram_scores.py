"""BLEU and chrF from sums: equal to sacrebleu's on any sums, and on many at once."""

from __future__ import annotations

import numpy as np
import pytest

from etude.tasks import ngram_scores
from etude.tasks.translate.scores import make_segment_scores

pytest.importorskip("sacrebleu")
REFERENCES = ["The cat sat on the mat.", "A dog ran home.", "Yes.", "The old baker sells bread at the market today."]
WRITTEN = ["The cat sat on a mat.", "A cat ran home now.", "", "Old baker sells the bread in a market"]


def test_scores_of_every_subset_are_those_of_sacrebleu() -> None:
    weights = np.array([[(number >> bit) & 1 for bit in range(4)] for number in range(1, 16)], dtype=float)
    for metric, score in zip(
        make_segment_scores(WRITTEN, REFERENCES), (ngram_scores.bleu, ngram_scores.chrf), strict=True
    ):
        sums = weights @ metric.parts
        expected = [metric.score(row.astype(np.int64)) / 100 for row in sums]
        assert score(sums) == pytest.approx(expected, abs=1e-12)
        assert len(set(expected)) > 10


def test_scores_of_random_counts_are_those_of_sacrebleu() -> None:
    draw = np.random.default_rng(0)
    bleu, chrf = make_segment_scores(WRITTEN, REFERENCES)
    for _ in range(300):
        total = np.sort(draw.integers(0, 12, 4))[::-1]
        correct = [int(draw.integers(0, count + 1)) for count in total]
        sums = np.array([total[0], draw.integers(1, 15), *correct, *total], dtype=float)
        assert float(ngram_scores.bleu(sums)) == pytest.approx(bleu.score(sums.astype(np.int64)) / 100, abs=1e-12)
        counts = draw.integers(0, 9, (6, 3))
        counts[:, 2] = np.minimum(counts[:, 2], counts[:, :2].min(1))
        assert float(ngram_scores.chrf(counts.ravel().astype(float))) == pytest.approx(
            chrf.score(counts.ravel()) / 100, abs=1e-12
        )

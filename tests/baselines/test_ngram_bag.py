"""The bag of n-grams: learns, repeats for a seed, and is saved as one linear layer."""

from __future__ import annotations

from pathlib import Path

from etude.baselines.registry import fit, load
from tests.baselines.test_labels import reviews, unlabelled


def test_it_learns_repeats_and_is_saved(tmp_path: Path) -> None:
    first, second = (fit("ngrams", "classify", None, reviews(2), seed=5) for _ in range(2))
    texts = unlabelled("재밌었습니다", "지루했습니다", "fine films", "dullness", "xyz")
    answers = first.predict(texts)
    assert [answer["label"] for answer in answers][:4] == ["good", "bad", "good", "bad"]
    assert answers[4]["scores"] == {"bad": 0.5, "good": 0.5}  # nothing of it is known
    assert second.predict(texts) == answers
    first.save(tmp_path / "bag")
    assert load(tmp_path / "bag").predict(texts) == answers
    assert fit("ngrams", "classify", None, reviews(2), seed=6).predict(texts) != answers

"""Losses of a unigram and a bigram, and whether a model has passed them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from etude.recipes.schema import Recipe
from etude.study import planner, references
from etude.study.references import Progress, ReferenceLoss, compute_reference, load_reference, measure_progress
from etude.study.runner import Report
from etude.study.settings import Study


def test_a_bigram_predicts_what_always_follows() -> None:
    cycle = np.tile(np.arange(4), 5_000)
    unigram, bigram = compute_reference(cycle, cycle[:400], vocab=4)
    assert unigram == pytest.approx(math.log(4), abs=1e-3)
    assert 0 < bigram < 0.001, "the next token is known, up to the discount"
    noise = np.random.default_rng(0).integers(4, size=40_000)
    unigram, bigram = compute_reference(noise[:30_000], noise[30_000:], vocab=4)
    assert bigram == pytest.approx(math.log(4), abs=0.01) and unigram == pytest.approx(math.log(4), abs=0.01)


def test_a_bigram_is_a_distribution() -> None:
    """Probabilities behind any token sum to one, whether or not it was followed by anything."""
    train = np.array([0, 1, 0, 2, 0, 1, 3])  # 3 is followed by nothing, 4 never seen
    for before in range(5):
        losses = [compute_reference(train, np.array([before, after]), vocab=5)[1] for after in range(5)]
        assert sum(math.exp(-loss) for loss in losses) == pytest.approx(1.0)


def test_models_are_measured_by_their_own_reference() -> None:
    reference = ReferenceLoss(unigram=6.0, bigram=4.0, tokens_per_byte=0.25)
    masked, often = Recipe.load("bert-toy"), Recipe.load("bert-toy", {"objective.mask_rate": 0.8})
    below, above = measure_progress(masked, {"mlm": 3.9}, reference), measure_progress(masked, {"mlm": 4.1}, reference)
    assert below is not None and below.has_learnt and above is not None and not above.has_learnt
    dense = measure_progress(often, {"mlm": 5.0}, reference)
    assert dense is not None and dense.kind == "unigram" and dense.has_learnt, "most neighbours are masked, too"
    causal = measure_progress(masked, {"bits_per_byte": 4.0 * 0.25 / math.log(2) + 0.01}, reference)
    assert causal is not None and not causal.has_learnt
    electra = measure_progress(masked, {"discriminator": 0.3, "accuracy": 0.91, "replaced": 0.1}, None)
    assert electra is not None and electra.has_learnt
    assert measure_progress(masked, {"loss": 2.0}, reference) is None, "word vectors have no such loss"
    assert Progress(1.0, 1.0, "bigram", "bits a byte").json()["has_learnt"] is False


def test_one_answer_for_every_token_is_nothing_learnt() -> None:
    """Where the chosen tokens alone are scored, most of them are replaced, and to say so had counted as learning."""
    electra = Recipe.load("electra-toy", {"objective.loss_on": "chosen"})
    for accuracy, has_learnt in ((0.72, False), (0.82, True)):
        valid = {"discriminator": 0.4, "accuracy": accuracy, "replaced": 0.72}
        progress = measure_progress(electra, valid, None)
        assert progress is not None and progress.has_learnt is has_learnt and progress.kind == "all replaced"


@pytest.mark.parametrize(("gain", "has_learnt"), [(0.0003459, False), (0.0009, False), (0.0011, True), (0.0115, True)])
def test_a_discriminator_must_gain_a_tenth_of_a_point(gain: float, has_learnt: bool) -> None:
    """One that found 0.5 % of the replaced tokens counted as having learnt, by 0.0003 of accuracy."""
    valid = {"discriminator": 0.444, "accuracy": 0.8111 + gain, "replaced": 0.1889}
    progress = measure_progress(Recipe.load("electra-toy"), valid, None)
    assert progress is not None and progress.has_learnt is has_learnt and progress.json()["has_learnt"] is has_learnt
    assert Progress(2.9996, 3.0, "bigram", "nats a token").has_learnt, "losses are compared as they are"


def test_what_predicts_every_token_is_measured_where_it_does_not_see_it() -> None:
    reference = ReferenceLoss(unigram=6.0, bigram=4.0, tokens_per_byte=0.25)
    towers = Recipe.load("two-tower-toy")
    for loss in (3.9, 4.1):
        progress = measure_progress(towers, {"loss": loss, "cloze": loss, "text": loss, "accuracy": 0.1}, reference)
        assert progress is not None and progress.has_learnt is (loss < 4)
    copying = Recipe.load("electra-toy", {"objective.variant": "all_tokens_mlm"})
    assert measure_progress(copying, {"mlm": 1.4, "accuracy": 0.86, "replaced": 0.14}, reference) is None


def test_a_reference_is_computed_once(
    report: Report, study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = planner.make_plan(study, report.folder, dry=True).rows[0].draft
    assert draft is not None
    first = load_reference(draft.corpus_folder, tmp_path)
    assert first is not None and 0 < first.bigram < first.unigram

    def refuse(*_: object) -> tuple[float, float]:
        raise AssertionError("computed again")

    monkeypatch.setattr(references, "compute_reference", refuse)
    assert load_reference(draft.corpus_folder, tmp_path) == first
    assert list((report.folder / "references").glob("*.json")), "and kept with the study"

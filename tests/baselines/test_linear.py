"""Logistic regression: the optimum of scikit-learn, and the same with a factor in place of the features."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from etude.baselines import linear


def problem(count: int = 60, columns: int = 200, classes: int = 3) -> tuple[sparse.csr_matrix, np.ndarray]:
    draw = np.random.default_rng(0)
    labels = np.arange(count) % classes
    features = draw.random((count, columns)) * (draw.random((count, columns)) < 0.1)
    features[np.arange(count), labels] += 1
    return sparse.csr_matrix(features), labels


@pytest.mark.parametrize("penalty", [0.3, 10.0])
def test_equals_scikit_learn(penalty: float) -> None:
    reference = pytest.importorskip("sklearn.linear_model").LogisticRegression(C=penalty, tol=1e-8, max_iter=5000)
    features, labels = problem()
    reference.fit(features, labels)
    fitted = linear.fit_linear(features, linear.cross_entropy(labels), 3, penalty)
    expected = reference.predict_proba(features)
    np.testing.assert_allclose(np.exp(linear.log_softmax(fitted.scores(features))), expected, atol=5e-3)


def test_the_factor_of_few_examples_changes_nothing() -> None:
    features, labels = problem()
    factor = linear.Factor.of(features)
    assert isinstance(factor.rows, np.ndarray) and factor.rows.shape == (60, 60)
    direct = linear.fit_linear(features, linear.cross_entropy(labels), 3, 3.0)
    short = factor.restore(linear.fit_linear(factor.rows, linear.cross_entropy(labels), 3, 3.0))
    unseen = problem(count=30)[0][::-1]
    np.testing.assert_allclose(short.scores(unseen), direct.scores(unseen), atol=2e-3)


def test_equal_texts_do_not_break_the_factor() -> None:
    features, labels = problem()
    doubled = sparse.vstack([features, features]).tocsr()
    fitted = linear.fit_best([doubled], linear.classification(np.concatenate([labels, labels]), 3)).model
    assert np.isfinite(fitted.weight).all()
    assert (fitted.scores(features).argmax(1) == labels).mean() > 0.95


def test_noise_chooses_a_stronger_penalty_than_signal() -> None:
    features, labels = problem(count=90)
    noise = np.random.default_rng(1).permutation(labels)
    strong, weak = (linear.fit_best([features], linear.classification(gold, 3)).penalty for gold in (noise, labels))
    assert strong < weak


def test_a_text_that_stands_often_is_not_held_out_from_itself() -> None:
    """Labels that are noise can be known by heart where each text stands three times: then no penalty is the best."""
    features, labels = problem(count=60)
    noise = np.random.default_rng(1).permutation(labels)
    thrice, golds = sparse.vstack([features] * 3).tocsr(), np.tile(noise, 3)
    groups = linear.number_equal(np.tile(np.arange(60), 3).tolist())
    known = linear.fit_best([thrice], linear.classification(golds, 3)).penalty
    honest = linear.fit_best([thrice], linear.classification(golds, 3, groups)).penalty
    assert honest < known and honest <= linear.PENALTIES[1]
    alone = linear.classification(noise, 3, linear.number_equal(range(60)))
    losses = [linear.held_out_losses(features, each, 0) for each in (alone, linear.classification(noise, 3))]
    np.testing.assert_array_equal(*losses)  # where all texts differ, nothing changes
    equal = linear.classification(noise, 3, np.zeros(60, np.int64))
    assert linear.fit_best([features], equal).penalty == linear.PENALTIES[4]


def test_features_that_help_are_chosen() -> None:
    features, labels = problem(count=90)
    useless = sparse.csr_matrix(np.random.default_rng(2).random((90, 200)))
    assert linear.fit_best([useless, features], linear.classification(labels, 3)).features == 1


def test_folds_deal_every_class_out_evenly() -> None:
    labels = np.array([0] * 10 + [1] * 5 + [2] * 1)
    folds = linear.stratified_folds(labels, 5, seed=0)
    assert np.bincount(folds).max() - np.bincount(folds).min() <= 1
    assert all(np.bincount(folds[labels == 0]) == 2) and all(np.bincount(folds[labels == 1]) == 1)


def test_many_rows_are_fitted_over_their_features(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = problem(count=90)
    few = linear.fit_best([features], linear.classification(labels, 3))
    monkeypatch.setattr(linear, "KERNEL_ROWS", 50)
    monkeypatch.setattr(linear, "FOLDS_OF_ROWS", ((50, 5), (np.inf, 1)))
    many = linear.fit_best([features], linear.classification(labels, 3))
    assert many.model.weight.shape == few.model.weight.shape
    assert (many.model.scores(features).argmax(1) == labels).mean() > 0.95

"""Scores equal scikit-learn's and scipy's on random predictions, however they are streamed; cases worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics

from etude.tasks.metrics import Confusion, Correlation

classes = st.integers(0, 3)
predictions = st.lists(st.tuples(classes, classes), min_size=1, max_size=40)


def confusion(pairs: list[tuple[int, int]], cut: int = 0) -> Confusion:
    found = Confusion(4)
    gold, predicted = np.array(pairs).T
    found.add(gold[:cut], predicted[:cut])
    found.add(gold[cut:], predicted[cut:])
    return found


@given(predictions, st.integers(0, 40))
@settings(max_examples=100, deadline=None)
@pytest.mark.filterwarnings("ignore")  # scikit-learn warns where a class is missing, and returns what is wanted
def test_classification_scores_are_those_of_scikit_learn(pairs: list[tuple[int, int]], cut: int) -> None:
    found = confusion(pairs, cut)
    gold, predicted = np.array(pairs).T
    assert found.accuracy == pytest.approx(metrics.accuracy_score(gold, predicted))
    assert found.macro_f1 == pytest.approx(metrics.f1_score(gold, predicted, average="macro"))
    assert found.mcc == pytest.approx(metrics.matthews_corrcoef(gold, predicted), abs=1e-12)
    for label in range(4):
        wanted = metrics.f1_score(gold == label, predicted == label, zero_division=0)
        assert found.f1(label) == pytest.approx(wanted)


def test_by_hand() -> None:
    """8 of 10 right: 5 true negatives, 3 true positives, 1 of each error."""
    found = confusion([(0, 0)] * 5 + [(1, 1)] * 3 + [(0, 1), (1, 0)])
    assert found.accuracy == 0.8 and found.total == 10
    assert found.f1() == pytest.approx(3 / 4)
    assert found.macro_f1 == pytest.approx((3 / 4 + 5 / 6) / 2)
    assert found.mcc == pytest.approx((3 * 5 - 1) / math.sqrt(4 * 4 * 6 * 6))


def test_constant_predictions_have_no_correlation() -> None:
    assert confusion([(0, 1), (1, 1)]).mcc == 0.0
    flat = Correlation()
    flat.add(np.array([1.0, 2.0]), np.array([3.0, 3.0]))
    assert flat.pearson == flat.spearman == 0.0


@given(
    st.lists(st.tuples(st.integers(-5, 5), st.floats(-1e3, 1e3)), min_size=2, max_size=40).filter(
        lambda pairs: all(np.ptp(column) > 1e-6 for column in np.array(pairs).T)
    ),
    st.integers(0, 40),
)
@settings(max_examples=80, deadline=None)
def test_correlations_are_those_of_scipy(pairs: list[tuple[int, float]], cut: int) -> None:
    gold, predicted = np.array(pairs, dtype=np.float64).T
    found = Correlation()
    found.add(gold[:cut], predicted[:cut])
    found.add(gold[cut:], predicted[cut:])
    ranks = [stats.rankdata(values) for values in (gold, predicted)]  # an independent way to Spearman
    assert found.pearson == pytest.approx(np.corrcoef(gold, predicted)[0, 1], abs=1e-9)
    assert found.spearman == pytest.approx(np.corrcoef(*ranks)[0, 1], abs=1e-9)


def test_nothing_added_is_no_score() -> None:
    with pytest.raises(ValueError, match="no prediction"):
        _ = Confusion(2).accuracy
    with pytest.raises(ValueError, match="two pairs"):
        _ = Correlation().pearson
    with pytest.raises(ValueError, match="not pairs"):
        Correlation().add(np.zeros(3), np.zeros(2))

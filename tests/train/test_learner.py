"""The loss of a learner: sums of terms, divided by the counts of the whole step."""

from __future__ import annotations

import pytest
import torch

from etude.objectives.base import Term
from etude.train.learner import total_loss


def test_terms_are_divided_by_the_count_of_the_whole_step() -> None:
    terms = {"a": Term(torch.tensor(6.0), 3, 1.0), "b": Term(torch.tensor(8.0), 1, 0.5)}
    assert float(total_loss(terms, {"a": 12.0, "b": 4.0})) == pytest.approx(6 / 12 + 0.5 * 8 / 4)


def test_counts_on_the_device_divide_alike_and_no_label_is_no_loss() -> None:
    terms = {"a": Term(torch.tensor(6.0), 3, 1.0), "b": Term(torch.tensor(0.0), 0, 0.5)}
    totals = {"a": 12.0, "b": 0.0}
    expected = total_loss(terms, totals)
    assert float(expected) == pytest.approx(0.5)
    assert torch.equal(total_loss(terms, {name: torch.tensor(value) for name, value in totals.items()}), expected)

"""Every pick of these tests runs at one pace: what else the machine does must not change what it decides."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from etude.pick import pace


@pytest.fixture(autouse=True)
def steady_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "measure", lambda: 0.01)


@pytest.fixture(scope="package", autouse=True)
def _short_fits() -> Iterator[None]:
    """A bag of n-grams learns for a tenth of its time, and linear models try three penalties of eight.

    What they learn in all of it is looked at in tests/baselines.
    """
    from etude.baselines import linear, ngram_bag

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ngram_bag, "UPDATES", 2_000)
        patch.setattr(linear, "PENALTIES", (1.0, 10.0, 100.0))
        yield

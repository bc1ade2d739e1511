"""A recipe with some settings changed, as a pre-training takes it."""

from __future__ import annotations

import pytest

from etude.pretraining.setup import load_recipe


def test_settings_that_another_kind_drops_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """Sequences of 128 tokens became such of 512, without a word."""
    load_recipe("encoder-20min", ["objective.kind=replaced", "objective.mask_rate=0.15"])
    assert "objective.kind=replaced begins with its own settings: objective.length=128" in caplog.text
    assert "mask_rate" not in caplog.text  # it is given


@pytest.mark.parametrize("overrides", [["objective.kind=masked"], ["objective.mask_rate=0.2"], {"train.lr": 1e-3}])
def test_nothing_is_told_where_nothing_is_dropped(
    overrides: list[str] | dict[str, float], caplog: pytest.LogCaptureFixture
) -> None:
    load_recipe("encoder-20min", overrides)
    assert not caplog.text

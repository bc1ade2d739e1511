"""Frozen states that are remembered: those that the model computes, in few copies between host and device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from etude.models import transformer
from etude.models.layer_features import LayerFeatures
from etude.nn.packed import pack

SENTENCES = [[1, 2, 3], [4, 5], [6], [7, 8, 9, 10], [11, 12]]


def features(**settings: Any) -> LayerFeatures:
    torch.manual_seed(0)
    small = transformer.Settings(vocab=20, layers=2, width=8, heads=2, context=16)
    return LayerFeatures(transformer.build(small), "all", **settings).eval()


def copy_to_host(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of states in each copy to the host from here on: ids are copied too, to look states up."""
    copies: list[int] = []
    cpu = Tensor.cpu

    def count(self: Tensor) -> Tensor:
        if self.is_floating_point():
            copies.append(len(self))
        return cpu(self)

    monkeypatch.setattr(Tensor, "cpu", count)
    return copies


def test_new_states_are_copied_to_the_host_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU is waited for at each copy."""
    model, copies = features(), copy_to_host(monkeypatch)
    model(pack(SENTENCES))
    assert copies == [12] and len(model.cache) == 5
    model(pack([SENTENCES[3], [13, 14], SENTENCES[0], [15]]))
    assert copies == [12, 3] and len(model.cache) == 7
    model(pack(SENTENCES[::-1]))
    assert copies == [12, 3]


def test_remembered_states_are_the_computed_ones() -> None:
    """In the order in which they are asked for; of a text that comes twice, beside new ones, and where few fit."""
    plain = features(frozen=False)
    for model in (features(), features(cache_bytes=600)):
        for texts in (SENTENCES[:3], SENTENCES[::-1], [[13, 14], SENTENCES[0], [], SENTENCES[0], [15]], SENTENCES):
            packed = pack(texts)
            with torch.no_grad():
                torch.testing.assert_close(model(packed).last, plain(packed).last, rtol=1e-5, atol=1e-5)
    assert model.free_bytes == -1 and 0 < len(model.cache) < 7

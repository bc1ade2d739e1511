"""Linear layers with weights in the order of oneDNN: the same results, shared parameters, and nothing elsewhere."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from etude.nn import reordered_linear
from etude.nn.reordered_linear import MIN_ROWS, ReorderedLinear, reorder_weights, reorders_products

needs_order = pytest.mark.skipif(not reorders_products(), reason="torch reorders no weights on this machine")


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(24, 40), nn.Linear(40, 24, bias=False)
        self.again = self.up

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.again(self.down(self.up(x)))
        return result


@needs_order
def test_results_are_those_of_the_stored_weights() -> None:
    torch.manual_seed(0)
    tower = Tower().eval()
    inputs = [torch.randn(rows, 24) for rows in (1, MIN_ROWS - 1, MIN_ROWS, 77)] + [torch.randn(3, 7, 24)]
    with torch.no_grad():
        expected = [tower(x) for x in inputs]
        names, parameters = list(tower.state_dict()), list(tower.parameters())
        assert reorder_weights(tower) == 2  # one stands at two places
        assert isinstance(tower.up, ReorderedLinear) and tower.again is tower.up
        assert list(tower.state_dict()) == names
        assert all(left is right for left, right in zip(tower.parameters(), parameters, strict=True))
        for x, wanted in zip(inputs, expected, strict=True):
            torch.testing.assert_close(tower(x), wanted, atol=1e-5, rtol=1e-5)


@needs_order
def test_weights_that_do_not_fit_twice_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reordered_linear, "MOST_BYTES", 2 * 24 * 40 * 4 - 1)
    assert reorder_weights(Tower()) == 0
    assert reorder_weights(Tower().double()) == 0


def test_other_machines_keep_their_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reordered_linear.platform, "machine", lambda: "x86_64")
    tower = Tower()
    assert reorder_weights(tower) == 0 and type(tower.up) is nn.Linear

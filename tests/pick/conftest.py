"""Every pick of these tests runs at one pace: what else the machine does must not change what it decides."""

from __future__ import annotations

import pytest

from etude.pick import pace


@pytest.fixture(autouse=True)
def steady_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "measure", lambda: 0.01)

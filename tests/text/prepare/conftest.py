"""A small file of text, and blocks so small that it has several."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.text.prepare.small_texts import some_text

from etude.text.prepare import readers


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "town.txt"
    path.write_text("\n\n".join(some_text(120)))
    return path


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "BLOCK_BYTES", 1 << 12)

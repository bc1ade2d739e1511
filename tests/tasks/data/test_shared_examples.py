"""Examples that files have in common are counted, whatever numbers them."""

from __future__ import annotations

import pytest

from etude.errors import UserError
from etude.tasks.data.shared_examples import contents_of, warn_of_shared


def test_examples_of_an_earlier_part_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    train = contents_of([("a:1", {"id": 1, "text": "x", "label": "0"}), ("a:2", {"text": "y", "label": "1"})])
    dev = contents_of([("b:1", {"id": 7, "text": "x", "label": "0"}), ("b:2", UserError("bad"))])
    warn_of_shared({"train": train, "dev": dev}, {"train": "a", "dev": "b"})
    [message] = caplog.messages
    assert message.startswith("b: 1 of 1 examples of dev are in train too, so scores on them say little about new ones")
    caplog.clear()
    warn_of_shared({"train": train, "dev": contents_of([("b:1", {"text": "z"})])}, {"train": "a", "dev": "b"})
    assert not caplog.messages

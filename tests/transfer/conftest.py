"""Short bootstraps: no test of transfer looks at an interval; tests/tasks does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from etude.tasks import bootstrap


@pytest.fixture(scope="package", autouse=True)
def _short_bootstraps() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bootstrap, "ROUNDS", 20)
        patch.setattr(bootstrap.bootstrap, "__defaults__", (True, 0, 20))  # `rounds` is ROUNDS as it was at import
        yield

"""A server of ranks for all tests of this folder: torch's machinery is imported once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.train.forked_ranks import RankServer, serve_ranks


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankServer]:
    with serve_ranks(tmp_path_factory.mktemp("ranks")) as server:
        yield server

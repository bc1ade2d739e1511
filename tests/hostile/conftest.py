from __future__ import annotations

import pytest

from tests.hostile.samples import Samples, write_samples


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    return write_samples(tmp_path_factory.mktemp("samples"))

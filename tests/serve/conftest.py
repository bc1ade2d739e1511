"""What the tests of the server share: toy runs, and a browser where one is installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browsers import NO_BROWSER, find_browser
from tests.serve.toy_runs import ToyRuns


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> ToyRuns:
    return ToyRuns(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A Chromium in which evil.example is this machine; tests are skipped only where none is installed."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = find_browser()
    if path is None:
        pytest.skip(NO_BROWSER)
    with playwright.sync_playwright() as driver:
        arguments = ["--no-sandbox", "--host-resolver-rules=MAP *.example 127.0.0.1"]
        browser = driver.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()

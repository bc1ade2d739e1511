"""The whole site: builds without a warning, and asks for nothing from outside."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.browsers import NO_BROWSER, find_browser
from tests.docs.code_blocks import ROOT

pytestmark = pytest.mark.slow
VISITED = ("index", "ko/index", "tutorials/first-model", "systems/bert", "reference/settings", "results/index")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def test_pages_name_nothing_outside(site: Path) -> None:
    """No script, style, picture or font by an address of another host."""
    loading = re.compile(r'<(?:script|img|iframe|source)[^>]+src="?(?:https?:)?//|<link[^>]+href="?(?:https?:)?//')
    pages = list(site.rglob("*.html"))
    assert len(pages) > 50
    assert not [page.name for page in pages if loading.search(page.read_text(encoding="utf-8"))]


def test_korean_pages_say_their_language_and_have_its_labels(site: Path) -> None:
    """Without it lines break inside words: the style asks for the page's language."""
    english = (site / "index.html").read_text(encoding="utf-8")
    assert '<html lang="en"' in english and 'placeholder="Search"' in english
    pages = [page.read_text(encoding="utf-8") for page in (site / "ko").rglob("*.html")]
    assert pages
    assert all('<html lang="ko"' in page and 'placeholder="검색"' in page for page in pages)


def test_a_browser_asks_for_nothing_outside(site: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    program = find_browser()
    if program is None:
        pytest.skip(NO_BROWSER)
    with playwright.sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_context(offline=True).new_page()
        asked: list[str] = []
        errors: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        for name in VISITED:
            page.goto(f"file://{site}/{name}.html")
            assert page.locator("h1").count() >= 1, name
            wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            assert wide <= 0, f"{name} is wider than the window"
        page.goto(f"file://{site}/index.html")
        page.locator("input.md-search__input").fill("negative sampling")  # a worker cannot start from a file: ours does
        page.locator(".md-search-result__item a").first.wait_for()
        browser.close()
    assert not [url for url in asked if not url.startswith(("file:", "data:", "blob:"))]
    assert not errors

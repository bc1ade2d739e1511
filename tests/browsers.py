"""Finds the Chromium that tests of pages run in; `python -m tests.browsers` prints its path, or exits with code 1."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
NO_BROWSER = "no Chromium is installed: apt-get install chromium, or playwright install chromium"


def find_browser() -> Path | None:
    """The installed one of the system, else the one that playwright installed."""
    if path := next((path for name in NAMES if (path := shutil.which(name))), None):
        return Path(path)
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        return None
    with sync_playwright() as engine:
        path = Path(engine.chromium.executable_path)
    return path if path.exists() else None


if __name__ == "__main__":
    browser = find_browser()
    print(f"browser: {browser or NO_BROWSER}")
    sys.exit(browser is None)

"""Pages: their names are replaced, all of them, and what stands in a value is left alone."""

from __future__ import annotations

import re

import pytest

from etude.view.page_template import fill_template


def test_names_are_replaced_once() -> None:
    names = ("title", "model", "cut_en", "cut_ko", "thumb", "data")
    page = fill_template("etude.view", "attention.html", {name: f"<{name} {{{{style}}}}>" for name in names})
    assert "<title {{style}}>" in page
    assert page.count(".tongues label") == 1 and "{{thumb}}" not in page  # the style is there, once


def test_a_page_chooses_between_two_languages() -> None:
    values = dict.fromkeys(("title", "model", "cut_en", "cut_ko", "thumb", "data"), "")
    page = fill_template("etude.view", "attention.html", values)
    assert "#en:checked ~ * [lang=ko]" in page and not re.search(r"https?://|@import|url\(", page)
    assert page.count('lang="ko"') >= page.count('lang="en"') - 1 > 1  # one is the language of the file


def test_a_name_that_nobody_gave_is_a_fault() -> None:
    with pytest.raises(KeyError):
        fill_template("etude.view", "attention.html", {})

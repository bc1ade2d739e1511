"""Pictures of systems: drawn by code, committed as files, one for each page of a system."""

from __future__ import annotations

import re
from html import unescape

import pytest
from docs.generator.pictures import FOLDER, PICTURES

LETTER_WIDTH = 0.53  # of a letter beside its size, in the mean, of a sans-serif face; a syllable of Hangul has 1
TEXT = re.compile(r'<text[^>]*? x="([\d.-]+)"[^>]*? font-size="(\d+)" text-anchor="(\w+)">([^<]*)</text>')


def test_files_are_what_the_code_draws() -> None:
    """After a change: python -m docs.generator.pictures"""
    assert {file.stem for file in FOLDER.glob("*.svg")} == set(PICTURES)
    for name, draw in PICTURES.items():
        assert (FOLDER / f"{name}.svg").read_text(encoding="utf-8") == draw().svg(), name


def test_every_system_has_its_picture_formula_code_and_command() -> None:
    pages = {page.stem: page.read_text(encoding="utf-8") for page in FOLDER.parent.glob("*.md")}
    assert set(pages) - {"index"} == set(PICTURES)
    for name in PICTURES:
        assert f"({name}.md)" in pages["index"]
        for part in (f"(pictures/{name}.svg)", "$$", "](../../src/etude/", "```sh\netude ", "## Measured"):
            assert part in pages[name], (name, part)


@pytest.mark.parametrize("name", sorted(PICTURES))
def test_words_stay_inside_their_picture(name: str) -> None:
    """A caption that is too long is cut at the edges."""
    picture = PICTURES[name]()
    texts = [match for part in picture.parts for match in TEXT.findall(part)]
    assert texts
    for place, size, anchor, label in texts:
        width = sum(1.0 if "가" <= letter <= "힣" else LETTER_WIDTH for letter in unescape(label)) * int(size)
        left = float(place) - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
        assert left >= 0 and left + width <= picture.width, label

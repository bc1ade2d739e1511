"""Pictures of systems: drawn by code, committed as files, one for each page of a system."""

from __future__ import annotations

from docs.generator.pictures import FOLDER, PICTURES


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

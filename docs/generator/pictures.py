"""All pictures of systems, and the command that writes them: python -m docs.generator.pictures"""

from __future__ import annotations

from pathlib import Path

from docs.generator import pictures_transformers, pictures_words

FOLDER = Path(__file__).resolve().parents[1] / "systems" / "pictures"
PICTURES = {**pictures_words.PICTURES, **pictures_transformers.PICTURES}


def write() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    write()

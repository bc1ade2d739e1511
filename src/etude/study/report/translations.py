"""Texts of the report in English and Korean (translations.yaml).

`translate` puts both texts side by side, and the page shows the chosen language; in SVG they are `tspan`s.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from etude.recipes.document import parse_file
from etude.study.sections import Localized, localize

_FILE = Path(__file__).with_name("translations.yaml")

TRANSLATIONS: dict[str, tuple[str, str]] = {
    key: (texts["en"], texts["ko"])
    for key, texts in parse_file(_FILE, _FILE.name, f"{_FILE} is missing.").values.items()
}


def translate(key: str, **values: Any) -> str:
    """Return an entry in both languages as HTML; values are escaped."""
    english, korean = TRANSLATIONS[key]
    filled = {name: escape(str(value)) for name, value in values.items()}
    return _join_languages(escape(english, quote=False).format(**filled), escape(korean, quote=False).format(**filled))


def translate_html(key: str, **values: Any) -> str:
    """Return an entry like `translate`, with values that are HTML; (en, ko) where they differ by language."""
    parts = []
    for number, text in enumerate(TRANSLATIONS[key]):
        filled = {name: value[number] if isinstance(value, tuple) else value for name, value in values.items()}
        parts.append(escape(text, quote=False).format(**filled))
    return _join_languages(*parts)


def _join_languages(english: str, korean: str) -> str:
    english, korean = (text.replace(" %", "\N{NO-BREAK SPACE}%") for text in (english, korean))
    if english == korean:
        return english
    return f'<span lang="en">{english}</span><span lang="ko">{korean}</span>'


def localize_html(text: Localized) -> str:
    """Return a study's own text as HTML, in both languages where it has them."""
    return _join_languages(escape(localize(text, "en"), quote=False), escape(localize(text, "ko"), quote=False))


def localize_svg(text: Localized | tuple[str, str]) -> str:
    """Return a text in both languages for an SVG text element."""
    pair = text if isinstance(text, tuple) else (localize(text, "en"), localize(text, "ko"))
    english, korean = (escape(part, quote=False) for part in pair)
    if english == korean:
        return english
    return f'<tspan lang="en">{english}</tspan><tspan lang="ko">{korean}</tspan>'

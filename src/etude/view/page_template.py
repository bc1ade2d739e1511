"""HTML templates of self-contained pages: a file of a package with {{names}}, and the style that all share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files


def fill_template(package: str, name: str, values: Mapping[str, str]) -> str:
    """Return the file with its names replaced, {{style}} by view/page.css; values are inserted as they are."""
    style = files("etude.view").joinpath("page.css").read_text(encoding="utf-8")
    replacements = {"style": style.rstrip("\n"), **values}
    text = files(package).joinpath(name).read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: replacements[match[1]], text)

"""Pages that fetch nothing: an HTML file of a package with {{names}} in it, and the style that all of them share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files


def filled(package: str, name: str, values: Mapping[str, str]) -> str:
    """The file with its names replaced, {{style}} by view/page.css; what a value holds is left as it is."""
    style = files("etude.view").joinpath("page.css").read_text(encoding="utf-8")
    given = {"style": style.rstrip("\n"), **values}
    text = files(package).joinpath(name).read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: given[found[1]], text)

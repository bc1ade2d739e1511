"""Events of mkdocs: adds files outside docs/, fills in the references, draws formulas and pictures."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
for folder in (ROOT, ROOT / "src"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from docs.generator import commands, formulas, outside, python_api, recipe_list, results_list, settings  # noqa: E402
from mkdocs.config.defaults import MkDocsConfig  # noqa: E402
from mkdocs.structure.files import File, Files  # noqa: E402
from mkdocs.structure.pages import Page  # noqa: E402

REFERENCES = {
    "commands": commands.page,
    "settings": settings.page,
    "recipes": recipe_list.page,
    "python": python_api.page,
    "results": results_list.page,
}
MARK = re.compile(r"<!-- generated: (\w+) -->")
PICTURE = re.compile(r'<img alt="([^"]*)" src="[^"]*?pictures/([\w-]+)\.svg" ?/?>')


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds a page for each file outside docs/ that a page links to."""
    outside_files = [*outside.outside_files(), *recipe_list.FOLDER.glob("*.yaml"), *results_list.reports()]
    for file in dict.fromkeys(file for file in outside_files if not file.is_relative_to(outside.DOCS)):
        if file.suffix == ".md":
            content: str | bytes = file.read_text(encoding="utf-8")
        elif file.is_dir() and (file / "README.md").exists():
            continue
        else:
            content = outside.listing(file)
        files.append(File.generated(config, outside.site_path(file), content=content))
    return files


def source_of(page: Page) -> Path:
    """The file of the repository that a page shows."""
    path = outside.DOCS / page.file.src_uri
    if path.exists():
        return path
    candidates = [*outside.outside_files(), *results_list.reports()]
    return next(file for file in candidates if outside.site_path(file) == page.file.src_uri)


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Fills in generated references, and leads links out of docs/ to pages of the site."""
    if page.file.src_uri.startswith("source/"):
        return markdown
    markdown = MARK.sub(lambda match: REFERENCES[match[1]](), markdown)
    return outside.relink(markdown, source_of(page))


def on_page_content(html: str, **_: Any) -> str:
    """Formulas become MathML; pictures stand in the page itself, so that they take its colours."""
    return PICTURE.sub(_inline, formulas.draw_formulas(html))


def on_page_context(context: Any, page: Page, config: MkDocsConfig, **_: Any) -> Any:
    """Korean pages have Korean labels and say so: lines break between words, a screen reader speaks Korean."""
    config.theme["language"] = "ko" if page.file.src_uri.startswith("ko/") else "en"
    return context


def _inline(match: re.Match[str]) -> str:
    text = (outside.DOCS / "systems" / "pictures" / f"{match[2]}.svg").read_text(encoding="utf-8")
    drawing = re.sub(r"<style>.*?</style>", "", text[text.index("<svg") :], flags=re.DOTALL)
    return f'<figure class="picture">{drawing}</figure>'

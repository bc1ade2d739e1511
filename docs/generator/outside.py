"""Pages for files outside docs/ that a page links to, so that the site is whole without the repository.

A Markdown page (CONTRIBUTING.md, benchmarks/results/...) becomes a page; a source file becomes a listing. In the
repository the same links lead to the files themselves.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
EXTERNAL = re.compile(r"[a-z]+:|#|/")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".sh": "bash", ".json": "json"}


def site_path(file: Path) -> str:
    """Where a file of the repository lies in the site, as the path of a page."""
    if file.is_relative_to(DOCS):
        return file.relative_to(DOCS).as_posix()
    name = file.relative_to(ROOT)
    if file.suffix != ".md":
        return f"source/{name.as_posix()}.md"
    if name.parts[:2] == ("benchmarks", "results"):
        return f"results/{name.name}"
    return f"project/{name.as_posix().lower()}"


def target_of(link: str, page: Path) -> tuple[Path, str] | None:
    """The file that a link of a page leads to, and its anchor; None where the link leaves the repository."""
    if EXTERNAL.match(link):
        return None
    name, _, anchor = link.partition("#")
    return Path(os.path.normpath(page.parent / name)), anchor


def targets(page: Path, text: str) -> Iterator[Path]:
    for link in LINK.findall(without_code(text)):
        if (target := target_of(link, page)) is not None:
            yield target[0]


def outside_files() -> list[Path]:
    """Every file outside docs/ that is reached by links from the pages."""
    pages, found = sorted(DOCS.rglob("*.md")), list[Path]()
    while pages:
        page = pages.pop()
        for target in targets(page, page.read_text(encoding="utf-8")):
            if target.exists() and not target.is_relative_to(DOCS) and target not in found:
                found.append(target)
                if target.suffix == ".md":
                    pages.append(target)
    return sorted(found)


def listing(file: Path) -> str:
    """A source file, or the names in a folder, as a page; kept out of the search."""
    name = file.relative_to(ROOT).as_posix()
    head = f"---\nsearch:\n  exclude: true\nhide: [navigation, toc]\n---\n\n# `{name}`\n\n"
    if file.is_dir():
        names = sorted(f"{child.name}/" if child.is_dir() else child.name for child in file.iterdir())
        return head + "".join(f"- `{child}`\n" for child in names if not child.startswith((".", "__")))
    language = LANGUAGES.get(file.suffix, "text")
    text = file.read_text(encoding="utf-8")
    return f'{head}~~~~~~{{ .{language} linenums="1" }}\n{text}\n~~~~~~\n'


def without_code(text: str) -> str:
    """Fenced blocks and code in a line as blanks: brackets in them are no links."""
    text = re.sub(
        r"^(```+|~~~+).*?^\1", lambda match: "\n" * match[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL
    )
    return re.sub(r"`[^`\n]*`", lambda match: " " * len(match[0]), text)


def relink(text: str, page: Path) -> str:
    """The links of a page as they must stand in the site: files outside docs/ by their pages there."""
    here = Path(site_path(page)).parent

    def replace(match: re.Match[str]) -> str:
        target = target_of(match[0], page)
        if target is None or not target[0].exists():
            return match[0]
        file, anchor = target
        if file.is_dir() and (file / "README.md").exists():
            file = file / "README.md"
        if page.is_relative_to(DOCS) and file.is_relative_to(DOCS):
            return match[0]
        path = os.path.relpath(site_path(file), here)
        return Path(path).as_posix() + (f"#{anchor}" if anchor else "")

    return LINK.sub(replace, text)

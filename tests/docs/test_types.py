"""The Python of the pages passes a type checker: what users copy must not be red in their editor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.code_blocks import DOCS, PAGES, ROOT, read_blocks

README = [ROOT / "README.md", ROOT / "README.ko.md"]
SETTINGS = """
[mypy]
ignore_missing_imports = true
follow_imports = silent
error_summary = false
[mypy-transformers.*,datasets.*]
follow_imports = skip
"""
NOTEBOOK = DOCS / "tutorials" / "python.ipynb"


def check_types(folder: Path, *options: str) -> str:
    """What mypy prints of the files of a folder; "" where nothing is wrong."""
    variables = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    settings = folder / "mypy.ini"
    settings.write_text(SETTINGS)
    cache = ROOT / ".mypy_cache" / "-".join(["pages", *options])
    command = [sys.executable, "-m", "mypy", f"--config-file={settings}", f"--cache-dir={cache}", *options, "."]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True).stdout


@pytest.mark.slow  # a first run checks all of etude and takes a minute, later ones seconds
def test_python_of_the_pages_has_no_type_errors(tmp_path: Path) -> None:
    for number, page in enumerate([*README, *PAGES]):
        for block in read_blocks(page.read_text(encoding="utf-8")):
            if block.language == "python" and not block.title:
                name = f"{page.stem.replace('-', '_').replace('.', '_')}_{number}_line_{block.line}.py"
                (tmp_path / name).write_text(block.text, encoding="utf-8")
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    source = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    (tmp_path / "notebook.py").write_text(source + "\n", encoding="utf-8")
    assert check_types(tmp_path) == ""


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if page.stem == "objective"], ids=str)
def test_plugins_of_the_pages_pass_a_strict_check(tmp_path: Path, page: Path) -> None:
    for block in read_blocks(page.read_text(encoding="utf-8")):
        if block.title.endswith(".py"):
            (tmp_path / block.title).parent.mkdir(exist_ok=True)
            (tmp_path / block.title).write_text(block.text, encoding="utf-8")
    assert check_types(tmp_path, "--strict") == ""


@pytest.mark.slow
def test_one_of_the_kinds_that_load_returns_has_each_method(tmp_path: Path) -> None:
    (tmp_path / "use.py").write_text(
        "import etude\n"
        "model = etude.load('runs/bert')\n"
        "reveal_type(model.fill('a [MASK]'))\n"
        "reveal_type(model.fill(['a [MASK]']))\n"
        "reveal_type(model.complete('a', 'b'))\n"
        "model.filll('a')\n"
    )
    printed = check_types(tmp_path)
    assert '"list[etude.inference.fill.Guess]"' in printed and '"list[list[etude.inference.fill.Guess]]"' in printed
    assert "LinkGuess]" in printed and 'has no attribute "filll"' in printed

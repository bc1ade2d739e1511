"""The notebook of the Python interface: executed cell by cell in a kernel, and its objects show themselves."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.docs.code_blocks import DOCS, ROOT

NOTEBOOK = DOCS / "tutorials" / "python.ipynb"
SHOWN = {  # the last line of a cell, and what its table must hold
    "run": "bert-toy",
    "model": "parameters",
    "tuned": "classify",
    "picked": "Best",  # or "Best in time", where the machine is busy
    "report": "causal pre-training beats none",
    'etude.show.attention(model, "Conrad lives on Rose Lane.")': "Attention: 2 layers of 4 heads",
}


def read_cells() -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return cells


def last_line(cell: dict[str, Any]) -> str:
    return "".join(cell["source"]).strip().splitlines()[-1]


def test_the_notebook_carries_no_outputs() -> None:
    """Numbers of one machine would stay there for ever; whoever runs it sees their own."""
    code = [cell for cell in read_cells() if cell["cell_type"] == "code"]
    assert len(code) > 8 and not any(cell["outputs"] or cell["execution_count"] for cell in code)
    assert set(SHOWN) <= {last_line(cell) for cell in code}
    assert all(compile("".join(cell["source"]), "cell", "exec") for cell in code)


@pytest.mark.slow
def test_every_cell_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="nbclient and ipykernel are not installed")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    html = {
        last_line(cell): output["data"]["text/html"]
        for cell in notebook.cells
        if cell["cell_type"] == "code"
        for output in cell["outputs"]
        if "text/html" in output.get("data", {})
    }
    assert {line: text in html.get(line, "") for line, text in SHOWN.items()} == dict.fromkeys(SHOWN, True)
    printed = "".join(output.get("text", "") for output in notebook.cells[-2]["outputs"])
    assert "Did you mean 'bert-toy'" in printed

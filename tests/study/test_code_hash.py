"""Fingerprints of code: what is imported counts; words, layout and what only reports do not."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from etude.study import code_hash


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    code_hash.forget_sources()
    yield
    code_hash.forget_sources()


def test_code_that_matters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nn").mkdir()
    (tmp_path / "errors.py").write_text("print(1)\n")
    loss, unused = tmp_path / "nn" / "loss.py", tmp_path / "unused.py"

    def fingerprint() -> str:
        code_hash.forget_sources()
        return code_hash.fingerprint("etude.model")

    monkeypatch.setattr(code_hash, "ROOT", tmp_path)
    (tmp_path / "model.py").write_text(
        "def f():\n    from etude.nn import loss\n    import etude.errors\n    return loss\n"
    )
    loss.write_text('"""Words."""\n\nX = 1\n')
    unused.write_text("Y = 1\n")
    before = fingerprint()
    loss.write_text('"""Other words."""\n# and a comment\nX  =  1\n')
    unused.write_text("Y = 2\n")
    (tmp_path / "errors.py").write_text("print(2)\n")
    assert fingerprint() == before, "words, layout, what is not imported, and what only reports do not count"
    loss.write_text("X = 2\n")
    assert fingerprint() != before, "what a module imports counts, also inside a function"


def test_a_module_that_is_named_counts_even_where_it_would_be_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a fingerprint of it is that of nothing, and no edit of it is ever seen."""
    monkeypatch.setattr(code_hash, "ROOT", tmp_path)
    (tmp_path / "errors.py").write_text("X = 1\n")
    before, nothing = code_hash.fingerprint("etude.errors"), code_hash.fingerprint()
    (tmp_path / "errors.py").write_text("X = 2\n")
    code_hash.forget_sources()
    assert len({before, nothing, code_hash.fingerprint("etude.errors")}) == 3


def test_the_real_code_is_found() -> None:
    masked = code_hash.fingerprint("etude.objectives.masked")
    assert masked != code_hash.fingerprint("etude.objectives.causal") and json.dumps(masked)


def test_a_fingerprint_is_that_of_every_version_of_python() -> None:
    """Python 3.12 added empty fields to the syntax tree, and cells done there were unknown under 3.11."""
    source = "class A(B):\n    def f(self, x=None, *y: int) -> str:\n        return g(x, *y)\n"
    newer = ast.parse(source)
    for node in ast.walk(newer):
        node._fields = (*node._fields, "type_params_of_tomorrow")  # type: ignore[misc]
        node.type_params_of_tomorrow = []  # type: ignore[attr-defined]
    assert code_hash._hash_tree(newer) == code_hash._hash_tree(ast.parse(source))
    altered = source.replace("x=None", "x=0")
    assert code_hash._hash_tree(ast.parse(altered)) != code_hash._hash_tree(ast.parse(source))

"""A hash of the code that matters to a result: what the modules of a cell import, all the way down.

Comments, docstrings and layout do not count (the syntax tree is hashed), nor do modules that only tell what happened:
changing a message must not throw away a day of results, and changing a loss must.
"""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]  # of the package
# say how a run goes, or write it in another form; nothing that is learnt or scored passes through them
SILENT = ("etude.hub", "etude.runs.model_card", "etude.cli", "etude.train.progress", "etude.train.metrics_log", "etude.errors",
          "etude.transfer.model_card", "etude.transfer.error_report", "etude.train.memory", "etude.study")  # fmt: skip


@cache
def fingerprint(*modules: str) -> str:
    """One hash over the modules named and all of ours that they import."""
    waiting, found = list(modules), set()
    while waiting:
        name = waiting.pop()
        if name in found or _silent(name):
            continue
        found.add(name)
        waiting += _imports(name)
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(found):
        digest.update(f"{name} {_tree(name)}\n".encode())
    return digest.hexdigest()


def _silent(name: str) -> bool:
    return any(name == silent or name.startswith(silent + ".") for silent in SILENT)


def _file(name: str) -> Path | None:
    inside = ROOT.joinpath(*name.split(".")[1:])
    for file in (inside.with_suffix(".py"), inside / "__init__.py"):
        if file.is_file():
            return file
    return None


@cache
def _parsed(name: str) -> ast.Module:
    file = _file(name)
    assert file is not None
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def _imports(name: str) -> tuple[str, ...]:
    """Modules of ours that a module imports, wherever in it; imports for the type checker alone are none."""
    found: list[str] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Import):
            found.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.append(node.module)
            found.extend(f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(_parsed(name))
    own = {one for one in found if one.startswith("etude.") and _file(one) is not None}
    return tuple(sorted(own))


@cache
def _tree(name: str) -> str:
    tree = _parsed(name)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                body[0] = ast.Pass()
    return hashlib.blake2b(ast.dump(tree).encode(), digest_size=16).hexdigest()

"""A hash of the code that matters to a result: what the modules of a cell import, all the way down.

Comments, docstrings and layout do not count (the syntax tree is hashed), nor do modules that only tell what happened:
changing a message must not throw away a day of results, and changing a loss must. A kind of another package counts
with the modules of its package that it imports, and with those of ours.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
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
    head, *rest = name.split(".")
    inside = (ROOT if head == "etude" else _package_folder(head)).joinpath(*rest)
    for file in (inside.with_suffix(".py"), inside / "__init__.py"):
        if file.is_file():
            return file
    return None


@cache
def _package_folder(package: str) -> Path:
    """The folder of another package; of a single module, its path without the ending."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return Path(package)  # nowhere: it holds no files
    file = Path(spec.origin)
    return file.parent if file.name == "__init__.py" else file.with_suffix("")


@cache
def _parsed(name: str) -> ast.Module:
    file = _file(name)
    assert file is not None
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def _imports(name: str) -> tuple[str, ...]:
    """Modules of ours and of its own package that a module imports, wherever in it; not for the type checker alone."""
    found: list[str] = []
    file = _file(name)
    package = name.split(".") if file is not None and file.name == "__init__.py" else name.split(".")[:-1]

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Import):
            found.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*start, *([node.module] if node.module else [])])
            found.append(module)
            found.extend(f"{module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(_parsed(name))
    roots = ("etude", name.partition(".")[0])
    own = {module for module in found if module.partition(".")[0] in roots and _file(module) is not None}
    own.discard("etude")  # the package itself is the interface over everything
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

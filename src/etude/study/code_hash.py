"""Hash of the code behind a result: modules and all project modules they import, transitively.

Comments, docstrings and layout do not count (the syntax tree is hashed), nor do modules that only report:
changing a message must not invalidate a day of results, and changing a loss must. A kind of another package counts
with the modules it imports from its own package and from this one.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]  # of the package
# What reports on a run, or finds and refuses things; nothing that is learnt or scored passes through it.
REPORTING_MODULES = {
    "etude.errors",
    "etude.extras",
    "etude.kinds",
    "etude.notebook",
    "etude.runs.model_card",
    "etude.runs.staging",
    "etude.train.failures",
    "etude.train.memory",
    "etude.train.metrics_log",
    "etude.train.peak",
    "etude.train.progress",
    "etude.transfer.error_report",
    "etude.transfer.model_card",
}


_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")  # fields of the syntax tree that hold statements


@cache
def fingerprint(*modules: str) -> str:
    """Hash the named modules and all project modules they import; cached at the first call."""
    pending, hashes = list(modules), {}
    while pending:
        name = pending.pop()
        if name not in hashes:
            imported, hashes[name] = _inspect(name)
            pending += imported
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(hashes):
        digest.update(f"{name} {hashes[name]}\n".encode())
    return digest.hexdigest()


def forget_sources() -> None:
    """Let the next fingerprints read the sources again: a process that edits them, as a test does."""
    fingerprint.cache_clear()
    _inspect.cache_clear()


@cache
def _inspect(name: str) -> tuple[tuple[str, ...], str]:
    """Return the project modules that a module imports, and its hash; read once for all fingerprints."""
    imported, digest = _analyse(name, *_read(name))
    counted = (module for module in imported if module not in REPORTING_MODULES and _find_file(module) is not None)
    return tuple(counted), digest


def _read(name: str) -> tuple[str, bool]:
    """Read a module's source, and whether it is the `__init__.py` of a package."""
    file = _find_file(name)
    assert file is not None, name
    return file.read_text(encoding="utf-8"), file.name == "__init__.py"


def _find_file(name: str) -> Path | None:
    head, *rest = name.split(".")
    inside = (ROOT if head == "etude" else _package_folder(head)).joinpath(*rest)
    for file in (inside.with_suffix(".py"), inside / "__init__.py"):
        if file.is_file():
            return file
    return None


@cache
def _package_folder(package: str) -> Path:
    """Return the folder of another package; for a single module, its path without the suffix."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return Path(package)  # nowhere: it holds no files
    file = Path(spec.origin)
    return file.parent if file.name == "__init__.py" else file.with_suffix("")


@cache
def _analyse(name: str, source: str, is_package: bool) -> tuple[tuple[str, ...], str]:
    """Return the imports of a module and a hash of its syntax tree; cached by source."""
    tree = ast.parse(source)
    imported = _list_imports(tree, name.split(".") if is_package else name.split(".")[:-1])
    roots = ("etude", name.partition(".")[0])
    own = {module for module in imported if module.partition(".")[0] in roots}
    own.discard("etude")  # the package itself is the interface over everything
    return tuple(sorted(own)), _hash_tree(tree)


def _list_imports(tree: ast.Module, package: list[str]) -> list[str]:
    """List every name a module imports, inside functions too, except under TYPE_CHECKING."""
    imported: list[str] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and _is_for_types(node.test):
            return
        if isinstance(node, ast.Import):
            imported.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*start, *([node.module] if node.module else [])])
            imported.append(module)
            imported.extend(f"{module}.{alias.name}" for alias in node.names)
        for child in _iterate_blocks(node):
            visit(child)

    visit(tree)
    return imported


def _is_for_types(test: ast.expr) -> bool:
    """Whether a condition names TYPE_CHECKING."""
    names = (getattr(node, "id", getattr(node, "attr", "")) for node in ast.walk(test))
    return any("TYPE_CHECKING" in name for name in names)


def _hash_tree(tree: ast.Module) -> str:
    """Hash the syntax tree without docstrings."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                body[0] = ast.Pass()
        pending += _iterate_blocks(node)
    return hashlib.blake2b(_dump(tree).encode(), digest_size=16).hexdigest()


def _dump(value: object) -> str:
    """Write a tree as text, without empty fields: versions of Python differ in which there are and which are shown."""
    if isinstance(value, list):
        return f"[{', '.join([_dump(part) for part in value])}]"
    if not isinstance(value, ast.AST):
        return repr(value)
    fields = []
    for name in _sort_fields(value._fields):
        part = getattr(value, name, None)
        if part is not None and part != []:
            fields.append(f"{name}={_dump(part)}")
    return f"{type(value).__name__}({', '.join(fields)})"


@cache
def _sort_fields(names: tuple[str, ...]) -> list[str]:
    """Sort the fields of a kind of node; once for each kind, where a tree has hundreds of thousands of nodes."""
    return sorted(names)


def _iterate_blocks(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements, handlers and cases directly within a node: no expression holds an import or a docstring."""
    for field in _BLOCKS:
        yield from getattr(node, field, ())

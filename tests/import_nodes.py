"""The imports of a source file, parsed once a test process: several tests look at all files of the package."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")  # fields that hold statements


@cache
def import_nodes(source: str) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Return every import of a source, inside functions and for the type checker too."""
    return tuple(_iterate_imports(ast.parse(source)))


def _iterate_imports(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node
    for field in _BLOCKS:  # no expression holds an import
        for child in getattr(node, field, ()):
            yield from _iterate_imports(child)

"""A package that is called as a function keeps its modules."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path

import pytest

from etude.verbs.callable_package import make_callable


def double(number: int, *, plus: int = 0) -> int:
    return 2 * number + plus


def test_a_package_can_be_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sample_package").mkdir()
    (tmp_path / "sample_package" / "__init__.py").write_text('"""A sample."""\nCONSTANT = 3\n', encoding="utf-8")
    (tmp_path / "sample_package" / "inner.py").write_text("VALUE = 5\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    make_callable("sample_package", double)
    package = sys.modules["sample_package"]
    assert callable(package) and package(4, plus=1) == 9
    assert package.CONSTANT == 3 and package.__doc__ == "A sample."
    assert inspect.signature(package) == inspect.signature(double)
    assert importlib.import_module("sample_package.inner").VALUE == 5
    with pytest.raises(TypeError, match="times"):
        package(1, times=2)

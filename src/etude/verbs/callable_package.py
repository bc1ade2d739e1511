"""Packages that can be called: `etude.study` is both the verb and the folder of its modules."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any


class CallablePackage(ModuleType):
    """A package that is also the function of that name, with its signature."""

    __wrapped__: Callable[..., Any]

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.__wrapped__(*args, **options)


def make_callable(package: str, function: Callable[..., Any]) -> None:
    """Imports a package, whose own file must be light, and lets it be called as `function`."""
    module = importlib.import_module(package)
    module.__class__ = CallablePackage
    module.__wrapped__ = function  # type: ignore[attr-defined]  # what inspect.signature follows

"""Import every module of Etude: the process that lives are forked from has them, so that a life costs no imports."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil

import etude
from tests.half_precision import open_means_float32

for module in pkgutil.walk_packages(etude.__path__, "etude."):
    if not module.name.endswith("__main__"):
        with contextlib.suppress(ImportError):  # of packages that need not be there
            importlib.import_module(module.name)
open_means_float32()

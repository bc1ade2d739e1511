"""The inner loops of word-vector training: one update after another, as the original programs make them.

    compiled.py   by numba, where it is installed (pip install etude[fast])
    plain.py      by numpy, the same updates in the same order, some hundred times slower
    tables.py     what both read: noise, Huffman paths, sub-words, the sigmoid as a table

Both draw the same noise from the same hashes, so their results differ by rounding alone. Which one is at work is told
once, in one line, where it is the slow one.
"""

from __future__ import annotations

import importlib
import logging
from functools import cache
from types import ModuleType

log = logging.getLogger("etude")


@cache
def inner_loops() -> ModuleType:
    """The module of the loops: compiled where numba can be imported, plain otherwise."""
    try:
        return importlib.import_module("etude.nn.kernels.compiled")
    except ImportError as missing:
        if missing.name not in ("numba", "llvmlite"):
            raise
        log.warning(
            "numba is not installed: word vectors are trained by numpy in one thread, with the same result and some "
            "hundred times slower. 'pip install etude[fast]' brings it."
        )
        return importlib.import_module("etude.nn.kernels.plain")

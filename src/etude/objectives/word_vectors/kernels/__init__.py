"""The inner loops of word-vector training: one update after another, as the original programs make them.

    windows_compiled.py, glove_compiled.py   by numba, where it is installed (pip install 'etude[fast]')
    windows_plain.py, glove_plain.py         by numpy, the same updates in the same order, some hundred times slower
    tables.py                                what they read: noise, Huffman paths, sub-words, the sigmoid as a table

Both ways draw the same noise from the same hashes, so their results differ by rounding alone. Which one is at work is
told once, in one line, where it is the slow one.
"""

from __future__ import annotations

import importlib
import logging
from functools import cache
from types import ModuleType
from typing import Literal

from etude.extras import install_command, is_installed

log = logging.getLogger("etude")


@cache
def compiles() -> bool:
    """Whether numba is installed; a warning says so, once, where it is not."""
    if is_installed("numba"):
        return True
    log.warning(
        "numba is not installed: word vectors are trained by numpy in one thread, with the same result and some "
        f"hundred times slower. To install it: {install_command('numba')}."
    )
    return False


def inner_loops(of: Literal["windows", "glove"]) -> ModuleType:
    """The module of the loops of a system."""
    return importlib.import_module(
        f"etude.objectives.word_vectors.kernels.{of}_{'compiled' if compiles() else 'plain'}"
    )

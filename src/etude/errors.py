"""The one exception that a user's input can cause.

Its text is the whole answer: what is wrong, where (file and line), and what to do. The command line prints it without
a traceback and exits with code 2; in Python it is an ordinary exception.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Invalid input, described in one message: what, where, what to do."""


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Return a hint for a mistyped name: " Did you mean 'width'?", or the list of known names."""
    known = sorted(known)
    matches = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if matches:
        return f" Did you mean '{matches[0]}'?"
    return f" Known: {', '.join(known)}." if known else ""

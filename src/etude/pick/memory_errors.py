"""Memory that runs out: the end of a contender, not of the pick."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from etude.errors import UserError
from etude.train.failures import describe_memory_error, is_memory_error


@contextmanager
def explain_memory_error() -> Iterator[None]:
    """Turn what torch and numpy raise where memory runs out into a UserError.

    Around a trial, not inside: its failure must not be kept, since another time there may be more memory.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_memory_error(error):
            raise
        raise UserError(describe_memory_error(error)) from None

"""Texts that a caller in Python gives: a list, a generator, a column of a table; and what is no list of texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from etude.errors import UserError


def require_texts(texts: Iterable[str], verb: str) -> list[str]:
    """Return texts as a list; UserError where they are something else.

    Iterating a table or a mapping gives the names of its columns, which would pass for texts.
    """
    if isinstance(texts, str):
        raise UserError(f"{verb} takes a list of texts: write {verb}([text]).")
    if isinstance(texts, Mapping) or hasattr(texts, "columns"):
        raise UserError(f"{verb} takes a list of texts, and a table is several columns: give one, as table['text'].")
    if not isinstance(texts, Iterable):
        raise UserError(f"{verb} takes a list of texts, not {texts!r:.80}.")
    listed = list(texts)
    for number, text in enumerate(listed):
        if not isinstance(text, str):
            raise UserError(f"Text {number} is {text!r:.80}, not a text: leave it out.")
    return listed


def require_text(text: object, verb: str) -> str:
    """Return one text; UserError where it is something else, such as a list of one."""
    if not isinstance(text, str):
        raise UserError(f"{verb} takes one text, not {text!r:.80}.")
    return text

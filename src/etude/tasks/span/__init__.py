"""Span questions: an answer is a span of a text. The task is `task.py`; the other files are its parts."""

from etude.tasks.span.task import (
    COLUMNS,
    FILES,
    INPUTS,
    PROMPT,
    SCORES,
    SUMMARY,
    TEXTS,
    Settings,
    Span,
    build,
    learn,
    majority,
    parse,
    read,
    records,
    scoring,
    strata,
)

__all__ = [
    "COLUMNS", "FILES", "INPUTS", "PROMPT", "SCORES", "SUMMARY", "TEXTS", "Settings", "Span", "build", "learn",
    "majority", "parse", "read", "records", "scoring", "strata",
]  # fmt: skip

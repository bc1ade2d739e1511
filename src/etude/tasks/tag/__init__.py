"""Tagging: one tag a word. The task is `task.py`; the other files are its parts."""

from etude.tasks.tag.task import (
    COLUMNS,
    FILES,
    INPUTS,
    PROMPT,
    SCORES,
    SUMMARY,
    TEXTS,
    Settings,
    Tagger,
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
    "COLUMNS", "FILES", "INPUTS", "PROMPT", "SCORES", "SUMMARY", "TEXTS", "Settings", "Tagger", "build", "learn",
    "majority", "parse", "read", "records", "scoring", "strata",
]  # fmt: skip

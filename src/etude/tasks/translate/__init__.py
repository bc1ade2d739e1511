"""Translation: a text in another language. The task is `task.py`; the other files are its parts."""

from etude.tasks.translate.task import (
    COLUMNS,
    FILES,
    INPUTS,
    PROMPT,
    SCORES,
    SUMMARY,
    TEXTS,
    Settings,
    TranslateTask,
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
    "COLUMNS", "FILES", "INPUTS", "PROMPT", "SCORES", "SUMMARY", "TEXTS", "Settings", "TranslateTask", "build", "learn",
    "majority", "parse", "read", "records", "scoring", "strata",
]  # fmt: skip

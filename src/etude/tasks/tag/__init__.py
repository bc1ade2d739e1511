"""Tagging: one tag a word. The task is `task.py`; the other files are its parts."""

from etude.tasks.tag.task import COLUMNS, FILES, SCORES, SUMMARY, Settings, Tagger, build, learn, parse, read

__all__ = ["COLUMNS", "FILES", "SCORES", "SUMMARY", "Settings", "Tagger", "build", "learn", "parse", "read"]

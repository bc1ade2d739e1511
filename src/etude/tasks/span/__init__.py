"""Span questions: an answer is a span of a text. The task is `task.py`; the other files are its parts."""

from etude.tasks.span.task import COLUMNS, INPUTS, SCORES, SUMMARY, Settings, Span, build, learn, official, parse, read

__all__ = ["COLUMNS", "INPUTS", "SCORES", "SUMMARY", "Settings", "Span", "build", "learn", "official", "parse", "read"]

"""How the examples of a task are put in a prompt: the fields of a template, and what kind of answer follows.

    LabelPrompt    the answer is a label; a prompt file gives words for it
    ChoicePrompt   the example brings its answers to choose from
    WritePrompt    the model writes an answer, which is compared with references
    WordPrompt     the answer is the word that follows

A kind of task names its form as `PROMPT` (tasks/base.py); transfer/prompt.py asks the model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

E = TypeVar("E")


@dataclass(frozen=True)
class PromptForm(ABC, Generic[E]):
    fields: tuple[str, ...]  # what a template may name in braces

    @abstractmethod
    def values(self, example: E) -> Mapping[str, str]:
        """The text of every field."""


class LabelPrompt(PromptForm[E]):
    @abstractmethod
    def label(self, example: E) -> str:
        """The gold label."""


class ChoicePrompt(PromptForm[E]):
    @abstractmethod
    def choices(self, example: E) -> Sequence[str]:
        """The answers to choose from."""

    @abstractmethod
    def gold(self, example: E) -> int:
        """The number of the correct choice."""


class WritePrompt(PromptForm[E]):
    @abstractmethod
    def references(self, example: E) -> Sequence[str]:
        """All correct answers; () where a question has none."""


class WordPrompt(PromptForm[E]):
    @abstractmethod
    def word(self, example: E) -> str:
        """The word that follows."""

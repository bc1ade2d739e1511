"""Prompt files: a task as text for a language model, in YAML (GPT-3, section 2.4 and appendix G).

    kind: classify                          # or pair, choice, span: files are read as these tasks read them; or word
    train: train.tsv                        # where examples to show come from
    test: dev.tsv                           # what is asked
    template: "Review: {text}\\nSentiment:"  # of one example, up to its answer
    answers: {"0": negative, "1": positive} # words for the labels; the labels themselves if left out

The template's fields are those of the task: {text}; {first} and {second}; {question}, and {choices}, which lists them
as "A. …" a line each; {context} and {question}; of a word, {context}. Shown examples stand with their answers before
what is asked, an empty line between them, an `instruction` before all. Files are looked for beside this one.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, Self

from pydantic import Field, model_validator

from etude.errors import UserError, suggest_name
from etude.inference.likelihood import Rule
from etude.recipes.document import parse_file
from etude.recipes.schema import validate_settings
from etude.runs.task_plan import task_module
from etude.settings import Strict
from etude.tasks.data.examples import Examples, MissingColumnError, label_names
from etude.tasks.prompt_form import ChoicePrompt, LabelPrompt, PromptForm, WordPrompt, WritePrompt
from etude.tasks.span.answers import Rules
from etude.transfer import last_word

LAST_WORD = "word"  # a kind that only prompts have


class PromptKind(Protocol):
    """The part of a task kind that prompts need."""

    @property
    def PROMPT(self) -> PromptForm[Any] | None: ...

    @property
    def COLUMNS(self) -> Mapping[str, tuple[str, ...]]: ...

    def read(self, path: str | Path, columns: Mapping[str, str] | None = None, skip_bad: bool = False) -> Examples[Any]:
        """Read all examples of a file."""


def prompt_kind(kind: str) -> PromptKind:
    """Return the module of a kind of task, or of last-word prediction."""
    return last_word if kind == LAST_WORD else task_module(kind)


class PromptFile(Strict):
    """The settings of a prompt file."""

    kind: str = Field(description="a task that can be put in words, or word: the last word of a text")
    train: str | None = Field(default=None, description="examples to show; needed for one or more")
    test: str = Field(description="examples to ask")
    columns: dict[str, str] = Field(default_factory=dict, description="role -> name of a column")
    template: str = Field(description="one example up to its answer, with the fields of the task in braces")
    answers: dict[str, str] = Field(
        default_factory=dict, description="label -> its words; the label itself if left out"
    )
    instruction: str = Field(default="", description="stands once, before everything")
    delimiter: str = Field(default=" ", description="before an answer, and part of what is predicted")
    separator: str = Field(default="\n\n", description="between examples")
    compared: Rule = Field(default="tokens", description="what of the likelihood of answers is compared")
    answer_context: str = Field(default="Answer:", description="what stands before an answer without its question")
    tokens: int = Field(default=32, ge=1, description="of a written answer at most (span)")
    beams: int = Field(default=4, ge=1, description="of the search for a written answer (span)")
    penalty: float = Field(default=0.6, ge=0, description="of length, in that search")
    rules: Rules = Field(default="squad1", description="by which written answers are compared with the right ones")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if prompt_kind(self.kind).PROMPT is None:
            raise ValueError(
                f"kind: the examples of a {self.kind} task cannot be put in words; fine-tune a model on them"
            )
        roles = prompt_kind(self.kind).COLUMNS
        strange = next((role for role in self.columns if role not in roles), None)
        if strange is not None:
            raise ValueError(f"columns: the task {self.kind} has no role '{strange}'.{suggest_name(strange, roles)}")
        names = template_fields(self.template)
        fields = self.form.fields
        unknown = [name for name in names if name not in fields]
        if unknown:
            raise ValueError(
                f"template: the task {self.kind} has no field {{{unknown[0]}}}.{suggest_name(unknown[0], fields)}"
            )
        if not names:
            fields_in_braces = ", ".join(f"{{{name}}}" for name in fields)
            raise ValueError(f"template: it names no field of an example: {fields_in_braces}")
        if self.answers and not isinstance(self.form, LabelPrompt):
            raise ValueError(f"answers: the examples of a {self.kind} task bring their own; leave it out")
        if not self.separator:
            raise ValueError("separator: examples would run into each other; give a line end")
        return self

    @classmethod
    def load(cls, path: str | Path) -> Self:
        absent = f"There is no prompt file {path}. docs/prompting.md shows one."
        document = parse_file(Path(path), str(path), absent)
        return validate_settings(cls, document.values, document.rooted("prompt"), "prompt")

    @property
    def form(self) -> PromptForm[Any]:
        form = prompt_kind(self.kind).PROMPT
        assert form is not None  # refused above
        return form

    def read(self, path: str | Path, skip_bad: bool = False) -> Examples[Any]:
        try:
            return prompt_kind(self.kind).read(path, self.columns, skip_bad)
        except MissingColumnError as error:  # its advice names an option that `etude prompt` does not have
            advice = f"Name yours in the prompt file by its role, as in {error.setting}."
            raise UserError(error.message, advice) from None

    def labels(self, *parts: Examples[Any]) -> list[str]:
        """Return the labels of a classification in their usual order; [] for other forms. Their words must differ."""
        form = self.form
        if not isinstance(form, LabelPrompt):
            return []
        labels = label_names(form.label(example) for examples in parts for example in examples)
        if self.answers:
            for examples in parts:
                for example, where in zip(examples, examples.places, strict=True):
                    if form.label(example) not in self.answers:
                        raise UserError(
                            f"{where}: the prompt file has no words for the label '{form.label(example)}': "
                            f"its answers are for {', '.join(self.answers)}."
                        )
            labels = label_names(self.answers)
        words = [self.words(label) for label in labels]
        twice = [word for word in words if words.count(word) > 1]
        if twice:
            raise UserError(f"Two labels have the same words, '{twice[0]}': nothing could tell them apart.")
        if len(labels) < 2:
            raise UserError(f"There is only one label, {labels}: nothing is asked. Name the others in answers.")
        return labels

    def words(self, label: str) -> str:
        return self.answers.get(label, label)

    # --- an example in words ------------------------------------------------------------------------

    def question(self, example: Any) -> str:
        """Fill the template with an example's fields, up to its answer."""
        values = self.form.values(example)
        parts = string.Formatter().parse(self.template)
        return "".join(text + (values[name] if name is not None else "") for text, name, _, _ in parts)

    def demonstration(self, example: Any) -> str:
        """Return an example with its answer."""
        return self.question(example) + self.delimiter + self.gold_answer(example)

    def gold_answer(self, example: Any) -> str:
        """Return the words of the correct answer; empty for a question without one."""
        form = self.form
        if isinstance(form, LabelPrompt):
            return self.words(form.label(example))
        if isinstance(form, ChoicePrompt):
            return form.choices(example)[form.gold(example)]
        if isinstance(form, WritePrompt):
            return next(iter(form.references(example)), "")
        assert isinstance(form, WordPrompt)
        return form.word(example)


def template_fields(template: str) -> list[str]:
    """Return the field names of a template; a literal brace is written twice."""
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as problem:
        raise ValueError(f"template: {problem}; a brace that is no field is written twice, {{{{") from None
    for _, name, form, conversion in parts:
        if name is not None and (form or conversion or not name.isidentifier()):
            raise ValueError(f"template: {{{name}}} is no field: write its name alone in the braces")
    return [name for _, name, _, _ in parts if name is not None]

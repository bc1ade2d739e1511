"""How a task is put to a language model in words: a YAML file (GPT-3, section 2.4 and appendix G).

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
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from etude.errors import UserError, suggest_name
from etude.inference.likelihood import Rule
from etude.recipes.document import parse_file
from etude.recipes.schema import checked
from etude.settings import Strict
from etude.tasks import choice, classify, pair
from etude.tasks.data.examples import Examples, label_names
from etude.tasks.span import task as span
from etude.tasks.span.answers import Rules
from etude.transfer import last_word as last_words

MODULES: dict[str, Any] = {"classify": classify, "pair": pair, "choice": choice, "span": span, "word": last_words}
FIELDS = {
    "classify": ("text",),
    "pair": ("first", "second"),
    "choice": ("question", "choices"),
    "span": ("context", "question"),
    "word": ("context",),
}


class PromptFile(Strict):
    kind: Literal["classify", "pair", "choice", "span", "word"]
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
    compared: Rule = Field(default="tokens", description="how answers are compared; inference/likelihood.py tells")
    answer_context: str = Field(default="Answer:", description="what stands before an answer without its question")
    tokens: int = Field(default=32, ge=1, description="of a written answer at most (span)")
    beams: int = Field(default=4, ge=1, description="of the search for a written answer (span)")
    penalty: float = Field(default=0.6, ge=0, description="of length, in that search")
    rules: Rules = Field(default="squad1", description="by which written answers are compared with the right ones")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        named = fields_of(self.template)
        known = FIELDS[self.kind]
        unknown = [name for name in named if name not in known]
        if unknown:
            raise ValueError(
                f"template: the task {self.kind} has no field {{{unknown[0]}}}.{suggest_name(unknown[0], known)}"
            )
        if not named:
            raise ValueError(f"template: it names no field of an example: {', '.join(f'{{{name}}}' for name in known)}")
        if self.answers and self.kind not in ("classify", "pair"):
            raise ValueError(f"answers: the examples of a {self.kind} task bring their own; leave it out")
        if not self.separator:
            raise ValueError("separator: examples would run into each other; give a line end")
        return self

    @classmethod
    def load(cls, path: str | Path) -> Self:
        absent = f"There is no prompt file {path}. docs/prompting.md shows one."
        document = parse_file(Path(path), str(path), absent)
        return checked(cls, document.values, document.rooted("prompt"), "prompt")

    def read(self, path: str | Path, skip_bad: bool = False) -> Examples[Any]:
        return MODULES[self.kind].read(path, self.columns, skip_bad)

    def labels(self, *read: Examples[Any]) -> list[str]:
        """Of a classification, in their usual order. Each has words, and no two have the same."""
        found = label_names(item.label for examples in read for item in examples)
        if self.answers:
            for examples in read:
                for item, where in zip(examples, examples.places, strict=True):
                    if item.label not in self.answers:
                        raise UserError(
                            f"{where}: the prompt file has no words for the label '{item.label}': "
                            f"its answers are for {', '.join(self.answers)}."
                        )
            found = label_names(self.answers)
        words = [self.words(label) for label in found]
        twice = [word for word in words if words.count(word) > 1]
        if twice:
            raise UserError(f"Two labels have the same words, '{twice[0]}': nothing could tell them apart.")
        if len(found) < 2:
            raise UserError(f"There is only one label, {found}: nothing is asked. Name the others in answers.")
        return found

    def words(self, label: str) -> str:
        return self.answers.get(label, label)

    # --- an example in words ------------------------------------------------------------------------

    def asked(self, item: Any) -> str:
        """The template with an example's fields, up to its answer."""
        values = self._values(item)
        parts = string.Formatter().parse(self.template)
        return "".join(text + (values[name] if name is not None else "") for text, name, _, _ in parts)

    def shown(self, item: Any) -> str:
        """An example with its answer."""
        return self.asked(item) + self.delimiter + self.right(item)

    def right(self, item: Any) -> str:
        """The words of the right answer; of a question without one, none."""
        if self.kind == "choice":
            return item.choices[item.answer]
        if self.kind == "span":
            return item.answers[0][0] if item.answers else ""
        return item.target if self.kind == "word" else self.words(item.label)

    def _values(self, item: Any) -> Mapping[str, str]:
        if self.kind == "choice":
            listed = "\n".join(f"{chr(65 + number)}. {text}" for number, text in enumerate(item.choices))
            return {"question": item.text, "choices": listed}
        if self.kind == "span":
            return {"context": item.context, "question": item.question}
        if self.kind == "word":
            return {"context": item.context}
        return dict(zip(FIELDS[self.kind], item.texts, strict=True))


def fields_of(template: str) -> list[str]:
    """The names in braces; a brace itself is written twice."""
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as problem:
        raise ValueError(f"template: {problem}; a brace that is no field is written twice, {{{{") from None
    for _, name, form, conversion in parts:
        if name is not None and (form or conversion or not name.isidentifier()):
            raise ValueError(f"template: {{{name}}} is no field: write its name alone in the braces")
    return [name for _, name, _, _ in parts if name is not None]

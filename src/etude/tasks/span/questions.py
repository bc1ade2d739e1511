"""Questions about a text, from the records of SQuAD, KorQuAD and KLUE's MRC, and from flat JSON lines.

An answer must stand at its offset, or the record is refused: a wrong offset would silently teach a wrong span.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from etude.errors import UserError
from etude.tasks.data.examples import Record, column_of, short, text_of, value_of, whole_text
from etude.tasks.prompt_form import WritePrompt
from etude.text.tokenizer.tokenizer import Tokenizer

COLUMNS = {
    "question": ("question",),
    "context": ("context", "paragraph", "passage"),
    "answers": ("answers", "answer"),
    "id": ("id", "guid", "qid"),
    "impossible": ("is_impossible",),
}
INPUTS = TEXTS = ("question", "context")


@dataclass(frozen=True)
class Question:
    id: str
    question: str
    context: str  # NFC, as offsets point into it
    answers: tuple[tuple[str, int], ...] | None  # (text, first character); () without an answer; None: not read


def parse(record: Record, columns: Mapping[str, str], where: str, labelled: bool = True) -> Question:
    named = {role: column_of(record, role, columns, usual) for role, usual in COLUMNS.items()}
    question, original = (text_of(record, named[role], where) for role in ("question", "context"))
    context = Tokenizer.normalise(original)
    name = whole_text(_name_of(record.get(named["id"]), where), named["id"], where)  # answers are written with it
    answers = None
    if labelled:
        impossible = record.get(named["impossible"], False) in (True, 1, "true", "True", "1")
        answers = () if impossible else _answers(record, named["answers"], original, context, where)
    return Question(name, question, context, answers)


def _name_of(value: Any, where: str) -> str:
    """The id of a question; its place where it has none: an empty field, null, or NaN as data frames write it."""
    is_missing = value is None or value == "" or value != value
    return where if is_missing else str(value)


def _answers(record: Record, column: str, original: str, context: str, where: str) -> tuple[tuple[str, int], ...]:
    value: Any = value_of(record, column, where)
    if isinstance(value, dict) and isinstance(value.get("text"), list):  # columns of lists, as some copies have it
        starts = value.get("answer_start")
        if not isinstance(starts, list) or len(starts) != len(value["text"]):  # else answers would be lost unseen
            raise UserError(f"{where}: the column '{column}' lacks an 'answer_start' of each 'text': {short(value)}.")
        value = [{"text": a, "answer_start": b} for a, b in zip(value["text"], starts, strict=True)]
    if not isinstance(value, list):
        raise UserError(f"{where}: the column '{column}' holds {short(value)}, not a list of answers.")
    answers = []
    for answer in value:
        text, start = (answer.get("text"), answer.get("answer_start")) if isinstance(answer, dict) else (None, None)
        if not isinstance(text, str) or isinstance(start, bool) or not isinstance(start, int):
            raise UserError(f"{where}: an answer is {short(answer)}, not an object with 'text' and 'answer_start'.")
        if start < 0 or original[start : start + len(text)] != text:
            actual = original[max(0, start) : max(0, start) + len(text)]
            raise UserError(
                f"{where}: the answer {short(text)} is not at its offset {start}, where the text has {short(actual)}. "
                "Correct answer_start, or leave the question out."
            )
        if original is not context:  # the offset moves with the letters that were composed before it
            start, text = len(Tokenizer.normalise(original[:start])), Tokenizer.normalise(text)
        answers.append((text, start))
    return tuple(answers)


def strata(example: Question) -> frozenset[str]:
    """Whether it has an answer."""
    return frozenset(["answer" if example.answers else "none"])


class QuestionPrompt(WritePrompt[Question]):
    def values(self, example: Question) -> dict[str, str]:
        return {"context": example.context, "question": example.question}

    def references(self, example: Question) -> list[str]:
        return [text for text, _ in example.answers or ()]


PROMPT = QuestionPrompt(("context", "question"))

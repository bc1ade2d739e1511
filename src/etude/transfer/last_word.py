"""Examples of last-word prediction (LAMBADA, Paperno et al. 2016): a `context` and its `target` word.

Only prompts use them (`kind: word`); there is no such task to fine-tune.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from etude.tasks.data.examples import Examples, Record, column_of, gather, text_of
from etude.tasks.data.records import records
from etude.tasks.prompt_form import WordPrompt

COLUMNS = {"context": ("context", "text", "passage"), "target": ("target", "answer", "word")}


@dataclass(frozen=True)
class LastWord:
    context: str
    target: str


class LastWordPrompt(WordPrompt[LastWord]):
    def values(self, example: LastWord) -> dict[str, str]:
        return {"context": example.context}

    def word(self, example: LastWord) -> str:
        return example.target


PROMPT = LastWordPrompt(("context",))


def parse(record: Record, columns: Mapping[str, str], where: str) -> LastWord:
    named = {role: column_of(record, role, columns, usual) for role, usual in COLUMNS.items()}
    return LastWord(text_of(record, named["context"], where), text_of(record, named["target"], where).strip())


def read(
    path: str | Path, columns: Mapping[str, str] | None = None, skip_bad: bool = False, labelled: bool = True
) -> Examples[LastWord]:
    """Read a file of examples; `labelled` is in the signature of every task, and ignored here."""
    return gather(records(path), lambda record, where: parse(record, columns or {}, where), path, skip_bad)

"""An input for every endpoint of a run that the run can answer: for the curl lines, and to begin with on the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pydantic import JsonValue

TEXT = "The cat sat on the mat."
QUESTION, ANSWERS = "Where did the cat sit?", ["on the mat", "in the sea"]
INPUTS: dict[str, JsonValue] = {
    "fill": "The [MASK] sat on the mat.",
    "similarity": [TEXT, "A dog lay on the rug."],
    "paths": {"question": QUESTION, "choices": list(ANSWERS)},
}
ANALOGIES = (("man", "king", "woman"), ("남자", "왕", "여자"))
# parts of an example of a task, by role; entities of TEXT are its cat and its mat
PARTS: dict[str, JsonValue] = {
    "first": TEXT,
    "second": "A cat was on a mat.",
    "question": QUESTION,
    "context": TEXT,
    "choices": list(ANSWERS),
    "query": QUESTION,
    "candidates": list(ANSWERS),
    "text": TEXT,
    "start": 4,
    "end": 7,
    "subject": {"word": "cat", "start": 4, "end": 7, "type": "animal"},
    "object": {"word": "mat", "start": 19, "end": 22, "type": "thing"},
}
# what an answer needs of the examples of tasks that a plain line cannot hold
NEEDED = {
    "choice": ("question", "choices"),
    "graph_choice": ("question", "choices"),
    "rank": ("query", "candidates"),
    "entity_typing": ("text", "start", "end"),
    "relation": ("text", "subject", "object"),
}


def choose_words(vocabulary: Iterable[str | None]) -> list[str]:
    """Return three words of a vocabulary for an analogy: well-known ones, else frequent ones that are not too short."""
    named = [word for word in vocabulary if word]
    known = set(named)
    for words in ANALOGIES:
        if known.issuperset(words):
            return list(words)
    long = [word for word in named if word.isalpha() and len(word) >= (5 if word.isascii() else 2)]
    return (long if len(long) >= 3 else named)[:3]


def make_task_example(kind: str, inputs: Sequence[str], columns: Mapping[str, str]) -> JsonValue:
    """Return an input of the task of a fine-tuned run: a text, or an object with the run's columns by role."""
    if len(inputs) == 1:
        return TEXT
    roles = inputs or NEEDED.get(kind, list(columns)[:2])  # of a plug-in's task nothing is known
    return {columns[role]: PARTS.get(role, TEXT) for role in roles}

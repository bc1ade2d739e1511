"""Sentences with one tag a word: an example of a tagger, from the columns of a record.

Words are a list, or a text: with tags it is cut at its spaces, without them as text_words.py does. Where each "word"
is one character and spaces are among them, or
the column is named so (KLUE), they are the characters of a text; in a file, a sentence of single characters without a
space is one too where all others are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from etude.errors import UserError
from etude.tasks.data.conll import Sentence, sentences
from etude.tasks.data.examples import Examples, column_of, gather, short, value_of
from etude.tasks.tag.encodings import PREFIXES, Scheme, first_breach, parse_tag
from etude.tasks.tag.text_words import split_text
from etude.text.tokenizer.normalization import normalize_nfc

COLUMNS = {
    "tokens": ("tokens", "words", "chars", "characters", "form", "text", "sentence"),
    "tags": ("ner", "tags", "ner_tags", "labels", "upos", "pos", "pos_tags", "xpos"),
}
INPUTS = ("tokens",)
BY_CHARACTER = ("chars", "characters")


@dataclass(frozen=True)
class TaggedSentence:
    words: list[str]  # or characters
    tags: list[str] | None
    characters: bool  # whether each is one character of a text, spaces included
    lines: list[int] | None = None  # of each word, where the file has one a line
    text: str | None = None  # where the words are those of a plain text

    def place(self, where: str, word: int) -> str:
        """Where a word stands, given the place of its sentence."""
        if self.lines is not None:
            return f"{where.rpartition(':')[0]}:{self.lines[min(word, len(self.lines) - 1)]}"
        return f"{where}, word {word + 1}"


def parse(record: dict[str, Any], columns: Mapping[str, str], where: str, labelled: bool = True) -> TaggedSentence:
    column = column_of(record, "tokens", columns, COLUMNS["tokens"])
    value = value_of(record, column, where)
    text = value if isinstance(value, str) and column not in BY_CHARACTER and not labelled else None
    if text is not None:  # punctuation stands apart, as in the files of taggers
        value = [word.word for word in split_text(text)]
    elif isinstance(value, str):  # one tag for what each space separates
        value = list(value) if column in BY_CHARACTER else value.split()
    words = _strings(value, column, where)
    single = all(len(word) == 1 for word in words)
    characters = single and (column in BY_CHARACTER or any(word.isspace() for word in words))
    if not words or all(word.isspace() for word in words):
        raise UserError(f"{where}: a sentence without a word. Fill it, or remove it.")
    lines = record.lines if isinstance(record, Sentence) else None
    sentence = TaggedSentence(words, None, characters, lines, text)
    if not characters:
        for number, word in enumerate(words):
            if not word.strip():
                raise UserError(f"{sentence.place(where, number)}: an empty word. Remove it and its tag.")
    if not labelled:
        return sentence
    name = column_of(record, "tags", columns, COLUMNS["tags"])
    # one tag, however its letters are composed
    tags = [normalize_nfc(tag) for tag in _strings(value_of(record, name, where), name, where)]
    if len(tags) != len(words):
        raise UserError(f"{where}: {len(words)} words in '{column}', and {len(tags)} tags in '{name}': give one each.")
    for number, tag in enumerate(tags):
        if not tag.strip() or tag == "_":
            raise UserError(
                f"{sentence.place(where, number)}: no tag in the column '{name}'. Fill it, or name another."
            )
    return TaggedSentence(words, tags, characters, lines)


def _strings(value: Any, column: str, where: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, (str, int)) for item in value):
        raise UserError(f"{where}: the column '{column}' holds {short(value)}, not a list of words.")
    strings = [str(item) for item in value]
    try:
        "".join(strings).encode()
    except UnicodeEncodeError:
        raise UserError(f"{where}: '{column}' holds half a surrogate pair, which is no character.") from None
    return strings


def read(
    path: str | Path, columns: Mapping[str, str] | None = None, skip_bad: bool = False, labelled: bool = True
) -> Examples[TaggedSentence]:
    examples = gather(
        sentences(path), lambda record, where: parse(record, columns or {}, where, labelled), path, skip_bad
    )
    if any(item.characters for item in examples) and all(len(word) == 1 for item in examples for word in item.words):
        examples.items = [replace(item, characters=True) for item in examples]
    return examples


def check_shape(
    item: TaggedSentence, where: str, chunks: bool, *, rules_of: Scheme | None = None, prefixes_of: Scheme | None = None
) -> None:
    """UserError where `chunks` are expected and a tag is none, or one that breaks the rules of a scheme, or has a
    prefix that the scheme does not know."""
    tags = item.tags or []
    for number, tag in enumerate(tags):
        try:
            prefix = parse_tag(tag).prefix
        except ValueError as problem:
            if chunks:  # else they are parts of speech
                raise UserError(
                    f"{item.place(where, number)}: {problem}. Correct it; if these tags are no chunks at all, set "
                    "task.scheme=none."
                ) from None
            return
        if prefixes_of is not None and prefix not in PREFIXES[prefixes_of]:
            raise UserError(
                f"{item.place(where, number)}: the tag '{tag}' has no place in {prefixes_of}, which the tagger was "
                "trained on. Convert the file."
            )
    if rules_of is not None:
        breach = first_breach(tags, rules_of)
        if breach is not None:
            fault = f"the tag '{tags[breach]}' cannot stand here" if breach < len(tags) else "a chunk does not end"
            raise UserError(f"{item.place(where, breach)}: {fault} in {rules_of}. Correct it, or set task.scheme=auto.")


def strata(example: TaggedSentence) -> frozenset[str]:
    return frozenset(example.tags or ())

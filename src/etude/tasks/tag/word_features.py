"""Hand-made features of words for a tagger: capitals, suffix, membership in lists of names.

Collobert et al. 2011, sections 5.1 (capitals) and 5.2 (suffixes for parts of speech, a gazetteer for names). Each is
one of a few values, and each value has a small vector that is learnt. Words are looked up in lower case.

A gazetteer is a text file with a kind and a name a line, `LOC New York` or with a tab between; names of several words
are found as a whole, and every word of them is marked for that kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from etude.errors import UserError
from etude.settings import Strict
from etude.text.tokenizer.normalization import normalize_nfc

CAPITALS = ("none", "first", "all", "some", "no letter")
UNKNOWN = 0  # of words and suffixes


class Settings(Strict):
    """`task.network.features`"""

    capitals: bool = Field(default=False, description="none, the first letter, all, some, or no letter at all")
    suffix: int = Field(
        default=0, ge=0, description="number of last letters used as a feature; 2 for parts of speech in the paper"
    )
    gazetteer: str | None = Field(default=None, description="a file of names: a kind and a name a line")
    width: int = Field(default=5, ge=1, description="width of the vector of each value of a feature")

    @property
    def any(self) -> bool:
        return self.capitals or self.suffix > 0 or self.gazetteer is not None


@dataclass(frozen=True)
class Tables:
    """What has a number: learnt from the training examples, saved with the tagger (`facts`)."""

    settings: Settings
    words: list[str] = field(default_factory=list)
    suffixes: list[str] = field(default_factory=list)
    names: dict[str, list[str]] = field(default_factory=dict)  # by kind
    repeated: int | None = None  # the first so many words occur twice or more in the training examples; None: all do

    @classmethod
    def learn(cls, settings: Settings, sentences: Iterable[Sequence[str]], own_words: bool) -> Tables:
        counts: Counter[str] = Counter()
        endings: Counter[str] = Counter()
        for sentence in sentences:
            counts.update(word.lower() for word in sentence)
            if settings.suffix:
                endings.update(_ending(word, settings.suffix) for word in sentence)
        names = read_gazetteer(Path(settings.gazetteer)) if settings.gazetteer is not None else {}
        words = _sorted(counts) if own_words else []
        return cls(settings, words, _sorted(endings), names, sum(counts[word] > 1 for word in words))

    @classmethod
    def of(cls, settings: Settings, facts: Mapping[str, Any]) -> Tables:
        words, suffixes = facts["words"].split(), facts["suffixes"].split()
        return cls(settings, words, suffixes, dict(facts["names"]), facts.get("repeated"))

    def facts(self) -> dict[str, Any]:
        """Lists of words as one text each: YAML reads one long text much faster than many short ones."""
        facts = {"words": " ".join(self.words), "suffixes": " ".join(self.suffixes), "names": self.names}
        return facts if self.repeated is None else {**facts, "repeated": self.repeated}

    def with_words(self, words: Iterable[str]) -> Tables:
        """More words behind those there are."""
        more = [word for word in words if word and not any(letter.isspace() for letter in word)]
        return replace(self, words=list(dict.fromkeys([*self.words, *more])))

    @property
    def sizes(self) -> list[int]:
        """How many values each feature has, in the order of the columns."""
        sizes = [len(CAPITALS)] if self.settings.capitals else []
        sizes += [len(self.suffixes) + 1] if self.settings.suffix else []
        return sizes + [2] * len(self.names)

    def numbers(self, words: Sequence[str]) -> np.ndarray:
        """(n,) int64: the row of each word's own vector."""
        return np.array([self._words.get(word.lower(), UNKNOWN) for word in words], np.int64)

    def values(self, words: Sequence[str]) -> np.ndarray:
        """(n, features) int64."""
        columns: list[Sequence[int]] = []
        if self.settings.capitals:
            columns.append([capitals(word) for word in words])
        if self.settings.suffix:
            columns.append([self._suffixes.get(_ending(word, self.settings.suffix), UNKNOWN) for word in words])
        columns += self._named(words)
        return np.array(columns, np.int64).reshape(len(columns), len(words)).T

    def _named(self, words: Sequence[str]) -> list[list[int]]:
        """For each kind, 1 at the words of every name of it; of names that begin together the longest counts."""
        lowered = tuple(word.lower() for word in words)
        columns = []
        for known, longest in self._names:
            marks, place = [0] * len(words), 0
            while place < len(words):
                sizes = range(min(longest, len(words) - place), 0, -1)
                size = next((size for size in sizes if lowered[place : place + size] in known), 0)
                marks[place : place + size] = [1] * size
                place += max(1, size)
            columns.append(marks)
        return columns

    @cached_property
    def _words(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words, 1)}

    @cached_property
    def _suffixes(self) -> dict[str, int]:
        return {suffix: number for number, suffix in enumerate(self.suffixes, 1)}

    @cached_property
    def _names(self) -> list[tuple[set[tuple[str, ...]], int]]:
        parts = [{tuple(name.split()) for name in self.names[kind]} for kind in sorted(self.names)]
        return [(known, max(map(len, known), default=0)) for known in parts]


def capitals(word: str) -> int:
    """Number of its class in CAPITALS."""
    letters = [letter for letter in word if letter.isalpha()]
    large = [letter.isupper() for letter in letters]
    if not letters:
        return 4
    if not any(large):
        return 0
    if len(large) > 1 and all(large):
        return 2
    return 1 if word[0].isupper() and not any(large[1:]) else 3


def read_gazetteer(path: Path) -> dict[str, list[str]]:
    """Names in lower case, by kind."""
    try:
        lines = normalize_nfc(path.read_text(encoding="utf-8-sig")).splitlines()  # as spreadsheets write it
    except FileNotFoundError:
        raise UserError(f"There is no gazetteer {path}.") from None
    except OSError as problem:
        raise UserError(f"The gazetteer {path} cannot be read: {problem.strerror}.") from None
    except UnicodeDecodeError as problem:
        raise UserError(f"{path}: not UTF-8 at byte {problem.start}. Convert the file.") from None
    names_by_kind: dict[str, dict[str, None]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        kind, _, name = line.strip().partition("\t" if "\t" in line.strip() else " ")
        if not name.strip():
            raise UserError(f"{path}:{number}: a line is a kind and a name, such as 'LOC New York'. Correct it.")
        names_by_kind.setdefault(kind, {})[" ".join(name.lower().split())] = None
    if not names_by_kind:
        raise UserError(f"{path} holds no names.")
    return {kind: list(names) for kind, names in sorted(names_by_kind.items())}


def _ending(word: str, letters: int) -> str:
    return word.lower()[-letters:]


def _sorted(counts: Counter[str]) -> list[str]:
    """By falling count, then by name; what holds a space cannot be saved and stays unknown."""
    words = [word for word in counts if word and not any(letter.isspace() for letter in word)]
    return sorted(words, key=lambda word: (-counts[word], word))

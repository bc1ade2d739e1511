"""A word-level tokenizer whose vocabulary never ends: for models that read words by their letters.

An id below `vocab` is a word of the tokenizer, and what such a model predicts. A word that the tokenizer does not
know, or knows in another spelling (lower case), gets an id of its own from `vocab` on when it is first met, and keeps
it as long as the speller lives. Nothing of that is saved: ids are a way of passing letters through everything that
passes ids, and the model asks for the letters back (`rows`).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from etude.errors import UserError
from etude.text.tokenizer.char_ids import MAX_CHARS, SENTENCE_END, SENTENCE_START, words_to_char_ids
from etude.text.tokenizer.tokenizer import Encoding, Tokenizer


class OpenVocabularyTokenizer(Tokenizer):
    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer) -> OpenVocabularyTokenizer:
        """The same tokenizer, open; a speller is returned as it is."""
        if isinstance(tokenizer, OpenVocabularyTokenizer):
            return tokenizer
        if not tokenizer.word_level:
            raise UserError(
                f"A model that reads letters needs a tokenizer of whole words, and this one is {tokenizer.kind}. "
                "Train one with --tokenizer word:50000."
            )
        return cls(tokenizer.content)

    def __init__(self, content: str, origin: str = "a tokenizer") -> None:
        super().__init__(content, origin)
        self._numbers: dict[str, int] = {}
        self._words: list[str] = []
        self._lock = threading.Lock()
        ends = {self.special.end, self.special.separator} - {None}
        self._marks = dict.fromkeys(ends, SENTENCE_END)
        if self.special.start is not None and self.special.start not in ends:
            self._marks[self.special.start] = SENTENCE_START
        self._kept = set(self.special.ids()) - {self.special.unknown}

    # --- words to ids -------------------------------------------------------------------------------

    def encode_batch(self, texts: Sequence[str], special: bool = False) -> list[Encoding]:
        found = []
        for text, encoding in zip(texts, super().encode_batch(texts, special), strict=True):
            normal = self.normalise(text)
            words = [normal[start:stop] for start, stop in encoding.offsets.tolist()]
            ids = [
                id if id in self._kept or self.token(id) == word else self._number(word)
                for id, word in zip(encoding.ids.tolist(), words, strict=True)
            ]
            found.append(replace(encoding, ids=np.array(ids, np.int32)))
        return found

    def encode_words(self, words: Sequence[str]) -> np.ndarray:
        """(n,) int32: one id a word, each taken whole, also where the tokenizer would cut it."""
        return np.array([self._whole(self.normalise(word)) for word in words], np.int32)

    def _whole(self, word: str) -> int:
        id = self.id(word)
        return self._number(word) if id is None or id in self.special.ids() else id

    def _number(self, word: str) -> int:
        with self._lock:
            number = self._numbers.setdefault(word, len(self._words))
            if number == len(self._words):
                self._words.append(word)
        return self.vocab + number

    @property
    def id_count(self) -> int:
        """Ids are below this so far."""
        return self.vocab + len(self._words)

    # --- ids to words -------------------------------------------------------------------------------

    def token(self, id: int) -> str:
        return super().token(id) if id < self.vocab else self._words[id - self.vocab]

    def char_ids(
        self, ids: Sequence[int] | np.ndarray, length: int = MAX_CHARS, widest: int | None = None
    ) -> np.ndarray:
        """(n, length) the letters of each id (text/tokenizer/char_ids.py); start and end tokens are the marks of a sentence."""
        words = [self._marks[id] if id in self._marks else self.token(id) for id in map(int, ids)]
        return words_to_char_ids(words, length, widest)

    def to_closed_vocabulary(self, ids: np.ndarray) -> np.ndarray:
        """The same with ids below `vocab` only: what the tokenizer itself would say."""
        found = np.array(ids, np.int32)
        for place in np.flatnonzero(found >= self.vocab):
            word = self.backend.encode(self._words[found[place] - self.vocab], add_special_tokens=False).ids
            unknown = -1 if self.special.unknown is None else self.special.unknown
            found[place] = word[0] if len(word) == 1 else unknown
        return found

    def decode(self, ids: Sequence[int] | np.ndarray, special: bool = True) -> str:
        """Words with spaces between them, as the tokenizer's own decoding has it."""
        left_out = set() if special else set(self.special.ids())
        return " ".join(self.token(id) for id in map(int, ids) if id not in left_out)

    def __deepcopy__(self, memo: Any) -> Self:
        return self  # a copy would give other ids, and a copied model would not know them

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a speller belongs to its process: send the tokenizer, and open it there")

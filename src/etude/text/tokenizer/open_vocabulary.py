"""A word-level tokenizer with an open vocabulary, for models that read words by their characters.

An id below `vocab` is a word of the tokenizer, and what such a model predicts. A word that is not in the vocabulary,
or only in another spelling (lower case), gets an id of its own from `vocab` on when it is first met, and keeps it
until `forget_words`: a server is asked for ever new words, and calls that between two requests. These ids are never
saved: they carry words through code that passes ids, and the model turns them into character ids (`char_ids`).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn, Self

import numpy as np

from etude.errors import UserError
from etude.text.tokenizer.char_ids import MAX_CHARS, SENTENCE_END, SENTENCE_START, words_to_char_ids
from etude.text.tokenizer.tokenizer import Encoding, Tokenizer


class OpenVocabularyTokenizer(Tokenizer):
    """A word-level tokenizer that gives every unknown word an id of its own."""

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer) -> OpenVocabularyTokenizer:
        """Return the tokenizer with an open vocabulary; itself if it has one already."""
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
        self._new_numbers: dict[str, int] = {}
        self._new_words: list[str] = []
        self._lock = threading.Lock()
        self.generation = 0  # counts `forget_words`: what was remembered by id before is no longer true
        end_ids = {self.special.end, self.special.separator} - {None}
        self._sentence_markers = dict.fromkeys(end_ids, SENTENCE_END)
        if self.special.start is not None and self.special.start not in end_ids:
            self._sentence_markers[self.special.start] = SENTENCE_START
        self._fixed_ids = set(self.special.ids()) - {self.special.unknown}

    # --- words to ids -------------------------------------------------------------------------------

    def encode_batch(self, texts: Sequence[str], special: bool = False) -> list[Encoding]:
        """Encode texts as `Tokenizer` does, with an id of its own for each unknown word."""
        encodings = []
        for text, encoding in zip(texts, super().encode_batch(texts, special), strict=True):
            normal = self.normalise(text)
            words = [normal[start:stop] for start, stop in encoding.offsets.tolist()]
            ids = [
                id if id in self._fixed_ids or self.token(id) == word else self._add_word(word)
                for id, word in zip(encoding.ids.tolist(), words, strict=True)
            ]
            encodings.append(replace(encoding, ids=np.array(ids, np.int32)))
        return encodings

    def encode_ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids alone; those of unknown words take their offsets."""
        return [encoding.ids for encoding in self.encode_batch(texts)]

    def encode_words(self, words: Sequence[str]) -> np.ndarray:
        """Return one id a word, (words,) int32, also where the tokenizer would split the word."""
        return np.array([self._encode_word(self.normalise(word)) for word in words], np.int32)

    def _encode_word(self, word: str) -> int:
        id = self.id(word)
        return self._add_word(word) if id is None or id in self.special.ids() else id

    def _add_word(self, word: str) -> int:
        with self._lock:
            number = self._new_numbers.setdefault(word, len(self._new_words))
            if number == len(self._new_words):
                self._new_words.append(word)
        return self.vocab + number

    @property
    def id_count(self) -> int:
        """Ids in use: those of the vocabulary and of the unknown words met so far."""
        return self.vocab + len(self._new_words)

    @property
    def new_word_count(self) -> int:
        """Unknown words that have an id."""
        return len(self._new_words)

    def forget_words(self) -> None:
        """Take the ids of all unknown words back; for a moment at which nothing holds such ids."""
        with self._lock:
            self._new_numbers, self._new_words = {}, []
            self.generation += 1

    # --- ids to words -------------------------------------------------------------------------------

    def token(self, id: int) -> str:
        return super().token(id) if id < self.vocab else self._new_words[id - self.vocab]

    def char_ids(
        self, ids: Sequence[int] | np.ndarray, length: int = MAX_CHARS, widest_filter: int | None = None
    ) -> np.ndarray:
        """Return the character ids of each word, (ids, length).

        Start and end tokens are the markers of a sentence.
        """
        markers = self._sentence_markers
        words = [markers[id] if id in markers else self.token(id) for id in map(int, ids)]
        return words_to_char_ids(words, length, widest_filter)

    def to_closed_vocabulary(self, ids: np.ndarray) -> np.ndarray:
        """Return ids below `vocab` only: those that the tokenizer itself gives the words."""
        closed = np.array(ids, np.int32)
        for place in np.flatnonzero(closed >= self.vocab):
            word = self.backend.encode(self._new_words[closed[place] - self.vocab], add_special_tokens=False).ids
            unknown = -1 if self.special.unknown is None else self.special.unknown
            closed[place] = word[0] if len(word) == 1 else unknown
        return closed

    def decode(self, ids: Sequence[int] | np.ndarray, special: bool = True) -> str:
        """Join words by spaces, as decoding of a word-level tokenizer does."""
        skipped = set() if special else set(self.special.ids())
        return " ".join(self.token(id) for id in map(int, ids) if id not in skipped)

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self  # a copy would give other ids, and a copied model would not know them

    def __reduce__(self) -> NoReturn:
        raise TypeError("an open vocabulary belongs to its process: send the tokenizer, and open it there")

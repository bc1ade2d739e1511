"""Text to ids and back: one class over the `tokenizers` library, whatever the kind of tokenizer.

A tokenizer is its `tokenizer.json`, byte for byte: that content is saved, hashed (`fingerprint`) and compared.
Text is brought to NFC before anything else, so that Hangul typed as jamo and as syllables is the same text;
offsets point into that NFC text. Special tokens written out in a text ("[MASK]") are plain letters unless
asked for: a corpus never holds a control token because a web page happened to spell one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
from tokenizers import Tokenizer as Backend

from etude.errors import UserError
from etude.text.tokenizer import characters
from etude.text.tokenizer.normalization import normalize_nfc
from etude.text.tokenizer.special_tokens import ROLES, Specials
from etude.text.tokenizer.training import LARGEST_VOCAB, train_tokenizer_json
from etude.text.tokenizer.vocabulary_files import read_tokenizer_json

TOKENIZER_FILE = "tokenizer.json"


@dataclass(frozen=True)
class Encoding:
    ids: np.ndarray  # (n,) int32
    word_starts: np.ndarray  # (n,) bool
    offsets: np.ndarray  # (n, 2) int64, characters of the NFC text

    def __len__(self) -> int:
        return len(self.ids)


class Tokenizer:
    def __init__(self, content: str, origin: str = "a tokenizer") -> None:
        """`content` is the text of a tokenizer.json; `origin` names it in messages."""
        self.content = content
        try:
            self.parts = _without_tables(json.loads(content))
            self.backend = _backend(content)
        except Exception as problem:  # the library raises bare Exception
            raise UserError(
                f"{origin} is not a tokenizer that can be read: {problem}. Expected a tokenizer.json, a vocab.txt, "
                "or vocab.json with merges.txt."
            ) from None
        self.backend.encode_special_tokens = True
        ids = self.backend.get_vocab(with_added_tokens=True).values()
        self.vocab = max(ids, default=-1) + 1  # ids may have holes: the largest one decides
        if self.vocab > LARGEST_VOCAB:
            raise UserError(
                f"{origin} holds ids up to {self.vocab - 1}, more than the {LARGEST_VOCAB} a corpus can store."
            )
        self.special = Specials(**{role: self._first(names) for role, names in ROLES.items()})

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """A tokenizer.json, vocab.txt, or vocab.json beside merges.txt: the file, or the folder it lies in."""
        return cls(read_tokenizer_json(Path(path)), str(path))

    @classmethod
    def train(cls, spec: str, texts: Iterable[str]) -> Self:
        """Train a tokenizer from a spec such as "bpe:16000" or "word:50000,lower" (see training.py)."""
        return cls(train_tokenizer_json(spec, texts), spec)

    def save(self, folder: str | Path) -> Path:
        path = Path(folder) / TOKENIZER_FILE
        path.write_bytes(self.content.encode())
        return path

    @cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.content.encode()).hexdigest()

    @cached_property
    def kind(self) -> str:
        """word, wordpiece, bpe, bytebpe, unigram or char."""
        model = self.parts["model"]
        kind = {"WordLevel": "word", "WordPiece": "wordpiece", "Unigram": "unigram"}.get(model.get("type", "BPE"))
        if kind is None:
            kind = "bytebpe" if _mentions(self.parts.get("pre_tokenizer"), "ByteLevel") else "bpe"
            if kind == "bpe" and not model["merged"]:
                kind = "char"
        return kind

    @property
    def word_level(self) -> bool:
        """One id a word: then the corpus keeps the letters too, since [UNK] would lose them."""
        return self.kind == "word"

    def token(self, id: int) -> str:
        token = self.backend.id_to_token(int(id))
        if token is None:
            raise IndexError(f"no token has the id {id}; the vocabulary has {self.vocab}")
        return token

    def id(self, token: str) -> int | None:
        return self.backend.token_to_id(token)

    @staticmethod
    def normalise(text: str) -> str:
        """NFC: the text that offsets point into."""
        return normalize_nfc(text)

    def encode(self, text: str, special: bool = False) -> Encoding:
        return self.encode_batch([text], special)[0]

    def encode_batch(self, texts: Sequence[str], special: bool = False) -> list[Encoding]:
        """`special`: whether names of special tokens within the text ("[MASK]") stand for those tokens."""
        texts = [self.normalise(text) for text in texts]
        flat = encode_flat(self._special_backend if special else self.backend, texts)
        return [
            Encoding(flat.ids[start:end], flat.word_starts[start:end], flat.offsets[start:end])
            for start, end in pairwise([0, *np.cumsum(flat.lengths).tolist()])
        ]

    def decode(self, ids: Sequence[int] | np.ndarray, special: bool = True) -> str:
        """The text of ids; `special` False leaves out special tokens."""
        return self.backend.decode([int(id) for id in ids], skip_special_tokens=not special)

    @cached_property
    def _special_backend(self) -> Backend:
        return _backend(self.content)

    def _first(self, names: Iterable[str]) -> int | None:
        return next((id for name in names if (id := self.backend.token_to_id(name)) is not None), None)

    def __repr__(self) -> str:
        return f"Tokenizer({self.kind}, vocab={self.vocab})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer, (self.content,)


@dataclass(frozen=True)
class Flat:
    """The tokens of several texts end to end."""

    lengths: np.ndarray  # (texts,) int64
    ids: np.ndarray  # (n,) int32
    word_starts: np.ndarray  # (n,) bool
    blank: np.ndarray  # (n,) bool: white space only
    offsets: np.ndarray  # (n, 2) int64, characters of the token's own text


def encode_flat(backend: Backend, texts: Sequence[str]) -> Flat:
    """Encodes texts as they are (NFC is the caller's care).

    A token starts a word where the tokenizer's own first cut starts one, or where a word of the text starts (the
    first cut of some tokenizers is a whole "word,"); of several tokens for one character only the first can.
    """
    encodings = backend.encode_batch(list(texts), add_special_tokens=False)
    lengths = np.fromiter((len(encoding) for encoding in encodings), np.int64, len(encodings))
    total = int(lengths.sum())
    ids = np.fromiter(chain.from_iterable(encoding.ids for encoding in encodings), np.int32, total)
    pairs = chain.from_iterable(chain.from_iterable(encoding.offsets for encoding in encodings))
    offsets = np.fromiter(pairs, np.int64, 2 * total).reshape(total, 2)
    if not total:
        return Flat(lengths, ids, np.zeros(0, bool), np.zeros(0, bool), offsets)
    cuts = chain.from_iterable(encoding.word_ids for encoding in encodings)
    cut = np.fromiter((-1 if number is None else number for number in cuts), np.int64, total)
    text_of = np.repeat(np.arange(len(texts)), lengths)
    first = np.ones(total, bool)
    first[1:] = (text_of[1:] != text_of[:-1]) | (cut[1:] != cut[:-1]) | (cut[1:] < 0)

    text = "".join(texts) + " "  # one more: an offset may point behind the last character
    classes = characters.classify(text)
    bases = np.concatenate([[0], np.cumsum([len(text) for text in texts])])[:-1]
    places = np.minimum(offsets[:, 0] + bases[text_of], len(text) - 1)
    # a token such as " the" begins with its space: the word starts at the first character after it
    next_solid = np.arange(len(classes))
    next_solid[classes == characters.SPACE] = len(classes) - 1
    next_solid = np.minimum.accumulate(next_solid[::-1])[::-1]
    solid = next_solid[places]
    blank = solid >= offsets[:, 1] + bases[text_of]
    begins = characters.word_starts(classes)[solid] & ~blank
    begins[1:] &= (solid[1:] != solid[:-1]) | (text_of[1:] != text_of[:-1])
    return Flat(lengths, ids, first | begins, blank, offsets)


def _backend(content: str) -> Backend:
    backend = Backend.from_str(content)
    backend.no_truncation()
    backend.no_padding()
    return backend


def _without_tables(parts: dict[str, Any]) -> dict[str, Any]:
    """A tokenizer.json but for its long tables: a quarter of a million entries would take more than all the rest."""
    model = {name: value for name, value in parts["model"].items() if name not in ("vocab", "merges")}
    return {**parts, "model": {**model, "merged": bool(parts["model"].get("merges"))}}


def _mentions(part: Any, name: str) -> bool:
    """Is a component of this type anywhere in a (nested) part of a tokenizer.json?"""
    if isinstance(part, dict):
        return part.get("type") == name or any(_mentions(value, name) for value in part.values())
    if isinstance(part, list):
        return any(_mentions(value, name) for value in part)
    return False

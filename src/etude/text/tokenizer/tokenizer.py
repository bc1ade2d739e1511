"""The tokenizer: one class over the `tokenizers` library for every kind of tokenizer.

A tokenizer is its `tokenizer.json`, byte for byte: that content is saved, hashed (`fingerprint`) and compared.
Text is normalized to NFC before anything else, so that Hangul typed as jamo and as syllables is the same text;
offsets point into that NFC text. Special tokens written out in a text ("[MASK]") are plain characters unless
requested: a corpus never holds a control token because a web page happened to contain its name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
from tokenizers import Tokenizer as Backend

from etude.errors import UserError
from etude.text.tokenizer import characters
from etude.text.tokenizer.expansion import MAX_EXPANSION, compute_expansion
from etude.text.tokenizer.normalization import normalize_nfc
from etude.text.tokenizer.special_tokens import ROLES, Specials
from etude.text.tokenizer.task_markers import find_task_markers
from etude.text.tokenizer.training import LARGEST_VOCAB, train_tokenizer_json
from etude.text.tokenizer.vocabulary_files import read_tokenizer_json

TOKENIZER_FILE = "tokenizer.json"
MAX_SPARSITY = 16  # ids for each token: published vocabularies have holes, but few
Component = dict[str, Any]  # a component of a tokenizer.json: JSON of many forms


@dataclass(frozen=True)
class Encoding:
    """The tokens of one text."""

    ids: np.ndarray  # (N,) int32
    word_starts: np.ndarray  # (N,) bool
    offsets: np.ndarray  # (N, 2) int64, characters of the NFC text

    def __len__(self) -> int:
        return len(self.ids)


class Tokenizer:
    """A tokenizer of any kind. Open one from files, or train one."""

    def __init__(self, content: str, origin: str = "a tokenizer") -> None:
        """`content` is the text of a tokenizer.json; `origin` is its name in error messages."""
        self.content = content
        try:
            components = _drop_tables(json.loads(content))
            self.backend = _load_backend(content)
            self.components = components | _list_parts(self.backend)
            expansion = compute_expansion(self.components)
        except BaseException as problem:  # the library raises bare Exception, and a BaseException where Rust panics
            if not isinstance(problem, Exception) and type(problem).__name__ != "PanicException":
                raise
            raise UserError(
                f"{origin} is not a tokenizer that can be read: {problem}. Expected a tokenizer.json, a vocab.txt, "
                "or vocab.json with merges.txt."
            ) from None
        model = self.components["model"]
        if model.get("type") == "WordPiece" and self.backend.model.token_to_id(model["unk_token"]) is None:
            raise UserError(
                f"{origin} has WordPiece's tokens without '{model['unk_token']}', which stands for a word that they do "
                "not make up. Take one whose vocabulary is whole."
            )
        if expansion > MAX_EXPANSION:
            raise UserError(
                f"{origin} makes up to {expansion:,.0f} characters of one by its replacements; at most {MAX_EXPANSION} "
                "are read."
            )
        self.backend.encode_special_tokens = True
        ids = self.backend.get_vocab(with_added_tokens=True).values()
        self.vocab = max(ids, default=-1) + 1  # ids may have holes: the largest one decides
        if self.vocab > MAX_SPARSITY * (len(ids) + 4096):
            raise UserError(
                f"{origin} holds {len(ids):,} tokens, and an id of {self.vocab - 1:,}: tables would have a row "
                "for each id below it."
            )
        if self.vocab > LARGEST_VOCAB:
            raise UserError(
                f"{origin} holds ids up to {self.vocab - 1}, more than the {LARGEST_VOCAB} a corpus can store."
            )
        self.special = Specials(
            **{role: self._find_id(names) for role, names in ROLES.items()}, **find_task_markers(self.components)
        )

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open a tokenizer.json, vocab.txt, or vocab.json beside merges.txt: the file, or its folder."""
        return cls(read_tokenizer_json(Path(path)), str(path))

    @classmethod
    def train(cls, spec: str, texts: Iterable[str]) -> Self:
        """Train a tokenizer from a spec such as "bpe:16000" or "word:50000,lower" (see training.py)."""
        return cls(train_tokenizer_json(spec, texts), spec)

    def save(self, folder: str | Path) -> Path:
        """Write tokenizer.json into a folder."""
        path = Path(folder) / TOKENIZER_FILE
        path.write_bytes(self.content.encode())
        return path

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of tokenizer.json."""
        return hashlib.sha256(self.content.encode()).hexdigest()

    @cached_property
    def kind(self) -> str:
        """The model: word, wordpiece, bpe, bytebpe, unigram or char."""
        model = self.components["model"]
        kind = {"WordLevel": "word", "WordPiece": "wordpiece", "Unigram": "unigram"}.get(model.get("type", "BPE"))
        if kind is None:
            kind = "bytebpe" if _contains_type(self.components.get("pre_tokenizer"), "ByteLevel") else "bpe"
            if kind == "bpe" and not model["has_merges"]:
                kind = "char"
        return kind

    @cached_property
    def has_space_tokens(self) -> bool:
        """Whether tokens begin with their space, written as itself, as Ġ (byte level) or as ▁."""
        return any(len(token) > 1 and token[0] in " Ġ▁" for token in self.backend.get_vocab())

    @property
    def word_level(self) -> bool:
        """Whether a token is a whole word: then a corpus stores the letters too, since [UNK] would lose them."""
        return self.kind == "word"

    @property
    def target(self) -> Tokenizer:
        """The tokenizer of targets: itself, unless each side of a pair has its own (pair_tokenizer.py)."""
        return self

    @property
    def shares_ids(self) -> bool:
        """Whether an id is the same token in a source and in a target."""
        return True

    @property
    def largest_vocab(self) -> int:
        """The larger vocabulary of both sides: ids of a corpus are below it."""
        return self.vocab

    def token(self, id: int) -> str:
        """Return the string of an id."""
        token = self.backend.id_to_token(int(id))
        if token is None:
            raise IndexError(f"no token has the id {id}; the vocabulary has {self.vocab}")
        return token

    def id(self, token: str) -> int | None:
        """Return the id of a string, None if it is not a token."""
        return self.backend.token_to_id(token)

    @staticmethod
    def normalise(text: str) -> str:
        """Normalize to NFC: the text that offsets point into."""
        return normalize_nfc(text)

    def encode(self, text: str, special: bool = False) -> Encoding:
        """Encode one text; see `encode_batch`."""
        return self.encode_batch([text], special)[0]

    def encode_batch(self, texts: Sequence[str], special: bool = False) -> list[Encoding]:
        """Encode texts.

        `special`: whether names of special tokens in a text ("[MASK]") stand for those tokens.
        """
        texts = [self.normalise(text) for text in texts]
        flat = encode_flat(self._special_backend if special else self.backend, texts)
        return [
            Encoding(flat.ids[start:end], flat.word_starts[start:end], flat.offsets[start:end])
            for start, end in pairwise([0, *np.cumsum(flat.lengths).tolist()])
        ]

    def encode_ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids alone of each text, (N,) int32, in less time: neither words nor offsets are looked for."""
        texts = [self.normalise(text) for text in texts]
        with _explain_encoding(texts):
            encodings = self.backend.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def decode(self, ids: Sequence[int] | np.ndarray, special: bool = True) -> str:
        """Decode ids; `special` False leaves out special tokens."""
        with explain_failure():
            return self.backend.decode([int(id) for id in ids], skip_special_tokens=not special)

    @cached_property
    def _special_backend(self) -> Backend:
        return _load_backend(self.content)

    def _find_id(self, names: Iterable[str]) -> int | None:
        return next((id for name in names if (id := self.backend.token_to_id(name)) is not None), None)

    def __repr__(self) -> str:
        return f"Tokenizer({self.kind}, vocab={self.vocab})"

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[object, ...]]:
        return Tokenizer, (self.content,)


@dataclass(frozen=True)
class FlatEncoding:
    """The tokens of several texts end to end."""

    lengths: np.ndarray  # (texts,) int64: tokens of each text
    ids: np.ndarray  # (N,) int32
    word_starts: np.ndarray  # (N,) bool
    white_space: np.ndarray  # (N,) bool: whether a token is white space only
    offsets: np.ndarray  # (N, 2) int64, characters of the token's own text


def encode_flat(backend: Backend, texts: Sequence[str]) -> FlatEncoding:
    """Encode texts that are NFC already.

    A token starts a word where the pre-tokenizer starts one, or where a word of the text starts (the pre-tokenizer of
    some tokenizers gives a whole "word,"); of several tokens for one character only the first can start a word.
    """
    with _explain_encoding(texts):
        encodings = backend.encode_batch(list(texts), add_special_tokens=False)
    lengths = np.fromiter((len(encoding) for encoding in encodings), np.int64, len(encodings))
    total = int(lengths.sum())
    ids = np.fromiter(chain.from_iterable(encoding.ids for encoding in encodings), np.int32, total)
    pairs = chain.from_iterable(chain.from_iterable(encoding.offsets for encoding in encodings))
    offsets = np.fromiter(pairs, np.int64, 2 * total).reshape(total, 2)
    if not total:
        return FlatEncoding(lengths, ids, np.zeros(0, bool), np.zeros(0, bool), offsets)
    numbers = chain.from_iterable(encoding.word_ids for encoding in encodings)
    word_ids = np.fromiter((-1 if number is None else number for number in numbers), np.int64, total)
    text_numbers = np.repeat(np.arange(len(texts)), lengths)
    first = np.ones(total, bool)
    first[1:] = (text_numbers[1:] != text_numbers[:-1]) | (word_ids[1:] != word_ids[:-1]) | (word_ids[1:] < 0)

    text = "".join(texts) + " "  # one more: an offset may point behind the last character
    classes = characters.classify(text)
    bases = np.concatenate([[0], np.cumsum([len(text) for text in texts])])[:-1]
    places = np.minimum(offsets[:, 0] + bases[text_numbers], len(text) - 1)
    # a token such as " the" begins with its space: the word starts at the first character after it
    next_solid = np.arange(len(classes))
    next_solid[classes == characters.SPACE] = len(classes) - 1
    next_solid = np.minimum.accumulate(next_solid[::-1])[::-1]
    solid = next_solid[places]
    white_space = solid >= offsets[:, 1] + bases[text_numbers]
    begins = characters.find_word_starts(classes)[solid] & ~white_space
    begins[1:] &= (solid[1:] != solid[:-1]) | (text_numbers[1:] != text_numbers[:-1])
    return FlatEncoding(lengths, ids, first | begins, white_space, offsets)


@contextmanager
def explain_failure() -> Iterator[None]:
    """Raise UserError where a tokenizer that could be read fails on a text: its parts do not fit each other."""
    try:
        yield
    except BaseException as problem:  # the library raises bare Exception, and a BaseException where Rust panics
        if type(problem) is not Exception and type(problem).__name__ != "PanicException":
            raise
        raise UserError(
            f"The tokenizer fails on a text: {str(problem)[:200]}. Take one whose parts are whole."
        ) from None


@contextmanager
def _explain_encoding(texts: Sequence[str]) -> Iterator[None]:
    """Raise UserError where the library fails on these texts, or one of them is no Unicode."""
    try:
        with explain_failure():
            yield
    except TypeError:  # what the library says of a text that is no Unicode
        _refuse_half_pairs(texts)
        raise


def _refuse_half_pairs(texts: Sequence[str]) -> None:
    """Raise UserError where a text holds half a surrogate pair."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as problem:
            excerpt = text[max(0, problem.start - 10) : problem.end + 10]
            raise UserError(
                f"Character {problem.start} of a text is half a surrogate pair, which is no character: {excerpt!r}. "
                "Write it out whole, or remove it."
            ) from None


def _load_backend(content: str) -> Backend:
    backend = Backend.from_str(content)
    backend.no_truncation()
    backend.no_padding()
    return backend


def _drop_tables(content: Component) -> Component:
    """Return a tokenizer.json without its vocabulary and merges, which take more memory than all the rest."""
    model = {name: value for name, value in content["model"].items() if name not in ("vocab", "merges")}
    return {**content, "model": {**model, "has_merges": bool(content["model"].get("merges"))}}


def _list_parts(backend: Backend) -> Component:
    """Return normalizer, pre-tokenizer and decoder as the library has read them, with every option.

    A file may leave out options that are newer than itself, such as `use_regex` of byte-level BPE.
    """
    parts = {name: getattr(backend, name) for name in ("normalizer", "pre_tokenizer", "decoder")}
    return {name: None if part is None else json.loads(part.__getstate__()) for name, part in parts.items()}


def _contains_type(component: object, name: str) -> bool:
    """Whether a (nested) component of a tokenizer.json is or holds one of this type."""
    if isinstance(component, dict):
        return component.get("type") == name or any(_contains_type(value, name) for value in component.values())
    if isinstance(component, list):
        return any(_contains_type(value, name) for value in component)
    return False

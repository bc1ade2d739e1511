"""Tokenised text, on disk or in memory: opens at once, reads any span at once, may be larger than memory.

A corpus folder holds `manifest.json`, `tokenizer.json` and one folder a part (train, valid) with raw little-endian
arrays, a few files a shard, mapped into memory when first read:

    00000.tokens.u16 (or .u32)   ids of text tokens only; special tokens are the objectives' business
    00000.documents.u32          first token of each document, counted in the shard
    00000.sentences.u32          first token of each sentence; every document starts one
    00000.words.bits             one bit a token, lowest bit first: does a word start here?
    00000.surfaces.utf8, 00000.letters.u32   word-level tokenizers: the letters of each token, and where they start
    counts.npy                   int64, how often each id occurs in the part

The manifest has the length and SHA-256 of every file. Lengths are checked whenever a corpus is opened; hashes too as
far as that takes no time to speak of (ALWAYS_HASHED), and all of them with `verify=True`. No document spans two shards.
"""

from __future__ import annotations

import bisect
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np

from etude.errors import UserError
from etude.text.corpus.bounds import BOUND, Bounds, by_shard
from etude.text.tokenizer.tokenizer import TOKENIZER_FILE, Tokenizer

MANIFEST = "manifest.json"
COUNTS = "counts.npy"
FORMAT, VERSION = "etude corpus", 1
SPLITS = ("train", "valid")
ALWAYS_HASHED = 1 << 25  # bytes of a part, 32 MB: some hundredths of a second


def token_type(vocab: int) -> np.dtype:
    return np.dtype("<u2") if vocab <= 1 << 16 else np.dtype("<u4")


@dataclass
class Shard:
    """The arrays of one shard: memory-mapped, or plain arrays for a corpus in memory."""

    tokens: np.ndarray  # (n,) uint16 or uint32
    documents: np.ndarray  # (documents,) uint32
    sentences: np.ndarray  # (sentences,) uint32
    words: np.ndarray  # (ceil(n / 8),) uint8, packed bits
    surfaces: np.ndarray | None = None  # (bytes,) uint8
    letters: np.ndarray | None = None  # (n,) uint32


class _Shards(Sequence[Shard]):
    """The shards of one part of a folder, each mapped when first asked for."""

    def __init__(self, folder: Path, entries: list[dict[str, Any]]) -> None:
        self.folder, self.entries = folder, entries
        self.mapped: dict[int, Shard] = {}

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, number: Any) -> Any:
        shard = self.mapped.get(number)
        if shard is None:
            arrays = {}
            for name in self.entries[number]["files"]:
                _, array, kind = name.split(".")
                dtype = {"u16": "<u2", "u32": "<u4", "bits": "u1", "utf8": "u1"}[kind]
                path = self.folder / name
                # numpy cannot map an empty file; a shard of unknown-free, letterless tokens may have one
                empty = self.entries[number]["files"][name]["bytes"] == 0
                # as a plain array: every slice of a memmap object costs several times as much
                arrays[array] = np.zeros(0, dtype) if empty else np.asarray(np.memmap(path, dtype=dtype, mode="r"))
            shard = self.mapped[number] = Shard(**arrays)
        return shard


class Corpus:
    """One part of a corpus. Make one with `etude.prepare`, `Corpus.open` or `Corpus.from_documents`."""

    def __init__(
        self, shards: Sequence[Shard], sizes: list[dict[str, int]], tokenizer: Tokenizer, manifest: dict[str, Any],
        split: str, folder: Path | None,
    ) -> None:  # fmt: skip
        """`sizes` has the tokens, documents and sentences of each shard, so that no shard is touched to open."""
        self._shards, self._sizes = shards, sizes
        self.tokenizer, self.manifest, self.split, self._folder = tokenizer, manifest, split, folder

        def totals(field: str) -> list[int]:
            return [0, *np.cumsum([size[field] for size in sizes], dtype=np.int64).tolist()]

        self._tokens = totals("tokens")
        self.total = self._tokens[-1]
        self.bytes: int = manifest["parts"][split]["bytes"]
        self.documents = Bounds(shards, "documents", totals("documents"), self._tokens)
        self.sentences = Bounds(shards, "sentences", totals("sentences"), self._tokens)

    @property
    def folder(self) -> Path:
        if self._folder is None:
            raise ValueError("a corpus in memory has no folder")
        return self._folder

    @classmethod
    def open(cls, folder: str | Path, split: str = "train", verify: bool | None = None) -> Self:
        """Checks every file's length; `verify` True: every hash, and the order of bounds, too; False: no hash."""
        folder = Path(folder)
        manifest = read_manifest(folder)
        if split not in manifest["parts"]:
            raise UserError(f"The corpus {folder} has no split '{split}'. Splits: {', '.join(manifest['parts'])}.")
        entry = manifest["parts"][split]
        if not entry["tokens"]:
            raise UserError(
                f"The split '{split}' of the corpus {folder} is empty. Prepare it again with --valid above 0."
            )
        files = {name: facts for shard in entry["shards"] for name, facts in shard["files"].items()}
        files[COUNTS] = entry["counts"]
        hashing = verify if verify is not None else sum(facts["bytes"] for facts in files.values()) <= ALWAYS_HASHED
        for name, facts in files.items():
            check_file(folder / split / name, facts, hashing)
        content = _tokenizer_content(folder, manifest)
        corpus = cls(
            _Shards(folder / split, entry["shards"]), entry["shards"], Tokenizer(content), manifest, split, folder
        )
        if verify:
            corpus._verify()
        return corpus

    @classmethod
    def from_documents(
        cls, documents: list[list[list[int]]], tokenizer: Tokenizer, word_starts: list[list[list[bool]]] | None = None
    ) -> Self:
        """A corpus in memory from documents of sentences of ids; every token starts a word unless told otherwise."""
        sentences = [sentence for document in documents for sentence in document]
        if not sentences or not all(sentences) or not all(documents):
            raise ValueError("every document needs a sentence, and every sentence a token")
        tokens = np.concatenate([np.asarray(sentence, np.int64) for sentence in sentences])
        if tokens.min() < 0 or tokens.max() >= tokenizer.vocab:
            raise ValueError(f"ids from {tokens.min()} to {tokens.max()} under a vocabulary of {tokenizer.vocab}")
        starts = np.ones(len(tokens), bool)
        if word_starts is not None:
            starts = np.concatenate([np.asarray(s, bool) for document in word_starts for s in document])
        ends = np.cumsum([len(sentence) for sentence in sentences])
        firsts = np.concatenate([[0], ends[:-1]])
        numbers = np.concatenate([[0], np.cumsum([len(document) for document in documents])[:-1]])
        shard = Shard(
            tokens.astype(token_type(tokenizer.vocab)), firsts[numbers].astype(BOUND), firsts.astype(BOUND),
            np.packbits(starts, bitorder="little"),
        )  # fmt: skip
        if tokenizer.word_level:
            letters = [tokenizer.token(id).encode() for id in tokens]
            shard.surfaces = np.frombuffer(b"".join(letters), np.uint8)
            shard.letters = (np.cumsum([len(word) for word in letters]) - [len(word) for word in letters]).astype(BOUND)
        size = {"tokens": len(tokens), "documents": len(documents), "sentences": len(sentences)}
        texts = [tokenizer.decode([id for sentence in document for id in sentence]) for document in documents]
        part = {**size, "bytes": sum(len(text.encode()) for text in texts), "words": int(starts.sum())}
        facts = {"kind": tokenizer.kind, "vocab": tokenizer.vocab, "fingerprint": tokenizer.fingerprint}
        manifest = {"format": FORMAT, "version": VERSION, "parts": {"train": part}, "tokenizer": facts}
        return cls([shard], [size], tokenizer, manifest, "train", None)

    def tokens(self, start: int, stop: int) -> np.ndarray:
        """int32 (stop - start,)."""
        pieces = [shard.tokens[a:b].astype(np.int32) for shard, a, b in self._spans(start, stop)]
        return pieces[0] if len(pieces) == 1 else np.concatenate([np.zeros(0, np.int32), *pieces])

    def word_starts(self, start: int, stop: int) -> np.ndarray:
        """bool (stop - start,)."""
        pieces = [np.zeros(0, bool)]
        for shard, a, b in self._spans(start, stop):
            packed = np.asarray(shard.words[a // 8 : (b + 7) // 8])
            pieces.append(np.unpackbits(packed, bitorder="little")[a % 8 : a % 8 + b - a].astype(bool))
        return np.concatenate(pieces)

    def tokens_at(self, places: np.ndarray) -> np.ndarray:
        """int32: the tokens at any places, in their order."""
        found = np.empty(len(places), np.int32)
        for number, chosen in by_shard(self._tokens, places):
            found[chosen] = self._shards[number].tokens[places[chosen] - self._tokens[number]]
        return found

    def word_starts_at(self, places: np.ndarray) -> np.ndarray:
        """bool: does a word start at these places?"""
        found = np.empty(len(places), bool)
        for number, chosen in by_shard(self._tokens, places):
            inside = places[chosen] - self._tokens[number]
            found[chosen] = (self._shards[number].words[inside >> 3] >> (inside & 7).astype(np.uint8)) & 1
        return found

    def surfaces(self, start: int, stop: int) -> list[bytes]:
        """The letters of each token as they stood in the text (word-level tokenizers only)."""
        if not self.tokenizer.word_level:
            raise UserError(
                f"This corpus keeps no letters: its tokenizer is {self.tokenizer.kind}. A model that reads characters "
                "needs a corpus of words: prepare it with --tokenizer word:50000."
            )
        words: list[bytes] = []
        for shard, a, b in self._spans(start, stop):
            assert shard.letters is not None and shard.surfaces is not None
            places = shard.letters[a : b + 1].tolist()
            if b == len(shard.tokens):
                places.append(len(shard.surfaces))
            letters = shard.surfaces[places[0] : places[-1]].tobytes()
            words += [letters[i - places[0] : j - places[0]] for i, j in pairwise(places)]
        return words

    def token_counts(self) -> np.ndarray:
        """int64 (V,): how often each id occurs in this part."""
        if self._folder is not None:
            return np.load(self._folder / self.split / COUNTS, allow_pickle=False)
        return np.bincount(self.tokens(0, self.total), minlength=self.tokenizer.vocab).astype(np.int64)

    @cached_property
    def fingerprint(self) -> str:
        """One hash of everything the part holds."""
        if self._folder is not None:
            entry = self.manifest["parts"][self.split]
            hashes = [facts["sha256"] for shard in entry["shards"] for facts in shard["files"].values()]
        else:
            shard = self._shards[0]
            arrays = (shard.tokens, shard.documents, shard.sentences, shard.words)
            hashes = [hashlib.sha256(array.tobytes()).hexdigest() for array in arrays]
        return hashlib.sha256(" ".join([self.tokenizer.fingerprint, *hashes]).encode()).hexdigest()

    def _spans(self, start: int, stop: int) -> Iterator[tuple[Shard, int, int]]:
        """The shards that hold tokens start..stop, with the span inside each."""
        if not 0 <= start <= stop <= self.total:
            raise IndexError(f"tokens {start}..{stop} of {self.total}")
        number = bisect.bisect_right(self._tokens, start) - 1
        while start < stop:
            first, end = self._tokens[number], min(stop, self._tokens[number + 1])
            yield self._shards[number], start - first, end - first
            start, number = end, number + 1

    def _verify(self) -> None:
        """The inner order that hashes cannot speak for: ids below the vocabulary, bounds rising and nested."""
        for number, size in enumerate(self._sizes):
            shard = self._shards[number]
            where = f"Shard {number} of the split '{self.split}' of {self._folder}"
            for name, bounds in (("document", shard.documents), ("sentence", shard.sentences)):
                rising = (
                    len(bounds) == size[f"{name}s"]
                    and bounds[0] == 0
                    and bool((np.diff(bounds.astype(np.int64)) > 0).all())
                )
                if not rising or bounds[-1] >= size["tokens"]:
                    raise UserError(f"{where} has broken {name} bounds. Prepare the corpus again.")
            if not np.isin(shard.documents, shard.sentences).all():
                raise UserError(f"{where} has documents that start inside a sentence. Prepare the corpus again.")
            if int(shard.tokens.max()) >= self.tokenizer.vocab:
                raise UserError(
                    f"{where} has ids beyond its vocabulary of {self.tokenizer.vocab}. Prepare the corpus again."
                )

    def __repr__(self) -> str:
        return f"Corpus({self.split}: {self.total} tokens, {len(self.documents)} documents, {self.tokenizer.kind})"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._folder is not None:  # a loader in another process maps the files again
            return Corpus.open, (self._folder, self.split, False)
        return Corpus, (self._shards, self._sizes, self.tokenizer, self.manifest, self.split, None)


def read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        what = "there is no such folder" if not folder.exists() else f"it has no {MANIFEST}"
        raise UserError(f"{folder} is not a corpus: {what}. Make one with 'etude prepare TEXT -o {folder}'.") from None
    except ValueError:
        raise UserError(f"{path} is damaged: it is not JSON. Prepare the corpus again.") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise UserError(f"{path} is not the manifest of a corpus. Make one with 'etude prepare'.")
    if manifest.get("version") != VERSION:
        raise UserError(f"{path} has format version {manifest.get('version')}; this version of etude reads {VERSION}.")
    return manifest


def check_file(path: Path, facts: dict[str, Any], hashing: bool) -> None:
    """Is the file as long, and with `hashing` the same byte for byte, as when the manifest was written?"""
    try:
        length = path.stat().st_size
    except FileNotFoundError:
        raise UserError(f"{path} is missing from the corpus. Prepare the corpus again.") from None
    if length != facts["bytes"]:
        kind = "truncated" if length < facts["bytes"] else "altered"
        raise UserError(
            f"{path} is {kind}: {length} bytes, the manifest says {facts['bytes']}. Prepare the corpus again."
        )
    if hashing and file_hash(path) != facts["sha256"]:
        raise UserError(f"{path} was altered: its SHA-256 is not the one in the manifest. Prepare the corpus again.")


def file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _tokenizer_content(folder: Path, manifest: dict[str, Any]) -> str:
    path = folder / TOKENIZER_FILE
    if not path.is_file():
        raise UserError(f"{path} is missing from the corpus. Prepare the corpus again.")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != manifest["tokenizer"]["fingerprint"]:
        raise UserError(
            f"{path} is not the tokenizer this corpus was made with (its hash is not the one in the manifest). "
            "Put the right one back, or prepare the corpus again."
        )
    return content.decode()

"""A tokenized corpus, on disk or in memory.

It opens at once, reads any span at once, and may be larger than memory. A corpus folder holds `manifest.json`,
`tokenizer.json` and one folder a split (train, valid) with raw little-endian arrays, a few files a shard, mapped into
memory when first read:

    00000.tokens.u16 (or .u32)   ids of text tokens only; objectives add special tokens
    00000.documents.u32          first token of each document, counted in the shard
    00000.sentences.u32          first token of each sentence; every document starts one
    00000.words.bits             one bit a token, lowest bit first: does a word start here?
    00000.surfaces.utf8, 00000.letters.u32   word-level tokenizers: the letters of each token, and where they start
    00000.entities.i32           corpora with entities: the entity each token is a piece of a mention of (entities.py)
    counts.npy                   int64, how often each id occurs in the split

Pairs may have a tokenizer for each side: then target_tokenizer.json lies beside tokenizer.json, and ids of a target
are under it.

A corpus may stay in a store: opened by its URL, its files come when they are first read (text/remote/remote_shards.py).

The manifest has the length and SHA-256 of every file. Lengths are checked whenever a corpus is opened; hashes too
where the split is small enough (ALWAYS_HASHED), and all of them with `verify=True`. No document spans two shards.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Self

import numpy as np

from etude.errors import UserError
from etude.text.checked_files import ALWAYS_HASHED, MANIFEST, check_file, load_array
from etude.text.corpus.bounds import BOUND, Bounds, group_by_shard
from etude.text.corpus.entities import ENTITY, is_well_formed
from etude.text.corpus.manifest import (
    COUNTS,
    FORMAT,
    VERSION,
    Count,
    Manifest,
    ShardSize,
    SplitEntry,
    TokenizerEntry,
    corpus_pairs,
    read_manifest,
    read_remote_manifest,
)  # fmt: skip
from etude.text.corpus.shard import MappedShards, Shard, Shards, choose_id_dtype
from etude.text.remote.remote_shards import RemoteFiles, RemoteShards
from etude.text.remote.urls import is_url, join_url, make_local
from etude.text.tokenizer.pair_tokenizer import TARGET_FILE, PairTokenizer
from etude.text.tokenizer.tokenizer import TOKENIZER_FILE, Tokenizer


class Corpus:
    """One split of a corpus. Make one with `etude.prepare`, `Corpus.open` or `Corpus.from_documents`."""

    def __init__(
        self, shards: Shards, sizes: Sequence[ShardSize], tokenizer: Tokenizer, manifest: Manifest, split: str,
        folder: Path | RemoteFiles | None,
    ) -> None:  # fmt: skip
        """`sizes` are those of the shards: opening reads no shard. `folder` None is a corpus in memory."""
        self._shards, self._sizes = shards, sizes
        self.tokenizer, self.manifest, self.split = tokenizer, manifest, split
        self._folder = folder if isinstance(folder, Path) else None
        self._remote = folder if isinstance(folder, RemoteFiles) else None

        def running_totals(field: Count) -> list[int]:
            return [0, *np.cumsum([size[field] for size in sizes], dtype=np.int64).tolist()]

        self._tokens = running_totals("tokens")
        self.total = self._tokens[-1]
        self.bytes: int = manifest["parts"][split]["bytes"]
        self.documents = Bounds(shards, "documents", running_totals("documents"), self._tokens)
        self.sentences = Bounds(shards, "sentences", running_totals("sentences"), self._tokens)

    @property
    def folder(self) -> Path:
        """The folder of a corpus on disk."""
        if self._remote is not None:
            raise UserError(f"{self._remote.url} is not on this machine. Copy it to a folder, and name that.")
        if self._folder is None:
            raise ValueError("a corpus in memory has no folder")
        return self._folder

    @property
    def location(self) -> str:
        """The folder or the URL of a corpus that has one."""
        return self._remote.url if self._remote is not None else str(self.folder)

    def open_split(self, split: str) -> Corpus:
        """Open another split of the same corpus."""
        return self if split == self.split else Corpus.open(self.location, split)

    @property
    def pairs(self) -> tuple[str, str] | None:
        """The names of source and target where every document is a pair: two sentences (text/prepare/pairs.py)."""
        return corpus_pairs(self.manifest)

    @property
    def graph(self) -> str | None:
        """The fingerprint of the graph whose entities the text mentions; None of a corpus without entities."""
        return self.manifest["entities"]["graph"] if "entities" in self.manifest else None

    @classmethod
    def open(cls, folder: str | Path, split: str = "train", verify: bool | None = None) -> Self:
        """Open a split of a corpus folder and check the length of its files; or one at a URL, whose files stay there.

        `verify` True checks every hash and the order of bounds too; False checks no hash. Files of a store are checked
        whenever they come.
        """
        folder = make_local(folder)
        if isinstance(folder, str) and is_url(folder):
            return cls._open_remote(folder, split, bool(verify))
        folder = Path(folder)
        manifest = read_manifest(folder)
        entry = _select_split(manifest, split, str(folder))
        shards = entry["shards"]
        files = {name: file for shard in shards for name, file in shard["files"].items()}
        files[COUNTS] = entry["counts"]
        hashing = verify if verify is not None else sum(file["bytes"] for file in files.values()) <= ALWAYS_HASHED
        for name, file in files.items():
            check_file(folder / split / name, file, hashing, "corpus")
        tokenizer = _read_tokenizers(folder, manifest)
        mapped = MappedShards(folder / split, shards, tokenizer.largest_vocab)
        corpus = cls(mapped, shards, tokenizer, manifest, split, folder)
        if verify:
            corpus._verify()
        return corpus

    @classmethod
    def _open_remote(cls, url: str, split: str, verify: bool) -> Self:
        """Open a split at a URL: the manifest and the tokenizer are asked for at once, and nothing else."""
        files = RemoteFiles(url)
        names = {name: join_url(files.url, name) for name in (MANIFEST, TOKENIZER_FILE, TARGET_FILE)}
        contents = files.storage.read_all(names.values())
        manifest = read_remote_manifest(contents.get(names[MANIFEST]), files.url)
        entry = _select_split(manifest, split, files.url)
        tokenizer = _build_tokenizers({name: contents.get(place) for name, place in names.items()}, manifest, files.url)
        if verify:
            for shard in entry["shards"]:
                for name, file in shard["files"].items():
                    files.fetch(f"{split}/{name}", file, verify=True)
        shards = RemoteShards(files, split, entry["shards"], tokenizer.largest_vocab)
        corpus = cls(shards, entry["shards"], tokenizer, manifest, split, files)
        if verify:
            corpus._verify()
        return corpus

    @classmethod
    def from_documents(
        cls, documents: list[list[list[int]]], tokenizer: Tokenizer, word_starts: list[list[list[bool]]] | None = None,
        entities: list[list[list[int]]] | None = None, graph: str | None = None,
    ) -> Self:  # fmt: skip
        """Build a corpus in memory from documents of sentences of ids; by default every token starts a word.

        `entities` has one number a token (entities.py), of the graph with the fingerprint `graph`.
        """
        sentences = [sentence for document in documents for sentence in document]
        if not sentences or not all(sentences) or not all(documents):
            raise ValueError("every document needs a sentence, and every sentence a token")
        tokens = np.concatenate([np.asarray(sentence, np.int64) for sentence in sentences])
        vocab = tokenizer.largest_vocab
        if tokens.min() < 0 or tokens.max() >= vocab:
            raise ValueError(f"ids from {tokens.min()} to {tokens.max()} under a vocabulary of {vocab}")
        starts = np.ones(len(tokens), bool)
        if word_starts is not None:
            starts = np.concatenate([np.asarray(s, bool) for document in word_starts for s in document])
        ends = np.cumsum([len(sentence) for sentence in sentences])
        firsts = np.concatenate([[0], ends[:-1]])
        numbers = np.concatenate([[0], np.cumsum([len(document) for document in documents])[:-1]])
        shard = Shard(
            tokens.astype(choose_id_dtype(vocab)), firsts[numbers].astype(BOUND), firsts.astype(BOUND),
            np.packbits(starts, bitorder="little"),
        )  # fmt: skip
        if tokenizer.word_level:
            letters = [tokenizer.token(id).encode() for id in tokens]
            shard.surfaces = np.frombuffer(b"".join(letters), np.uint8)
            shard.letters = (np.cumsum([len(word) for word in letters]) - [len(word) for word in letters]).astype(BOUND)
        if (entities is None) != (graph is None):
            raise ValueError("entities are numbers of a graph: give both, or neither")
        if entities is not None:
            shard.entities = np.concatenate([np.asarray(s, ENTITY) for document in entities for s in document])
            if len(shard.entities) != len(tokens) or not is_well_formed(shard.entities, firsts):
                raise ValueError("every token needs an entity or -1; later pieces follow their mention's first")
        size: ShardSize = {"tokens": len(tokens), "documents": len(documents), "sentences": len(sentences)}
        texts = [tokenizer.decode([id for sentence in document for id in sentence]) for document in documents]
        entry: SplitEntry = {
            "tokens": size["tokens"], "documents": size["documents"], "sentences": size["sentences"],
            "bytes": sum(len(text.encode()) for text in texts), "words": int(starts.sum()),
        }  # fmt: skip
        manifest: Manifest = {
            "format": FORMAT, "version": VERSION, "parts": {"train": entry},
            "tokenizer": {"kind": tokenizer.kind, "vocab": tokenizer.vocab, "fingerprint": tokenizer.fingerprint},
        }  # fmt: skip
        if graph is not None:
            manifest["entities"] = {"graph": graph}
        return cls([shard], [size], tokenizer, manifest, "train", None)

    def tokens(self, start: int, stop: int) -> np.ndarray:
        """Return the ids of tokens start..stop, int32."""
        pieces = [shard.tokens[a:b].astype(np.int32) for shard, a, b in self._spans(start, stop)]
        return pieces[0] if len(pieces) == 1 else np.concatenate([np.zeros(0, np.int32), *pieces])

    def word_starts(self, start: int, stop: int) -> np.ndarray:
        """Return whether each of the tokens start..stop starts a word, bool."""
        pieces = [np.zeros(0, bool)]
        for shard, a, b in self._spans(start, stop):
            packed = np.asarray(shard.words[a // 8 : (b + 7) // 8])
            pieces.append(np.unpackbits(packed, bitorder="little")[a % 8 : a % 8 + b - a].astype(bool))
        return np.concatenate(pieces)

    def entities(self, start: int, stop: int) -> np.ndarray:
        """Return the entities of tokens start..stop, int32: -1 none, e a mention's first piece, -2 - e a later one."""
        if self.graph is None:
            raise UserError(
                f"{self._describe()} has no entities: it was not linked to a graph. "
                "Prepare it with --link GRAPH, and with --anchors where the text has links."
            )
        pieces = [np.zeros(0, np.int32)]
        for shard, a, b in self._spans(start, stop):
            assert shard.entities is not None
            pieces.append(shard.entities[a:b])
        return np.concatenate(pieces)

    def entities_at(self, places: np.ndarray) -> np.ndarray:
        """Return the entities of the tokens at any places, int32, numbered as in `entities`, in that order."""
        numbers = np.empty(len(places), np.int32)
        for number, chosen in group_by_shard(self._tokens, places):
            column = self._shards[number].entities
            if column is None:
                self.entities(0, 0)  # refuses, with a reason
                raise AssertionError("a corpus with a graph has entities in every shard")
            numbers[chosen] = column[places[chosen] - self._tokens[number]]
        return numbers

    def tokens_at(self, places: np.ndarray) -> np.ndarray:
        """Return the ids of the tokens at any places, int32, in that order."""
        ids = np.empty(len(places), np.int32)
        for number, chosen in group_by_shard(self._tokens, places):
            ids[chosen] = self._shards[number].tokens[places[chosen] - self._tokens[number]]
        return ids

    def word_starts_at(self, places: np.ndarray) -> np.ndarray:
        """Return whether a word starts at each of the places, bool."""
        starts = np.empty(len(places), bool)
        for number, chosen in group_by_shard(self._tokens, places):
            inside = places[chosen] - self._tokens[number]
            starts[chosen] = (self._shards[number].words[inside >> 3] >> (inside & 7).astype(np.uint8)) & 1
        return starts

    def surfaces(self, start: int, stop: int) -> list[bytes]:
        """Return the UTF-8 letters of tokens start..stop as in the text (word-level tokenizers only)."""
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
        """Return how often each id occurs in this split, (V,) int64."""
        if self._folder is not None or self._remote is not None:
            path = self._find_counts()
            counts = load_array(path, "Prepare the corpus again.")
            if counts.shape != (self.tokenizer.largest_vocab,) or counts.dtype != np.int64 or (counts < 0).any():
                raise UserError(f"{path} is damaged: no count for each token. Prepare the corpus again.")
            return counts
        return np.bincount(self.tokens(0, self.total), minlength=self.tokenizer.largest_vocab).astype(np.int64)

    def _find_counts(self) -> Path:
        if self._remote is not None:
            return self._remote.fetch(f"{self.split}/{COUNTS}", self.manifest["parts"][self.split]["counts"])
        return self.folder / self.split / COUNTS

    def _describe(self) -> str:
        return "This corpus" if self._folder is None and self._remote is None else self.location

    @cached_property
    def fingerprint(self) -> str:
        """One hash over the tokenizer and every array of the split."""
        if self._folder is not None or self._remote is not None:
            entry = self.manifest["parts"][self.split]
            hashes = [file["sha256"] for shard in entry["shards"] for file in shard["files"].values()]
        else:
            shard = self._shards[0]
            arrays = [shard.tokens, shard.documents, shard.sentences, shard.words]
            if shard.entities is not None:
                arrays.append(shard.entities)
            hashes = [hashlib.sha256(array.tobytes()).hexdigest() for array in arrays]
        return hashlib.sha256(" ".join([self.tokenizer.fingerprint, *hashes]).encode()).hexdigest()

    def _spans(self, start: int, stop: int) -> Iterator[tuple[Shard, int, int]]:
        """Yield the shards that hold tokens start..stop, with the span inside each."""
        if not 0 <= start <= stop <= self.total:
            raise IndexError(f"tokens {start}..{stop} of {self.total}")
        number = bisect.bisect_right(self._tokens, start) - 1
        while start < stop:
            first, end = self._tokens[number], min(stop, self._tokens[number + 1])
            yield self._shards[number], start - first, end - first
            start, number = end, number + 1

    def _verify(self) -> None:
        """Read every shard, which checks ids and bounds."""
        for number in range(len(self._sizes)):
            self._shards[number]

    def __repr__(self) -> str:
        return f"Corpus({self.split}: {self.total} tokens, {len(self.documents)} documents, {self.tokenizer.kind})"

    def __reduce__(self) -> tuple[object, ...]:
        if self._folder is not None:  # a loader in another process maps the files again
            return Corpus.open, (self._folder, self.split, False)
        if self._remote is not None:
            return Corpus.open, (self._remote.url, self.split, False)
        return Corpus, (self._shards, self._sizes, self.tokenizer, self.manifest, self.split, None)


def _select_split(manifest: Manifest, split: str, place: str) -> SplitEntry:
    """Return the entry of a split; UserError where there is none, or nothing in it."""
    if split not in manifest["parts"]:
        raise UserError(f"The corpus {place} has no split '{split}'. Splits: {', '.join(manifest['parts'])}.")
    entry = manifest["parts"][split]
    if not entry["tokens"]:
        raise UserError(f"The split '{split}' of the corpus {place} is empty. Prepare it again with --valid above 0.")
    return entry


def _read_tokenizers(folder: Path, manifest: Manifest) -> Tokenizer:
    """Open the corpus's tokenizer, or both where each side of its pairs has one."""
    paths = {name: folder / name for name in (TOKENIZER_FILE, TARGET_FILE)}
    contents = {name: path.read_bytes() if path.is_file() else None for name, path in paths.items()}
    return _build_tokenizers(contents, manifest, str(folder))


def _build_tokenizers(contents: Mapping[str, bytes | None], manifest: Manifest, place: str) -> Tokenizer:
    """Build the tokenizers of the corpus at `place` from the content of its files."""
    content = _check_tokenizer(contents[TOKENIZER_FILE], manifest["tokenizer"], f"{place}/{TOKENIZER_FILE}")
    if "target_tokenizer" not in manifest:
        return Tokenizer(content)
    path = f"{place}/{TARGET_FILE}"
    target = Tokenizer(_check_tokenizer(contents[TARGET_FILE], manifest["target_tokenizer"], path))
    return PairTokenizer(content, target, place)


def _check_tokenizer(content: bytes | None, entry: TokenizerEntry, path: str) -> str:
    """Return the text of a tokenizer of the corpus after a check of its hash."""
    if content is None:
        raise UserError(f"{path} is missing from the corpus. Prepare the corpus again.")
    if hashlib.sha256(content).hexdigest() != entry["fingerprint"]:
        raise UserError(
            f"{path} is not the tokenizer this corpus was made with (its hash is not the one in the manifest). "
            "Put the right one back, or prepare the corpus again."
        )
    return content.decode()

"""The writer of a split: append-only files, whose lengths at a commit are all that a restart needs.

What was written after the last commit is truncated on restart, so a process may die at any moment.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Protocol, TypedDict

import numpy as np

from etude.text.checked_files import hash_file
from etude.text.corpus.bounds import BOUND
from etude.text.corpus.entities import ENTITY
from etude.text.corpus.manifest import COUNTS, ShardEntry, SplitEntry
from etude.text.corpus.shard import Shard

SHARD_TOKENS = 1 << 26  # 128 MB of 16-bit ids: few files even for large corpora, each quick to hash


class Commit(TypedDict):
    """The state of a writer: the files hold everything up to it."""

    closed: list[ShardEntry]
    size: dict[str, int]
    pending: list[int]
    bytes: int
    lengths: dict[str, int]  # of the files of the current shard


class Upload(Protocol):
    """Where full shards go, of a corpus that does not stay on this machine (text/remote/shard_upload.py)."""

    def add(self, paths: Sequence[Path]) -> None: ...

    def release(self) -> None: ...

    def send(self, path: Path) -> None: ...


class SplitWriter:
    """Appends documents to the shards of one split."""

    def __init__(
        self, folder: Path, vocab: int, id_dtype: np.dtype, surfaces: bool, shard_tokens: int = SHARD_TOKENS,
        entities: bool = False, upload: Upload | None = None,
    ) -> None:  # fmt: skip
        self.folder, self.shard_tokens, self.upload = folder, shard_tokens, upload
        self.dtypes = {"tokens": id_dtype, "documents": BOUND, "sentences": BOUND, "words": np.dtype("u1")}
        if surfaces:
            self.dtypes |= {"surfaces": np.dtype("u1"), "letters": BOUND}
        if entities:
            self.dtypes["entities"] = ENTITY
        self.full_shards: list[ShardEntry] = []
        self.counts = np.zeros(vocab, np.int64)
        self.bytes = 0
        self.files: dict[str, BinaryIO] = {}
        self._start_shard()
        folder.mkdir(parents=True, exist_ok=True)

    def _start_shard(self) -> None:
        self.size = {"tokens": 0, "documents": 0, "sentences": 0, "surfaces": 0}
        self.pending = np.zeros(0, np.uint8)  # word flags that do not fill a byte yet

    def file_name(self, shard: int, array: str) -> str:
        """Return the name of an array's file, such as 00000.tokens.u16."""
        dtype = self.dtypes[array]
        suffix = {"words": "bits", "surfaces": "utf8"}.get(array) or f"{dtype.kind}{8 * dtype.itemsize}"
        return f"{shard:05}.{array}.{suffix}"

    def _list_files(self) -> list[tuple[str, Path]]:
        return [(array, self.folder / self.file_name(len(self.full_shards), array)) for array in self.dtypes]

    def append(self, documents: Shard, text_bytes: int) -> None:
        """Append whole documents.

        Their bounds and letters count from their own start, and a word flag is a byte.
        """
        if not len(documents.tokens):
            return
        self._write("tokens", documents.tokens)
        self._write("documents", documents.documents + BOUND.type(self.size["tokens"]))
        self._write("sentences", documents.sentences + BOUND.type(self.size["tokens"]))
        flags = np.concatenate([self.pending, documents.words])
        whole = len(flags) // 8 * 8
        self._write("words", np.packbits(flags[:whole], bitorder="little"))
        self.pending = flags[whole:]
        if documents.surfaces is not None and documents.letters is not None:
            self._write("surfaces", documents.surfaces)
            self._write("letters", documents.letters + BOUND.type(self.size["surfaces"]))
            self.size["surfaces"] += len(documents.surfaces)
        if documents.entities is not None:
            self._write("entities", documents.entities)
        self.size["tokens"] += len(documents.tokens)
        self.size["documents"] += len(documents.documents)
        self.size["sentences"] += len(documents.sentences)
        self.counts += np.bincount(documents.tokens, minlength=len(self.counts))
        self.bytes += text_bytes
        # letters are counted in 32 bits too; half of that leaves room for one more block
        if self.size["tokens"] >= self.shard_tokens or self.size["surfaces"] >= 1 << 31:
            self._close_shard()

    def _write(self, array: str, values: np.ndarray) -> None:
        file = self.files.get(array)
        if file is None:
            path = self.folder / self.file_name(len(self.full_shards), array)
            file = self.files[array] = path.open("ab")
        file.write(np.ascontiguousarray(values.astype(self.dtypes[array], copy=False)).data)

    def _close_shard(self) -> None:
        if not self.size["tokens"]:
            return
        if len(self.pending):
            self._write("words", np.packbits(self.pending, bitorder="little"))
        self._flush(close=True)
        for _, path in self._list_files():
            path.touch()  # fewer than eight tokens, or none with letters: a file may not be there yet
        paths = [path for _, path in self._list_files()]
        self.full_shards.append({
            "tokens": self.size["tokens"], "documents": self.size["documents"], "sentences": self.size["sentences"],
            # hashed while its bytes are still in memory: at the end a large corpus would be read again from the disk
            "files": {path.name: {"bytes": path.stat().st_size, "sha256": hash_file(path)} for path in paths},
        })  # fmt: skip
        self._start_shard()
        if self.upload is not None:
            self.upload.add(paths)

    def _flush(self, close: bool) -> None:
        for file in self.files.values():
            file.flush()
            os.fsync(file.fileno())
            if close:
                file.close()
        if close:
            self.files = {}

    def commit(self) -> Commit:
        """Flush everything to disk; return the state that `restore` continues from."""
        self._flush(close=False)
        return {
            "closed": self.full_shards, "size": self.size, "pending": self.pending.tolist(), "bytes": self.bytes,
            "lengths": {array: path.stat().st_size for array, path in self._list_files() if path.exists()},
        }  # fmt: skip

    def restore(self, state: Commit, counts: np.ndarray) -> None:
        """Go back to a commit: files are truncated to their length then, later ones removed."""
        self.full_shards, self.size, self.bytes = state["closed"], dict(state["size"]), state["bytes"]
        self.pending = np.array(state["pending"], np.uint8)
        self.counts = counts.copy()
        known = {name for shard in self.full_shards for name in shard["files"]}
        current = {self.file_name(len(self.full_shards), array): length for array, length in state["lengths"].items()}
        for path in self.folder.iterdir():
            if path.name in current:
                os.truncate(path, current[path.name])
            elif path.name not in known:
                path.unlink()
        if self.upload is not None:
            for shard in self.full_shards:
                self.upload.add([self.folder / name for name in shard["files"]])

    def finish(self) -> SplitEntry:
        """Close the last shard; return the split's entry in the manifest."""
        self._close_shard()
        np.save(self.folder / COUNTS, self.counts, allow_pickle=False)
        path = self.folder / COUNTS
        if self.upload is not None:
            self.upload.send(path)
        return {
            "documents": sum(shard["documents"] for shard in self.full_shards),
            "sentences": sum(shard["sentences"] for shard in self.full_shards),
            "tokens": sum(shard["tokens"] for shard in self.full_shards),
            "bytes": self.bytes,
            "counts": {"bytes": path.stat().st_size, "sha256": hash_file(path)},
            "shards": self.full_shards,
        }

    def close(self) -> None:
        """Close the files without finishing the split."""
        for file in self.files.values():
            file.close()

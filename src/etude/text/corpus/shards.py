"""Writing a part of a corpus: append-only files, whose lengths at a commit are all that is needed to go on.

What is written after the last commit is cut off again when writing goes on, so a process may die at any moment.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from etude.text.corpus.bounds import BOUND
from etude.text.corpus.corpus import COUNTS, Shard, file_hash

SHARD_TOKENS = 1 << 26  # 128 MB of 16-bit ids: few files even for large corpora, each quick to hash


class SplitWriter:
    """Appends documents to the shards of one part."""

    def __init__(
        self, folder: Path, vocab: int, token_type: np.dtype, surfaces: bool, shard_tokens: int = SHARD_TOKENS
    ) -> None:
        self.folder, self.shard_tokens = folder, shard_tokens
        self.kinds = {"tokens": token_type, "documents": BOUND, "sentences": BOUND, "words": np.dtype("u1")}
        if surfaces:
            self.kinds |= {"surfaces": np.dtype("u1"), "letters": BOUND}
        self.closed: list[dict[str, Any]] = []  # what the manifest says of shards that are full
        self.counts = np.zeros(vocab, np.int64)
        self.bytes = 0
        self.files: dict[str, BinaryIO] = {}
        self._start_shard()
        folder.mkdir(parents=True, exist_ok=True)

    def _start_shard(self) -> None:
        self.size = {"tokens": 0, "documents": 0, "sentences": 0, "surfaces": 0}
        self.pending = np.zeros(0, np.uint8)  # flags of words that do not fill a byte yet

    def name(self, shard: int, array: str) -> str:
        suffix = {"words": "bits", "surfaces": "utf8"}.get(array) or f"u{8 * self.kinds[array].itemsize}"
        return f"{shard:05}.{array}.{suffix}"

    def _current(self) -> list[tuple[str, Path]]:
        return [(array, self.folder / self.name(len(self.closed), array)) for array in self.kinds]

    def append(self, added: Shard, text_bytes: int) -> None:
        """Adds whole documents; `added` counts bounds and letters from its own start, and has a byte a word flag."""
        if not len(added.tokens):
            return
        self._write("tokens", added.tokens)
        self._write("documents", added.documents + BOUND.type(self.size["tokens"]))
        self._write("sentences", added.sentences + BOUND.type(self.size["tokens"]))
        flags = np.concatenate([self.pending, added.words])
        whole = len(flags) // 8 * 8
        self._write("words", np.packbits(flags[:whole], bitorder="little"))
        self.pending = flags[whole:]
        if added.surfaces is not None and added.letters is not None:
            self._write("surfaces", added.surfaces)
            self._write("letters", added.letters + BOUND.type(self.size["surfaces"]))
            self.size["surfaces"] += len(added.surfaces)
        self.size["tokens"] += len(added.tokens)
        self.size["documents"] += len(added.documents)
        self.size["sentences"] += len(added.sentences)
        self.counts += np.bincount(added.tokens, minlength=len(self.counts))
        self.bytes += text_bytes
        # letters are counted in 32 bits too; half of that leaves room for one more block
        if self.size["tokens"] >= self.shard_tokens or self.size["surfaces"] >= 1 << 31:
            self._close_shard()

    def _write(self, array: str, values: np.ndarray) -> None:
        file = self.files.get(array)
        if file is None:
            path = self.folder / self.name(len(self.closed), array)
            file = self.files[array] = path.open("ab")
        file.write(np.ascontiguousarray(values.astype(self.kinds[array], copy=False)).data)

    def _close_shard(self) -> None:
        if not self.size["tokens"]:
            return
        if len(self.pending):
            self._write("words", np.packbits(self.pending, bitorder="little"))
        self._flush(close=True)
        for _, path in self._current():
            path.touch()  # fewer than eight tokens, or none with letters: a file may not be there yet
        files = {path.name: {"bytes": path.stat().st_size} for _, path in self._current()}
        size = {name: self.size[name] for name in ("tokens", "documents", "sentences")}
        self.closed.append({**size, "files": files})
        self._start_shard()

    def _flush(self, close: bool) -> None:
        for file in self.files.values():
            file.flush()
            os.fsync(file.fileno())
            if close:
                file.close()
        if close:
            self.files = {}

    def commit(self) -> dict[str, Any]:
        """Makes sure all is on disk, and says what `restore` needs to go on from here."""
        self._flush(close=False)
        return {
            "closed": self.closed, "size": self.size, "pending": self.pending.tolist(), "bytes": self.bytes,
            "lengths": {array: path.stat().st_size for array, path in self._current() if path.exists()},
        }  # fmt: skip

    def restore(self, state: dict[str, Any], counts: np.ndarray) -> None:
        """Goes back to a commit: files are cut to their length then, later ones removed."""
        self.closed, self.size, self.bytes = state["closed"], dict(state["size"]), state["bytes"]
        self.pending = np.array(state["pending"], np.uint8)
        self.counts = counts.copy()
        known = {name for shard in self.closed for name in shard["files"]}
        current = {self.name(len(self.closed), array): length for array, length in state["lengths"].items()}
        for path in self.folder.iterdir():
            if path.name in current:
                os.truncate(path, current[path.name])
            elif path.name not in known:
                path.unlink()

    def finish(self) -> dict[str, Any]:
        """Closes the last shard and hashes everything: the part's entry in the manifest."""
        self._close_shard()
        np.save(self.folder / COUNTS, self.counts, allow_pickle=False)
        for shard in self.closed:
            for name, facts in shard["files"].items():
                facts["sha256"] = file_hash(self.folder / name)
        path = self.folder / COUNTS
        totals = {name: sum(shard[name] for shard in self.closed) for name in ("documents", "sentences", "tokens")}
        counts = {"bytes": path.stat().st_size, "sha256": file_hash(path)}
        return {**totals, "bytes": self.bytes, "counts": counts, "shards": self.closed}

    def close(self) -> None:
        for file in self.files.values():
            file.close()

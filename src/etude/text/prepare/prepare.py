"""From files to a corpus: scan, train the tokenizer if asked, encode, report (see the modules of those names).

The result is a function of the texts and the settings: neither the number of workers nor an interruption shows in a
single byte. Work in progress lies in `<out>.partial`; the corpus itself appears by one rename when it is whole. The
same call goes on where an interrupted one stopped; a problem with the input leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from etude.errors import UserError, suggest_name
from etude.text.corpus.corpus import Corpus
from etude.text.corpus.manifest import FORMAT, VERSION
from etude.text.corpus.shard import choose_id_dtype
from etude.text.corpus.split_writer import SHARD_TOKENS
from etude.text.prepare import corpus_report as report
from etude.text.prepare.readers import Reading
from etude.text.prepare.record_filter import Where
from etude.text.prepare.record_filter import parse as parse_where
from etude.text.prepare.scan import SAMPLE, SAMPLE_SIZES, SCAN, Scanned, scan
from etude.text.prepare.sources import Given, Source, find_sources
from etude.text.prepare.tokenization import Written, tokenise
from etude.text.prepare.work_folder import WorkFolder, write_whole
from etude.text.prepare.worker_pool import Pool
from etude.text.tokenizer import training
from etude.text.tokenizer.tokenizer import TOKENIZER_FILE, Tokenizer

SAMPLE_BYTES = 32_000_000  # pieces and words hardly change with more
SMALL = 1 << 21  # bytes on disk below which other processes take longer to start than the work


@dataclass(frozen=True)
class Progress:
    phase: str  # "reading", "training" or "encoding"
    done: int  # bytes read from disk, of `total`
    total: int
    text: int  # bytes of text, unpacked
    documents: int
    seconds: float  # in this phase, in this process


def prepare(
    sources: Given,
    out: str | Path,
    tokenizer: str | Path | Tokenizer = "bpe:16000",
    *,
    valid: float = 0.01,
    workers: int | None = None,
    text_field: str = "text",
    where: str | None = None,
    unique: bool = False,
    errors: str = "strict",
    weights: Sequence[float] | None = None,
    one_document: bool = False,
    sample_bytes: int = SAMPLE_BYTES,
    seed: int = 0,
    ids: str = "auto",
    force: bool = False,
    progress: Callable[[Progress], None] | None = None,
    shard_tokens: int = SHARD_TOKENS,
    commit_seconds: float = 5.0,
) -> Corpus:
    """Turns text into a corpus at `out`, and opens its train part.

    sources: files, folders, patterns or `hub:name` data sets; a mapping gives each a weight.
    tokenizer: a spec such as "bpe:16000" to train one, or a tokenizer, or the path of one.
    valid: the share of documents held out, drawn by hash: equal documents fall on the same side.
    where: keeps records by their fields, as in "score>=3" (see text/prepare/record_filter.py).
    unique: drops documents whose text came before.
    errors: "replace" puts U+FFFD for invalid UTF-8 instead of stopping.
    weights: how many times each source counts: 2 takes every document twice, 0.5 every other one.
    one_document: a text file is one document; otherwise blank lines part documents.
    sample_bytes: how much text, drawn by hash, the tokenizer learns from.
    ids: "uint16" or "uint32" on disk; "auto" takes what the vocabulary needs.
    force: replaces a corpus that is already at `out`.
    """
    out = Path(out)
    if not 0 <= valid < 1:
        raise UserError(f"valid is the share of documents held out, from 0 to below 1, not {valid:g}.")
    if errors not in ("strict", "replace"):
        raise UserError(f"errors is 'strict' or 'replace', not '{errors}'.")
    if workers is not None and workers < 0:
        raise UserError(f"workers is the number of processes, not {workers}.")
    found = find_sources(sources, weights)
    filter_ = parse_where(where) if where else None
    plain = next((file.path for source in found for file in source.files if file.format == "text"), None)
    if filter_ is not None and plain is not None:
        raise UserError(f"The filter '{where}' looks at fields, but {plain} is plain text and has none.")
    given = _given_tokenizer(tokenizer)
    vocab = given.vocab if given else training.parse_spec(str(tokenizer)).size or 0
    id_type = _id_type(ids, vocab)
    if out.exists() and not force and not (out.is_dir() and not any(out.iterdir())):
        raise UserError(f"{out} exists already. Choose another name, or replace it with --force.")
    reading = Reading(text_field, filter_.fields if filter_ else (), one_document, errors)
    settings = {
        "version": VERSION, "reading": asdict(reading), "where": where, "seed": seed, "valid": valid, "unique": unique,
        "tokenizer": given.fingerprint if given else str(tokenizer), "sample_bytes": 0 if given else sample_bytes,
        "ids": ids, "shard_tokens": shard_tokens,
        "sources": [[s.name, s.weight, [[f.path, f.size, _changed(f.path)] for f in s.files]] for s in found],
    }  # fmt: skip
    disk = sum(file.size for source in found for file in source.files)
    if workers is None:
        workers = 0 if disk < SMALL and all(f.format != "hub" for s in found for f in s.files) else os.cpu_count() or 1
    job = _Job(found, reading, where, seed, progress or (lambda _: None), disk)
    with WorkFolder(out, settings) as work, Pool(workers) as pool:
        scanned = job.scan(pool, work, filter_, valid, 0 if given else sample_bytes, unique)
        made = given or job.train(work, str(tokenizer), scanned)
        id_type = id_type or choose_id_dtype(made.vocab)
        written = job.encode(pool, work, made, scanned, unique, id_type, shard_tokens, commit_seconds)
        if not written.parts["train"]["tokens"]:
            raise UserError("The corpus is empty: no document to train on has a single token under this tokenizer.")
        facts: dict[str, Any] = {
            "spec": tokenizer.kind if isinstance(tokenizer, Tokenizer) else str(tokenizer), "kind": made.kind,
            "vocab": made.vocab, "fingerprint": made.fingerprint,
        }  # fmt: skip
        if given is None:
            drawn = {"documents": scanned.sample_documents, "bytes": scanned.sample_bytes}
            facts["sample"] = {**drawn, "limit": sample_bytes, "seed": seed}
        counted = {**asdict(scanned), "dropped": scanned.duplicates if unique else 0}
        work.publish({
            "format": FORMAT, "version": VERSION, "tokenizer": facts,
            "settings": {name: settings[name] for name in ("reading", "where", "seed", "valid", "unique")},
            "sources": [
                {"name": source.name, "weight": source.weight, "files": files}
                for source, files in zip(found, scanned.files, strict=True)
            ],
            "parts": written.parts,
            "report": report.build(written.sums, counted, written.parts, written.counts, made.special.unknown),
        })  # fmt: skip
    return Corpus.open(out)


def _given_tokenizer(tokenizer: str | Path | Tokenizer) -> Tokenizer | None:
    """An existing tokenizer, or None if the text is a spec to train one by."""
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    kind = str(tokenizer).split(":")[0].split(",")[0]
    if kind in training.KINDS and not Path(tokenizer).exists():
        training.parse_spec(str(tokenizer))
        return None
    if not Path(tokenizer).exists():
        raise UserError(
            f"'{tokenizer}' is neither a tokenizer to train nor one that exists.{suggest_name(kind, training.KINDS)} "
            "Write a spec such as bpe:16000, or the path of a tokenizer.json."
        )
    return Tokenizer.open(tokenizer)


def _id_type(ids: str, vocab: int) -> np.dtype | None:
    """The type of ids on disk, None where the trained vocabulary will decide."""
    if ids == "auto":
        return None
    if ids not in ("uint16", "uint32"):
        raise UserError(f"ids is 'auto', 'uint16' or 'uint32', not '{ids}'.")
    chosen = np.dtype(ids).newbyteorder("<")
    if vocab > np.iinfo(chosen).max + 1:
        raise UserError(
            f"A vocabulary of {vocab} does not fit into {ids}, which ends at {np.iinfo(chosen).max}. "
            "Take --ids uint32, or a smaller tokenizer."
        )
    return chosen


def _changed(path: str) -> int:
    with contextlib.suppress(OSError):
        return Path(path).stat().st_mtime_ns
    return 0


@dataclass
class _Job:
    """The passes over one set of sources, with their progress told."""

    sources: list[Source]
    reading: Reading
    where: str | None
    seed: int
    progress: Callable[[Progress], None]
    disk: int

    def setup(self) -> dict[str, Any]:
        return {"task": "setup", "reading": asdict(self.reading), "where": self.where, "seed": self.seed}

    def scan(
        self, pool: Pool, work: WorkFolder, where: Where | None, valid: float, sample_bytes: int, unique: bool
    ) -> Scanned:
        if work.path(SCAN).exists():
            return Scanned.load(work.folder)
        started = time.monotonic()

        def tell(done: int, text: int, documents: int) -> None:
            self.progress(Progress("reading", done, self.disk, text, documents, time.monotonic() - started))

        pool.tell((self.setup(), {}))
        return scan(self.sources, self.reading, where, pool, work.folder, self.seed, valid, sample_bytes, unique, tell)

    def train(self, work: WorkFolder, spec: str, scanned: Scanned) -> Tokenizer:
        path = work.path(TOKENIZER_FILE)
        if path.exists():
            return Tokenizer.open(path)
        started = time.monotonic()
        size = scanned.sample_bytes
        self.progress(Progress("training", 0, size, size, scanned.sample_documents, 0.0))
        texts = np.fromfile(work.path(SAMPLE), np.uint8)
        sizes = np.load(work.path(SAMPLE_SIZES), allow_pickle=False)
        with Pool(0 if size < SMALL else 1, threads=True) as pool:  # apart, so that its memory is given back
            [(_, arrays)] = pool.map([({"task": "train", "spec": spec}, {"texts": texts, "sizes": sizes})])
        content = arrays["tokenizer"].tobytes().decode()
        write_whole(path, content)
        self.progress(Progress("training", size, size, size, scanned.sample_documents, time.monotonic() - started))
        return Tokenizer(content)

    def encode(
        self, pool: Pool, work: WorkFolder, tokenizer: Tokenizer, scanned: Scanned, unique: bool, id_type: np.dtype,
        shard_tokens: int, commit_seconds: float,
    ) -> Written:  # fmt: skip
        started = time.monotonic()

        def tell(done: int, total: int, text: int, documents: int) -> None:
            self.progress(Progress("encoding", done, total, text, documents, time.monotonic() - started))

        return tokenise(
            self.sources, self.reading, scanned, tokenizer, self.setup(), pool, work, unique, id_type, shard_tokens,
            commit_seconds, tell,
        )  # fmt: skip

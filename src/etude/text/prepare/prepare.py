"""Preparation of a corpus from text: scan, train the tokenizer if needed, encode, report.

The result is a function of the texts and the settings: neither the number of workers nor an interruption changes a
single byte. Work in progress lies in `<out>.partial`; the corpus itself appears by one rename when it is complete. The
same call continues an interrupted one; an error in the input leaves nothing behind.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from etude.cores import count_cores
from etude.errors import UserError, suggest_name
from etude.text.checked_files import load_array, write_atomically
from etude.text.corpus.corpus import Corpus
from etude.text.corpus.manifest import FORMAT, VERSION, Manifest, SampleEntry, TokenizerEntry
from etude.text.corpus.shard import choose_id_dtype
from etude.text.corpus.split_writer import SHARD_TOKENS
from etude.text.encodings import check_encoding
from etude.text.prepare import corpus_report
from etude.text.prepare.anchors import FIELDS as ANCHOR_FIELDS
from etude.text.prepare.linking import Linking, describe_entities
from etude.text.prepare.messages import Head
from etude.text.prepare.pairs import match_sides, parse_pairs
from etude.text.prepare.ray_pool import RayPool
from etude.text.prepare.readers import ReadSettings
from etude.text.prepare.record_filter import RecordFilter, parse_filter
from etude.text.prepare.remote_work import RemoteWorkFolder, refuse_existing_url
from etude.text.prepare.scan import SAMPLE, SAMPLE_SIZES, SCAN, ScanResult, scan
from etude.text.prepare.source_checks import PLAIN, refuse_sources_inside, refuse_text_field
from etude.text.prepare.sources import Source, SourceInput, describe_left_out, find_sources, identify_file
from etude.text.prepare.tokenization import EncodingResult, encode_sources
from etude.text.prepare.work_folder import CORPUS, START_AGAIN, WorkFolder, refuse_existing
from etude.text.prepare.worker_pool import Pool, WorkerPool
from etude.text.remote.urls import is_url, make_local
from etude.text.tokenizer import training
from etude.text.tokenizer.pair_tokenizer import TARGET_FILE, PairTokenizer, open_tokenizers
from etude.text.tokenizer.tokenizer import TOKENIZER_FILE, Tokenizer

log = logging.getLogger("etude")

SAMPLE_BYTES = 32_000_000  # pieces and words hardly change with more
MIN_BYTES_FOR_WORKERS = 1 << 21  # on disk; below it worker processes take longer to start than the work


@dataclass(frozen=True)
class Progress:
    """How far a preparation is."""

    phase: str  # "reading", "training" or "encoding"
    done: int  # bytes read from disk, of `total`
    total: int
    text: int  # bytes of text, unpacked
    documents: int
    seconds: float  # in this phase, in this process
    unit: str = "documents"  # what `documents` counts


def prepare(
    sources: SourceInput,
    out: str | Path,
    tokenizer: str | Path | Tokenizer = "bpe:16000",
    *,
    valid: float = 0.01,
    workers: int | None = None,
    on: Literal["here", "ray"] = "here",
    text_field: str = "text",
    where: str | None = None,
    pairs: str | None = None,
    target_tokenizer: str | Path | Tokenizer | None = None,
    unique: bool = False,
    errors: str = "strict",
    encoding: str | None = None,
    weights: Sequence[float] | None = None,
    one_document: bool = False,
    sample_bytes: int = SAMPLE_BYTES,
    seed: int = 0,
    ids: str = "auto",
    force: bool = False,
    linking: Linking | None = None,
    progress: Callable[[Progress], None] | None = None,
    shard_tokens: int = SHARD_TOKENS,
    commit_seconds: float = 5.0,
) -> Corpus:
    """Turn text into a corpus at `out`, and open its train split.

    sources: files, folders, patterns, URLs of them or `hub:name` data sets; a mapping gives each a weight.
    out: a folder, or a URL such as s3://bucket/corpus (remote_work.py).
    tokenizer: a spec such as "bpe:16000" to train one, or a tokenizer, or the path of one.
    valid: the share of documents held out, drawn by hash: equal documents are in the same split.
    on: "ray" has the machines of a Ray cluster parse and encode (ray_pool.py).
    where: selects records by their fields, as in "score>=3" (see record_filter.py).
    pairs: the fields of source and target, "en,ko": a corpus of pairs, each a document of two sentences (pairs.py).
    target_tokenizer: of the targets of pairs, where it is not `tokenizer` too; a folder with both gives both.
    unique: drops documents whose text came before.
    errors: "replace" puts U+FFFD for what is invalid in UTF-8, or in `encoding`, instead of stopping.
    encoding: of text, records and tables that are not UTF-8, by Python's name, such as "cp1252".
    weights: how many times each source counts: 2 takes every document twice, 0.5 every other one.
    one_document: a text file is one document; otherwise blank lines separate documents.
    sample_bytes: how much text, drawn by hash, the tokenizer is trained on.
    ids: "uint16" or "uint32" on disk; "auto" takes what the vocabulary needs.
    force: replaces a corpus that is already at `out`.
    linking: finds the mentions of a graph's entities, which become a column of the corpus (linking.py).
    """
    out = make_local(out)
    remote = out.rstrip("/") if isinstance(out, str) and is_url(out) else None
    if not 0 <= valid < 1:
        raise UserError(f"valid is the share of documents held out, from 0 to below 1, not {valid:g}.")
    if errors not in ("strict", "replace"):
        raise UserError(f"errors is 'strict' or 'replace', not '{errors}'.")
    if on not in ("here", "ray"):
        raise UserError(f"on is 'here' or 'ray', not '{on}'.")
    if workers is not None and workers < 0:
        raise UserError(f"workers is the number of processes, not {workers}.")
    if pairs is not None and linking is not None:
        raise UserError("A corpus of pairs is not linked to a graph: leave out --pairs, or --link.")
    source_list = find_sources(sources, weights)
    for source in source_list:
        if source.left_out:
            log.warning("%s: left out files with endings of no text: %s", source.name, describe_left_out(source))
    sides = parse_pairs(pairs) if pairs is not None else None
    if sides is not None:
        source_list = match_sides(source_list, sides)
    record_filter = parse_filter(where) if where else None
    plain = next((file.path for source in source_list for file in source.files if file.format in PLAIN), None)
    if text_field != ReadSettings.text_field:
        refuse_text_field(text_field, source_list, sides is not None)
    if record_filter is not None and plain is not None:
        raise UserError(f"The filter '{where}' looks at fields, but {plain} is plain text and has none.")
    chosen = _choose_tokenizers(tokenizer, target_tokenizer, pairs is not None)
    _parse_id_dtype(ids, max(side.size for side in chosen))  # raises before any work
    is_trained = any(side.given is None for side in chosen)
    if is_trained and sample_bytes < 1:
        raise UserError(
            f"A tokenizer is trained on a sample of the text, and {sample_bytes} bytes are none: take --sample-mb 32."
        )
    if remote is None:
        refuse_existing(Path(out), force)
        if Path(out).exists():
            refuse_sources_inside(Path(out), source_list)
    else:
        refuse_existing_url(remote, force)
    fields = record_filter.fields if record_filter else ()
    anchors = linking.anchors if linking is not None else None
    if anchors in ANCHOR_FIELDS:
        if plain is not None:
            raise UserError(f"--anchors {anchors} reads records, but {plain} is plain text and has none.")
        fields = (*fields, ANCHOR_FIELDS[anchors])
        text_field = ANCHOR_FIELDS[anchors] if anchors == "ernie" else text_field
    read_settings = ReadSettings(text_field, fields, one_document, errors, sides, check_encoding(encoding), anchors)
    settings = {
        "version": VERSION, "reading": read_settings.as_dict(), "where": where, "seed": seed, "valid": valid,
        "unique": unique,
        "tokenizer": chosen[0].key, "sample_bytes": sample_bytes if is_trained else 0, "ids": ids,
        "shard_tokens": shard_tokens,
        "sources": [
            [source.name, source.weight, [identify_file(file) for file in source.files]]
            for source in source_list
        ],
    }  # fmt: skip
    if len(chosen) > 1:
        settings["target_tokenizer"] = chosen[1].key
    if linking is not None:
        settings["linking"] = linking.fingerprint
    disk_bytes = sum(file.size for source in source_list for file in source.files)
    if workers is None:
        is_small = disk_bytes < MIN_BYTES_FOR_WORKERS and all(f.format != "hub" for s in source_list for f in s.files)
        workers = 0 if is_small else count_cores()
    preparation = _Preparation(source_list, read_settings, where, seed, progress or (lambda _: None), disk_bytes)
    work_folder = WorkFolder(Path(out), settings) if remote is None else RemoteWorkFolder(remote, settings)
    if work_folder.finish():
        return Corpus.open(remote or out)
    chosen_pool: Pool = RayPool() if on == "ray" else WorkerPool(workers)
    with work_folder as work, chosen_pool as pool:
        scan_result = preparation.scan(pool, work, record_filter, valid, sample_bytes if is_trained else 0, unique)
        trained = [
            side.given or preparation.train(work, side.spec, scan_result, None if len(chosen) == 1 else place)
            for place, side in enumerate(chosen)
        ]
        used_tokenizer = trained[0] if len(chosen) == 1 else PairTokenizer(trained[0].content, trained[1], str(out))
        # the size of a vocabulary of characters is not known before
        id_dtype = _parse_id_dtype(ids, used_tokenizer.largest_vocab) or choose_id_dtype(used_tokenizer.largest_vocab)
        result = preparation.encode(
            pool, work, used_tokenizer, scan_result, unique, id_dtype, shard_tokens, commit_seconds, linking
        )
        if not result.splits["train"]["tokens"]:
            raise _build_empty_error(result, scan_result, valid)
        sample: SampleEntry = {
            "documents": scan_result.sample_documents, "bytes": scan_result.sample_bytes, "limit": sample_bytes,
            "seed": seed,
        }  # fmt: skip
        entries = [side.describe(used, sample) for side, used in zip(chosen, trained, strict=True)]
        report = corpus_report.build_report(
            result.report_counts, scan_result, unique, result.splits, result.counts, used_tokenizer.special.unknown
        )
        manifest: Manifest = {
            "format": FORMAT, "version": VERSION, "tokenizer": entries[0],
            "settings": {name: settings[name] for name in ("reading", "where", "seed", "valid", "unique")},
            "sources": [
                {"name": source.name, "weight": source.weight, "files": files}
                for source, files in zip(source_list, scan_result.files, strict=True)
            ],
            "parts": result.splits,
            "report": report,
        }  # fmt: skip
        if len(entries) > 1:
            manifest["target_tokenizer"] = entries[1]
        if linking is not None:
            manifest["entities"] = describe_entities(
                linking,
                work.path(CORPUS),
                result.splits,
                result.report_counts.anchors,
                result.report_counts.unread_links,
            )
        work.publish(manifest)
    return Corpus.open(remote or out)


def _build_empty_error(result: EncodingResult, scan_result: ScanResult, valid: float) -> UserError:
    if result.report_counts.without_tokens:
        return UserError("The corpus is empty: no document to train on has a single token under this tokenizer.")
    return UserError(
        f"The corpus is empty: valid={valid:g} holds out, or the weights leave out, each of the "
        f"{scan_result.documents:,} documents. Take a smaller --valid, larger weights, or more text."
    )


@dataclass(frozen=True)
class _ChosenTokenizer:
    """A tokenizer as the user asked for it: a spec to train, or one that exists."""

    spec: str
    given: Tokenizer | None

    @property
    def size(self) -> int:
        """Its vocabulary; 0 where the text decides."""
        return self.given.vocab if self.given else training.parse_spec(self.spec).size or 0

    @property
    def key(self) -> str:
        """What an interrupted preparation knows it by."""
        return self.given.fingerprint if self.given else self.spec

    def describe(self, used: Tokenizer, sample: SampleEntry) -> TokenizerEntry:
        """Its entry in the manifest."""
        entry: TokenizerEntry = {
            "spec": self.spec, "kind": used.kind, "vocab": used.vocab, "fingerprint": used.fingerprint,
        }  # fmt: skip
        return entry if self.given else {**entry, "sample": sample}


def _choose_tokenizers(
    tokenizer: str | Path | Tokenizer, target: str | Path | Tokenizer | None, are_pairs: bool
) -> list[_ChosenTokenizer]:
    """Return one tokenizer, or two: that of sources and that of targets."""
    if target is not None and not are_pairs:
        raise UserError("--target-tokenizer is the tokenizer of targets: it goes with --pairs.")
    given = _open_given_tokenizer(tokenizer)
    name = tokenizer.kind if isinstance(tokenizer, Tokenizer) else str(tokenizer)
    if not isinstance(given, PairTokenizer):
        sides = [_ChosenTokenizer(name, given)]
    elif are_pairs:
        sides = [_ChosenTokenizer(name, given.source), _ChosenTokenizer(name, given.target)]
    else:
        raise UserError(f"{name} has a tokenizer for each side of pairs: name the file of one, or give --pairs.")
    if target is not None:
        given = _open_given_tokenizer(target)
        name = target.kind if isinstance(target, Tokenizer) else str(target)
        sides = [sides[0], _ChosenTokenizer(name, given.target if given else None)]
    return sides


def _open_given_tokenizer(tokenizer: str | Path | Tokenizer) -> Tokenizer | None:
    """Open an existing tokenizer; None if the text is the spec of one to train."""
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
    return open_tokenizers(tokenizer)


def _parse_id_dtype(ids: str, vocab: int) -> np.dtype | None:
    """The type of ids on disk, None where the trained vocabulary will decide."""
    if ids == "auto":
        return None
    if ids not in ("uint16", "uint32"):
        raise UserError(f"ids is 'auto', 'uint16' or 'uint32', not '{ids}'.")
    dtype = np.dtype(ids).newbyteorder("<")
    if vocab > np.iinfo(dtype).max + 1:
        raise UserError(
            f"A vocabulary of {vocab} does not fit into {ids}, which ends at {np.iinfo(dtype).max}. "
            "Take --ids uint32, or a smaller tokenizer."
        )
    return dtype


@dataclass
class _Preparation:
    """The passes over one set of sources, with their progress reported."""

    sources: list[Source]
    read_settings: ReadSettings
    where: str | None
    seed: int
    progress: Callable[[Progress], None]
    disk_bytes: int

    def setup(self) -> Head:
        """Build the head of the request that sets up a worker."""
        return {"task": "setup", "reading": self.read_settings.as_dict(), "where": self.where, "seed": self.seed}

    def scan(
        self,
        pool: Pool,
        work: WorkFolder,
        where: RecordFilter | None,
        valid: float,
        sample_bytes: int,
        unique: bool,
    ) -> ScanResult:
        if work.path(SCAN).exists():
            return ScanResult.load(work.folder)
        start_time = time.monotonic()

        def report_progress(done: int, text: int, documents: int) -> None:
            self.progress(Progress("reading", done, self.disk_bytes, text, documents, time.monotonic() - start_time))

        pool.broadcast((self.setup(), {}))
        return scan(
            self.sources,
            self.read_settings,
            where,
            pool,
            work.folder,
            self.seed,
            valid,
            sample_bytes,
            unique,
            report_progress,
        )

    def train(self, work: WorkFolder, spec: str, scan_result: ScanResult, side: int | None) -> Tokenizer:
        """Train a tokenizer on the sample; with `side`, on the sources (0) or the targets (1) of its pairs."""
        path = work.path(TARGET_FILE if side == 1 else TOKENIZER_FILE)
        if path.exists():
            return Tokenizer.open(path)
        start_time = time.monotonic()
        size = scan_result.sample_bytes
        self.progress(Progress("training", 0, size, size, scan_result.sample_documents, 0.0))
        texts = np.fromfile(work.path(SAMPLE), np.uint8)
        sizes = load_array(work.path(SAMPLE_SIZES), START_AGAIN)
        workers = 0 if size < MIN_BYTES_FOR_WORKERS else 1  # a process of its own, so that its memory is freed
        with WorkerPool(workers, threads=True) as pool:
            head = {"task": "train", "spec": spec, "side": side}
            [(_, arrays)] = pool.map([(head, {"texts": texts, "sizes": sizes})])
        content = arrays["tokenizer"].tobytes().decode()
        write_atomically(path, content)
        self.progress(
            Progress("training", size, size, size, scan_result.sample_documents, time.monotonic() - start_time)
        )
        return Tokenizer(content)

    def encode(
        self, pool: Pool, work: WorkFolder, tokenizer: Tokenizer, scan_result: ScanResult, unique: bool,
        id_dtype: np.dtype, shard_tokens: int, commit_seconds: float, linking: Linking | None,
    ) -> EncodingResult:  # fmt: skip
        start_time = time.monotonic()

        def report_progress(done: int, total: int, text: int, documents: int) -> None:
            self.progress(Progress("encoding", done, total, text, documents, time.monotonic() - start_time))

        return encode_sources(
            self.sources, self.read_settings, scan_result, tokenizer, self.setup(), pool, work, unique, id_dtype,
            shard_tokens, commit_seconds, report_progress, linking,
        )  # fmt: skip

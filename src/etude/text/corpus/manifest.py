"""The manifest of a corpus: what its `manifest.json` holds, and the check of files against it.

The names of the keys are the format on disk: "parts" are the splits of the corpus.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Literal, NotRequired, TypedDict, cast

from etude.errors import UserError

MANIFEST, COUNTS = "manifest.json", "counts.npy"
FORMAT, VERSION = "etude corpus", 1
SPLITS = ("train", "valid")

Count = Literal["tokens", "documents", "sentences"]


class FileEntry(TypedDict):
    """A file of a split."""

    bytes: int
    sha256: NotRequired[str]  # not while the corpus is being written


class ShardSize(TypedDict):
    """How much text a shard holds."""

    tokens: int
    documents: int
    sentences: int


class ShardEntry(ShardSize):
    """A shard of a split."""

    files: dict[str, FileEntry]


class SplitEntry(ShardSize):
    """A split. One in memory has no files."""

    bytes: int  # of the text in UTF-8
    counts: NotRequired[FileEntry]  # of token ids
    shards: NotRequired[list[ShardEntry]]
    words: NotRequired[int]


class SampleEntry(TypedDict):
    """The sample of text that a tokenizer was trained on."""

    documents: int
    bytes: int
    limit: int  # the most bytes it could have
    seed: int


class TokenizerEntry(TypedDict):
    """The tokenizer."""

    spec: NotRequired[str]  # as the user gave it
    kind: str
    vocab: int
    fingerprint: str
    sample: NotRequired[SampleEntry]


class SourceFileEntry(TypedDict):
    """A file that text was read from."""

    path: str
    bytes: int
    sha256: str


class SourceEntry(TypedDict):
    """A source as the user gave it, and its files."""

    name: str
    weight: float
    files: list[SourceFileEntry]


class Report(TypedDict):
    """What is counted while a corpus is prepared (text/prepare/corpus_report.py)."""

    documents: int
    duplicates: int
    dropped: int
    filtered: int
    empty: int
    cut: int
    without_tokens: int
    non_text: int
    non_text_examples: list[list[str | int]]  # file and line
    scripts: dict[str, float]
    characters: dict[str, int]
    words: int
    tokens_a_word: float
    bytes_a_token: float
    unknown_share: float
    unigram_entropy_nats: float
    unigram_bits_a_byte: float
    vocabulary_used: int


class EntitiesEntry(TypedDict):
    """What the entities of a corpus are numbers of, and where they come from."""

    graph: str  # fingerprint of the graph
    linker: NotRequired[str]  # fingerprint of what linked the text; none where documents came with their entities


class Manifest(TypedDict):
    """The whole manifest. That of a corpus in memory has no settings, sources and report."""

    format: str
    version: int
    tokenizer: TokenizerEntry
    parts: dict[str, SplitEntry]
    settings: NotRequired[dict[str, object]]
    sources: NotRequired[list[SourceEntry]]
    report: NotRequired[Report]
    entities: NotRequired[EntitiesEntry]


def corpus_pairs(manifest: Manifest) -> tuple[str, str] | None:
    """Return the names of source and target in a corpus of pairs; None of any other corpus."""
    reading = manifest.get("settings", {}).get("reading")
    names = reading.get("pairs") if isinstance(reading, dict) else None
    return (str(names[0]), str(names[1])) if names else None


def read_manifest(folder: Path) -> Manifest:
    """Read and check the manifest of a corpus folder."""
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
    return cast("Manifest", manifest)


def check_file(path: Path, entry: FileEntry, hashing: bool) -> None:
    """Check that a file has the length, and with `hashing` the SHA-256, that the manifest says."""
    try:
        length = path.stat().st_size
    except FileNotFoundError:
        raise UserError(f"{path} is missing from the corpus. Prepare the corpus again.") from None
    if length != entry["bytes"]:
        kind = "truncated" if length < entry["bytes"] else "altered"
        raise UserError(
            f"{path} is {kind}: {length} bytes, the manifest says {entry['bytes']}. Prepare the corpus again."
        )
    if hashing and hash_file(path) != entry["sha256"]:
        raise UserError(f"{path} was altered: its SHA-256 is not the one in the manifest. Prepare the corpus again.")


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

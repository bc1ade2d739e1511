"""The manifest of a corpus: what its `manifest.json` holds, and the check of files against it.

The names of the keys are the format on disk: "parts" are the splits of the corpus.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NotRequired, TypedDict, cast

from etude.text.checked_files import FileEntry, load_manifest

COUNTS = "counts.npy"
FORMAT, VERSION = "etude corpus", 1
SPLITS = ("train", "valid")

Count = Literal["tokens", "documents", "sentences"]


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
    # the rest not of a corpus in memory, whose documents came with their entities
    linker: NotRequired[str]  # fingerprint of what linked the text
    anchors: NotRequired[str | None]  # format of anchors in the text
    anchor_count: NotRequired[int]  # also of those whose entity the graph does not have
    mentions: NotRequired[int]
    entities: NotRequired[int]  # that are mentioned at all
    token_share: NotRequired[float]  # of tokens that are pieces of mentions
    top: NotRequired[list[list[str | int]]]  # names of the most frequent entities, and how often they are mentioned


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
    return cast("Manifest", load_manifest(folder, "corpus", VERSION, "etude prepare TEXT"))

"""The manifest of a corpus: what its `manifest.json` holds, and the check of files against it.

The names of the keys are the format on disk: "parts" are the splits of the corpus.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict  # that of Python 3.11 cannot be checked

from etude.errors import UserError, quote_path
from etude.settings import Count as Size
from etude.text.checked_files import MANIFEST, FileEntry, check_manifest, load_manifest

COUNTS = "counts.npy"
COMMAND = "etude prepare TEXT"
ADVICE = "Prepare the corpus again."
FORMAT, VERSION = "etude corpus", 1
SPLITS = ("train", "valid")
ARRAYS = {
    "tokens": ("u16", "u32"), "documents": ("u32",), "sentences": ("u32",), "words": ("bits",), "surfaces": ("utf8",),
    "letters": ("u32",), "entities": ("i32",),
}  # fmt: skip
_NAMES = "|".join(f"{array}\\.(?:{'|'.join(suffixes)})" for array, suffixes in ARRAYS.items())
FileName = Annotated[str, Field(pattern=f"^[0-9]{{1,12}}\\.(?:{_NAMES})$")]  # it stays inside the folder of its split
SplitName = Annotated[str, Field(pattern="^[a-z][a-z0-9_]{0,30}$")]

Count = Literal["tokens", "documents", "sentences"]


class ShardSize(TypedDict):
    """How much text a shard holds."""

    tokens: Size
    documents: Size
    sentences: Size


class ShardEntry(ShardSize):
    """A shard of a split."""

    files: dict[FileName, FileEntry]


class SplitEntry(ShardSize):
    """A split. One in memory has no files."""

    bytes: Size  # of the text in UTF-8
    counts: NotRequired[FileEntry]  # of token ids
    shards: NotRequired[list[ShardEntry]]
    words: NotRequired[Size]


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
    vocab: Size
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
    unread_links: NotRequired[int]  # wiki links that stayed in the text, where any did
    mentions: NotRequired[int]
    entities: NotRequired[int]  # that are mentioned at all
    token_share: NotRequired[float]  # of tokens that are pieces of mentions
    top: NotRequired[list[list[str | int]]]  # names of the most frequent entities, and how often they are mentioned


class Manifest(TypedDict):
    """The whole manifest. That of a corpus in memory has no settings, sources and report."""

    format: str
    version: int
    tokenizer: TokenizerEntry
    target_tokenizer: NotRequired[TokenizerEntry]  # of pairs whose sides have a tokenizer each
    parts: dict[SplitName, SplitEntry]
    settings: NotRequired[dict[str, object]]
    sources: NotRequired[list[SourceEntry]]
    report: NotRequired[Report]
    entities: NotRequired[EntitiesEntry]
    remade: NotRequired[dict[str, float]]  # of an altered copy: how it was altered (study/altered_corpus.py)


def corpus_pairs(manifest: Manifest) -> tuple[str, str] | None:
    """Return the names of source and target in a corpus of pairs; None of any other corpus.

    Of fields inside an object, translation.en and translation.ko, they are the last parts, unless those are the same.
    """
    reading = manifest.get("settings", {}).get("reading")
    names = reading.get("pairs") if isinstance(reading, dict) else None
    if not isinstance(names, list) or len(names) != 2:
        return None
    source, target = map(str, names)
    inner = source.rpartition(".")[2], target.rpartition(".")[2]
    return inner if inner[0] != inner[1] and all(inner) else (source, target)


def read_manifest(folder: Path) -> Manifest:
    """Read and check the manifest of a corpus folder."""
    manifest = load_manifest(folder, Manifest, "corpus", VERSION, COMMAND)
    _check_splits(manifest, str(folder / MANIFEST))
    return manifest


def read_remote_manifest(content: bytes | None, url: str) -> Manifest:
    """Check the manifest of a corpus at a URL, None where there is none; its files are cached by their hashes."""
    if content is None:
        raise UserError(f"{url} is not a corpus: it has no {MANIFEST}. Make one with '{COMMAND} -o {quote_path(url)}'.")
    path = f"{url}/{MANIFEST}"
    manifest = check_manifest(content, path, Manifest, "corpus", VERSION, COMMAND)
    _check_splits(manifest, path)
    for name, split in manifest["parts"].items():
        files = [file for shard in split.get("shards", []) for file in shard["files"].values()]
        if not all("sha256" in file for file in [*files, *([split["counts"]] if "counts" in split else [])]):
            raise UserError(f"{path} is damaged: a file of '{name}' has no hash. {ADVICE}")
    return manifest


def _check_splits(manifest: Manifest, path: str) -> None:
    for name, split in manifest["parts"].items():
        shards = split.get("shards", [])
        if split["tokens"] and ("counts" not in split or not shards):
            raise UserError(f"{path} is damaged: the split '{name}' has no shards. {ADVICE}")
        for number, shard in enumerate(shards):
            _check_shard(shard, f"{path} is damaged: shard {number} of '{name}'")


def _check_shard(shard: ShardEntry, place: str) -> None:
    """Check that a shard names each array once, and that lengths of files are those of so many tokens."""
    files: dict[str, tuple[str, int]] = {}
    for name, entry in shard["files"].items():
        _, array, suffix = name.split(".")
        if array in files:
            raise UserError(f"{place} has two files of {array}. {ADVICE}")
        files[array] = (suffix, entry["bytes"])
    missing = [array for array in ("tokens", "documents", "sentences", "words") if array not in files]
    if missing or ("surfaces" in files) != ("letters" in files):
        raise UserError(f"{place} has no file of {missing[0] if missing else 'surfaces or letters'}. {ADVICE}")
    counts = {
        "tokens": shard["tokens"], "documents": shard["documents"], "sentences": shard["sentences"],
        "letters": shard["tokens"], "entities": shard["tokens"],
    }  # fmt: skip
    for array, (suffix, size) in files.items():
        width = {"u16": 2, "u32": 4, "i32": 4}.get(suffix, 1)
        expected = -(-shard["tokens"] // 8) if array == "words" else width * counts.get(array, size)
        if size != expected:
            raise UserError(f"{place} has {size} bytes of {array}, {expected} are expected. {ADVICE}")

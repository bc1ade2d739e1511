"""What a pre-training reads: a corpus, or for an objective over triples the train split of a graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, NotRequired

from pydantic import Field
from typing_extensions import TypedDict  # that of Python 3.11 cannot be checked

from etude.errors import UserError
from etude.graph.entity_table import format_entities
from etude.graph.graph import Graph
from etude.graph.graph_split import GraphSplit
from etude.recipes.schema import Recipe
from etude.settings import read_json
from etude.text.checked_files import MANIFEST
from etude.text.corpus.corpus import Corpus
from etude.text.corpus.manifest import TokenizerEntry
from etude.text.remote.urls import is_url, make_local

Source = Corpus | GraphSplit
ORIGIN = "origin.json"


class StartEntry(TypedDict):
    """The model whose weights a run starts from."""

    folder: str
    fingerprint: str
    partial: NotRequired[bool]


class EntitiesSource(TypedDict):
    """The vectors of entities that a run starts from."""

    source: str
    fingerprint: str


class Origin(TypedDict):
    """What `origin.json` of a run holds."""

    fingerprint: str | None
    corpus: NotRequired[str]
    graph: NotRequired[str]
    imported: NotRequired[str]
    pairs: NotRequired[Annotated[list[str], Field(min_length=2, max_length=2)]]
    start: NotRequired[StartEntry | None]
    entities: NotRequired[EntitiesSource | None]


def read_origin(run: Path) -> Origin:
    """Read where a run comes from; UserError where the file is missing or damaged."""
    path = run / ORIGIN
    if not path.is_file():
        raise UserError(f"{run} has no {ORIGIN}, which says what it learns from. Take it from a copy, or train again.")
    return read_json(path, Origin, "Take it from a copy, or train again.")


def open_source(source: str | Path | Source | Graph, recipe: Recipe) -> Source:
    """Open what a recipe reads, a corpus or a graph; UserError where the folder is not of this kind."""
    if isinstance(source, Graph):
        source = GraphSplit.of(source)
    if isinstance(source, (str, Path)):
        return GraphSplit.open(source) if recipe.reads_graph else Corpus.open(source)
    if isinstance(source, GraphSplit) != recipe.reads_graph:
        wanted, given = ("a graph", "a corpus") if recipe.reads_graph else ("a corpus", "a graph")
        raise UserError(f"The recipe {recipe.name} learns from {wanted}, and {given} was given.")
    return source


def resolve_for(recipe: Recipe, source: Source) -> Recipe:
    """Return the complete recipe: sizes that follow from the source are filled in."""
    if isinstance(source, GraphSplit):
        return recipe.resolve(vocab=len(source.graph.entities), relations=len(source.graph.relations))
    tokenizer = source.tokenizer
    return recipe.resolve(tokenizer.vocab, target_vocab=None if tokenizer.shares_ids else tokenizer.target.vocab)


def held_out(source: Source) -> Source | None:
    """Return the part that is never trained on, where there is one."""
    if isinstance(source, GraphSplit):
        return source.held_out
    part = source.manifest["parts"].get("valid")
    return source.open_split("valid") if part and part["tokens"] else None


def describe_source(source: Source) -> str:
    """Say how much a source holds, in words."""
    if isinstance(source, GraphSplit):
        return (
            f"{len(source.triples):,} triples of {len(source.graph.entities):,} entities and "
            f"{len(source.graph.relations):,} relations"
        )
    return f"{source.total:,} tokens in {len(source.documents):,} documents"


def describe_tokenizer(source: Source) -> str:
    """Say which tokenizer a corpus was made with, in words: a corpus may have another one than the recipe names."""
    if isinstance(source, GraphSplit):
        return "none"
    text = _describe_entry(source.manifest["tokenizer"])
    if "target_tokenizer" not in source.manifest:
        return text
    return f"{text} (sources); {_describe_entry(source.manifest['target_tokenizer'])} (targets)"


def _describe_entry(entry: TokenizerEntry) -> str:
    spec = entry.get("spec") or entry["kind"]
    if "/" in spec or spec.endswith(".json"):  # of a run or a file; a card holds no path of a machine
        spec = f"{entry['kind']} of {Path(spec).name}"
    return f"{spec}, {entry['vocab']:,} tokens"


# --- of a run ---------------------------------------------------------------------------------------


def source_files(source: Source) -> dict[str, str]:
    """The files of a run that say what it reads, by name: its origin, and the tokenizer or the names of the graph."""
    kind = "graph" if isinstance(source, GraphSplit) else "corpus"
    is_remote = isinstance(source, Corpus) and is_url(source.location)
    place = source.location if isinstance(source, Corpus) and is_remote else str(source.folder.resolve())
    content: dict[str, object] = {kind: place, "fingerprint": source.fingerprint}
    if isinstance(source, Corpus) and source.pairs is not None:  # what a file of pairs to translate calls its columns
        content["pairs"] = list(source.pairs)
    files = {ORIGIN: json.dumps(content, indent=1, ensure_ascii=False)}
    return files | (format_entities(source.graph) if isinstance(source, GraphSplit) else {})


def reopen_source(run: Path, recipe: Recipe, folder: str | Path | None = None, option: str = "--corpus") -> Source:
    """Open the source of a run, from `folder` where it moved, after checking that it is still the same one.

    `option` is what says on a command line where it is now.
    """
    origin = read_origin(run)
    kind = "graph" if recipe.reads_graph else "corpus"
    path = str(make_local(str(folder or (origin.get("graph") if recipe.reads_graph else origin.get("corpus")) or "")))
    if not is_url(path) and not (Path(path) / MANIFEST).is_file():
        raise UserError(f"The {kind} of {run} is not at {path}. Say where it is now with {option} FOLDER.")
    source = open_source(path, recipe)
    if source.fingerprint != origin["fingerprint"]:
        raise UserError(
            f"{path} is not the {kind} {run} was started on (its fingerprint differs). "
            f"Point {option} to the original, or start a new run."
        )
    return source

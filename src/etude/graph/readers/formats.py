"""Which reader a file needs: by its name, and for ConceptNet's dump by its first line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from etude.errors import UserError
from etude.graph.readers.base import EntityRow, ReadSettings, SkipCounts, TripleBlock
from etude.graph.readers.conceptnet import MARK, read_conceptnet
from etude.graph.readers.json_lines import read_entity_json, read_triple_json
from etude.graph.readers.lines import FileWatch
from etude.graph.readers.ntriples import read_ntriples
from etude.graph.readers.tables import find_triple_columns, read_entity_table, read_triple_table
from etude.text.prepare.decompression import DECOMPRESSION_ERRORS, InputFile
from etude.text.prepare.sources import COMPRESSIONS, SourceFile, describe_file

TripleReader = Callable[[SourceFile, ReadSettings, SkipCounts, FileWatch | None], Iterator[TripleBlock]]
SUFFIXES = {".nt": "ntriples", ".ntriples": "ntriples", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv"}
READERS: dict[str, TripleReader] = {
    "tsv": read_triple_table, "csv": read_triple_table, "jsonl": read_triple_json, "ntriples": read_ntriples,
    "conceptnet": read_conceptnet,
}  # fmt: skip
UNREADABLE = {
    ".ttl": "Turtle", ".rdf": "RDF/XML", ".owl": "RDF/XML", ".xml": "XML", ".json": "JSON", ".parquet": "Parquet",
    ".nq": "N-Quads", ".trig": "TriG", ".bz2": "bzip2",
}  # fmt: skip


def describe_graph_file(name: str | Path) -> SourceFile:
    """Return a file with its format; what is not one of the suffixes is a table with tabs."""
    path = Path(name)
    if path.is_dir():
        raise UserError(f"{name} is a folder. Name the files of the graph.")
    file = describe_file(str(name))
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    suffix = suffixes[-1] if suffixes else ""
    if suffix in UNREADABLE:
        raise UserError(
            f"{name}: {UNREADABLE[suffix]} is not read. Convert it to N-Triples (.nt), to JSON lines (.jsonl) or to a "
            "table with tabs (.tsv), packed as .gz, .xz or .zst if you like."
        )
    form = SUFFIXES.get(suffix, "tsv")
    return replace(file, format="conceptnet" if form in ("tsv", "csv") and _is_conceptnet(file) else form)


def _is_conceptnet(file: SourceFile) -> bool:
    input_file = InputFile(file, hashing=False)
    try:
        return input_file.read(len(MARK)) == MARK.encode()
    except DECOMPRESSION_ERRORS:
        return False  # the reader will say what is wrong with it
    finally:
        input_file.close()


def read_triples(
    file: SourceFile, settings: ReadSettings, counts: SkipCounts, watch: FileWatch | None = None
) -> Iterator[TripleBlock]:
    """Yield the triples of a file of any format; `counts` gets what was left out."""
    if settings.columns is not None and file.format in ("ntriples", "conceptnet"):
        raise UserError(f"{file.path}: the columns of this format are fixed; leave --triple-columns out.")
    return READERS[file.format](file, settings, counts, watch)


def read_entities(
    file: SourceFile, settings: ReadSettings, counts: SkipCounts, watch: FileWatch | None = None
) -> Iterator[list[EntityRow]]:
    """Yield what a file of any format says of entities; `counts` gets what was left out."""
    columns = settings.columns
    if columns is not None and file.format in ("ntriples", "conceptnet"):
        raise UserError(f"{file.path}: the columns of this format are fixed; leave --entity-columns out.")
    if file.format == "jsonl":
        return read_entity_json(file, columns, watch)
    if file.format in ("tsv", "csv"):
        return read_entity_table(file, columns, watch)
    if file.format == "ntriples":  # labels in a file of their own
        return (block.rows for block in read_ntriples(file, settings, counts, watch))
    raise UserError(f"{file.path}: ConceptNet's dump has no labels to read. Give it as the triples.")


def read_names(path: Path) -> Iterator[tuple[str, tuple[str, str, str]]]:
    """Yield (place, (head, relation, tail)) of a file of triples of any format, as `etude prepare --graph` reads it."""
    if path.is_dir():
        raise UserError(f"{path} is a folder. Give a file of triples, or the name of a split: train, valid or test.")
    if not path.is_file():
        raise UserError(f"There is no file {path}.")
    file = describe_graph_file(path)
    settings = ReadSettings(find_triple_columns(file) if file.format in ("tsv", "csv") else None)
    for block in read_triples(file, settings, SkipCounts()):
        for line, *names in zip(block.lines, block.heads, block.relations, block.tails, strict=True):
            head, relation, tail = names
            yield f"{path}:{line}", (head, relation, tail)

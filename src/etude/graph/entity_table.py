"""Vectors of a graph's entities and relations: read from a run, from a text file, or from OpenKE's files.

    a run of `etude pretrain transe GRAPH`   model.safetensors; entities.json has the names and the graph's fingerprint
    a text file                              "E D" in the first line, then a line an entity: its name, a tab, D numbers.
                                             The first line may be missing, a space may stand for the tab, and tabs
                                             for the spaces between numbers
    OpenKE's folder (ERNIE's kg_embed)       entity2vec.vec (D numbers a line) and entity2id.txt (name, tab, number);
                                             relation2vec.vec and relation2id.txt where they are there

Ids of entities mean something in one graph alone. A table therefore carries the fingerprint of its graph, and `align`
brings it into the order of another graph by the names. Numbers are written with as many digits as float32 needs to be
read back the same. Loading is strict: a line that does not fit is an error with its place.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import json
import lzma
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

import numpy as np
from typing_extensions import TypedDict  # that of Python 3.11 cannot be checked

from etude.errors import UserError, explain_write_failure, quote_path
from etude.plain_yaml import read_yaml
from etude.settings import read_json
from etude.text.run_checksums import verify_checksums

if TYPE_CHECKING:
    from etude.graph.graph import Graph

ENTITIES = "entities.json"  # of a run: its graph's fingerprint and names, in the place of a tokenizer
_WEIGHTS, _RECIPE = "model.safetensors", "recipe.yaml"
LONGEST_LINE = 1 << 24  # bytes: a name and a million numbers
LONGEST_NUMBER = 15  # digits of a count, a width or a row
_ENTITY_WEIGHTS, _RELATION_WEIGHTS = "model.entities.weight", "model.relations.weight"


@dataclass(frozen=True)
class EntityTable:
    """Vectors of entities and relations by name."""

    vectors: np.ndarray  # (E, D) float32
    relations: np.ndarray  # (R, D_r) float32: of the same width but for RotatE, whose relations are angles
    names: list[str]  # of the entities, by row
    relation_names: list[str]
    graph: str | None  # the fingerprint of the graph whose ids are the rows; None: a file does not tell it
    score: str | None = None  # of the model that learnt them: transe, rotate, distmult, complex; None: as above

    @property
    def width(self) -> int:
        """D, the numbers of an entity's vector."""
        return int(self.vectors.shape[1])

    @cached_property
    def rows(self) -> dict[str, int]:
        """The row of each entity by its name."""
        return {name: row for row, name in enumerate(self.names)}

    def vector(self, name: str) -> np.ndarray:
        """Return the vector (D,) of an entity; UserError where the table has none of this name."""
        row = self.rows.get(name)
        if row is None:
            raise UserError(f"There is no entity {name!r} among the {len(self.names):,} of this table.")
        vector: np.ndarray = self.vectors[row]
        return vector

    def align(self, graph: Graph) -> EntityTable:
        """Return the table with the rows of `graph`: itself where it is of this graph, else matched by name."""
        if self.graph == graph.fingerprint:
            return self
        names = list(graph.entities)
        missing = [name for name in names if name not in self.rows]
        if missing:
            raise UserError(
                f"{len(missing):,} of the {len(names):,} entities of the graph have no vector, {missing[0]!r} for one. "
                "Are the vectors of another graph? Train new ones: etude pretrain transe GRAPH -o RUN."
            )
        vectors = self.vectors[[self.rows[name] for name in names]]
        return EntityTable(vectors, self.relations, names, self.relation_names, graph.fingerprint, self.score)


def load_entity_table(source: str | Path) -> EntityTable:
    """Read the vectors of a run, a text file or OpenKE's folder; raise UserError where there are none."""
    source = Path(source)
    if (source / _RECIPE).is_file():
        return _read_run(source)
    if (source / "entity2vec.vec").is_file():
        return _read_openke(source)
    if source.is_dir():
        raise UserError(
            f"{source} holds no vectors of entities: neither a run (recipe.yaml) nor OpenKE's entity2vec.vec is there."
        )
    if not source.is_file():
        raise UserError(f"There is no run and no file of entity vectors at {source}.")
    names, vectors = _read_text(source)
    return EntityTable(vectors, np.zeros((0, vectors.shape[1]), np.float32), names, [], None)


def write_entity_file(names: Sequence[str], vectors: np.ndarray, path: str | Path) -> None:
    """Write vectors as a text file, complete or not at all: "E D", then name, tab and numbers of each."""
    path = Path(path)
    bad = next((name for name in names if not name or any(letter in name for letter in "\t\r\n")), None)
    if bad is not None:
        raise UserError(f"The name {bad!r} cannot be written to {path}: a tab or a line's end would divide it.")
    writing = path.with_name(f".{path.name}.writing-{os.getpid()}")
    try:
        with explain_write_failure(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        with explain_write_failure(path), open(writing, "w", encoding="utf-8", newline="\n") as file:
            file.write(f"{len(names)} {vectors.shape[1]}\n")
            for name, vector in zip(names, vectors.astype(np.float32), strict=True):
                file.write(f"{name}\t{' '.join(map(str, vector))}\n")
            file.flush()
            os.fsync(file.fileno())
        writing.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            writing.unlink(missing_ok=True)
        raise


def format_entities(graph: Graph) -> dict[str, str]:
    """Return the file of a run that names its entities and relations, by its name."""
    content = {
        "graph": graph.fingerprint,
        "entities": list(graph.entities),
        "relations": list(graph.relations),
    }
    return {ENTITIES: json.dumps(content, ensure_ascii=False)}


class GraphNames(TypedDict):
    """What `entities.json` of a run on a graph holds."""

    graph: str  # its fingerprint
    entities: list[str]
    relations: list[str]


def read_entities(run: Path) -> tuple[str, list[str], list[str]]:
    """Return the graph's fingerprint, the names of entities and those of relations of a run on a graph."""
    path = run / ENTITIES
    if not path.is_file():
        raise UserError(
            f"{run} holds no vectors of entities: it has no {ENTITIES}. 'etude pretrain transe GRAPH' makes such a run."
        )
    content = read_json(path, GraphNames, "Copy the run again, or train a new one.")
    return content["graph"], content["entities"], content["relations"]


# --- a run ------------------------------------------------------------------------------------------


def _read_run(run: Path) -> EntityTable:
    graph, names, relation_names = read_entities(run)
    if not (run / _WEIGHTS).is_file():
        raise UserError(f"{run} is not finished. 'etude pretrain --resume {quote_path(run)}' trains it to its end.")
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        verify_checksums(run)
        tensors = load_file(run / _WEIGHTS)
        vectors, relations = tensors[_ENTITY_WEIGHTS], tensors[_RELATION_WEIGHTS]
    except (SafetensorError, KeyError) as problem:
        raise UserError(f"{run / _WEIGHTS} is damaged, or of another kind of model: {problem}.") from None
    if len(vectors) != len(names) or len(relations) != len(relation_names):
        raise UserError(
            f"{run}: {_WEIGHTS} has {len(vectors):,} entities and {len(relations):,} relations, {ENTITIES} names "
            f"{len(names):,} and {len(relation_names):,}. The files are of two runs."
        )
    vectors, relations = vectors.astype(np.float32), relations.astype(np.float32)
    return EntityTable(vectors, relations, names, relation_names, graph, _read_score(run / _RECIPE))


def _read_score(recipe: Path) -> str | None:
    """Return the score in a run's recipe; None where it has none."""
    try:
        content, _ = read_yaml(recipe.read_text("utf-8"), str(recipe))
    except UnicodeDecodeError as problem:
        raise UserError(f"{recipe} is damaged: {problem}. Copy the run again, or train a new one.") from None
    model = content.get("model") if isinstance(content, dict) else None
    score = model.get("score") if isinstance(model, dict) else None
    return score if isinstance(score, str) else None


# --- text -------------------------------------------------------------------------------------------


def _open(path: Path) -> BinaryIO:
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path, "rb"))
    if path.suffix == ".xz":
        return cast(BinaryIO, lzma.open(path, "rb"))
    return path.open("rb")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (number, line) of every line that is not empty."""
    try:
        with _open(path) as file:
            for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE + 1), b""), 1):
                if len(line) > LONGEST_LINE:
                    raise UserError(f"{path}:{number}: the line is longer than {LONGEST_LINE >> 20} MB. Is it text?")
                line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                if text := line.rstrip(b" \t\r\n"):
                    yield number, text
    except (EOFError, lzma.LZMAError, gzip.BadGzipFile) as problem:
        raise UserError(f"{path} is a damaged archive: {problem}. Copy it again.") from None


def _read_text(path: Path) -> tuple[list[str], np.ndarray]:
    lines = _lines(path)
    number, first = next(lines, (1, b""))
    fields = first.split()
    promised: int | None = None
    if len(fields) == 2 and all(field.isdigit() for field in fields):
        if max(map(len, fields)) > LONGEST_NUMBER:
            raise UserError(f"{path}:{number}: a count of entities or numbers has more than {LONGEST_NUMBER} digits.")
        promised, width = int(fields[0]), int(fields[1])
    else:
        width = len(first.partition(b"\t")[2].split()) if b"\t" in first else len(fields) - 1
        lines = chain([(number, first)], lines)
    if width < 1:
        raise UserError(f"{path}:{number}: this is no file of entity vectors: a line is a name and its numbers.")
    names: list[str] = []
    vectors: list[np.ndarray] = []
    first_line: dict[str, int] = {}
    for number, line in lines:
        # no name holds a tab: it ends one, and more of them may stand between the numbers
        parts = line.split(b"\t", 1) if b"\t" in line else line.rsplit(b" ", width)
        numbers = parts[1].split() if b"\t" in line else parts[1:]
        if len(numbers) != width:
            raise UserError(f"{path}:{number}: expected a name and {width} numbers, got {len(numbers)}.")
        name = _decode(parts[0], f"{path}:{number}")
        if name in first_line:
            raise UserError(f"{path}:{number}: the entity {name!r} has a vector in line {first_line[name]} already.")
        first_line[name] = number
        names.append(name)
        vectors.append(_parse(numbers, f"{path}:{number}"))
    if promised is not None and promised != len(names):
        raise UserError(f"{path}: the first line promises {promised:,} entities, and there are {len(names):,}.")
    return names, np.stack(vectors) if vectors else np.zeros((0, width), np.float32)


def _parse(numbers: Sequence[bytes], place: str) -> np.ndarray:
    try:
        vector = np.array([float(number) for number in numbers], np.float32)
    except ValueError as problem:
        raise UserError(f"{place}: expected a name and {len(numbers)} numbers: {problem}.") from None
    if not np.isfinite(vector).all():
        raise UserError(f"{place}: a number of this vector is not finite.")
    return vector


def _decode(name: bytes, place: str) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError as problem:
        raise UserError(f"{place}: the name is not UTF-8 ({problem.reason}). Convert the file.") from None


# --- OpenKE -----------------------------------------------------------------------------------------


def _read_openke(folder: Path) -> EntityTable:
    names, vectors = _read_openke_pair(folder, "entity")
    relation_names: list[str] = []
    relations = np.zeros((0, vectors.shape[1]), np.float32)
    if (folder / "relation2vec.vec").is_file():
        relation_names, relations = _read_openke_pair(folder, "relation")
    return EntityTable(vectors, relations, names, relation_names, None)


def _read_openke_pair(folder: Path, part: str) -> tuple[list[str], np.ndarray]:
    """Return names and vectors of the entities or the relations; numbers of the names are rows of the vectors."""
    vector_path, name_path = folder / f"{part}2vec.vec", folder / f"{part}2id.txt"
    if not name_path.is_file():
        raise UserError(f"{vector_path} needs the names of its rows: there is no {name_path}.")
    rows: list[np.ndarray] = []
    for number, line in _lines(vector_path):
        rows.append(_parse(line.split(), f"{vector_path}:{number}"))
        if len(rows[-1]) != len(rows[0]):
            raise UserError(
                f"{vector_path}:{number}: {len(rows[-1])} numbers, and {len(rows[0])} in the lines before it."
            )
    names = [""] * len(rows)
    for number, line in _lines(name_path):
        parts = line.rsplit(b"\t", 1) if b"\t" in line else line.rsplit(b" ", 1)
        if number == 1 and len(parts) == 1 and parts[0].isdigit():
            continue  # the count
        row = parts[-1].strip()
        if len(parts) != 2 or not row.isdigit() or len(row) > LONGEST_NUMBER or int(row) >= len(rows):
            raise UserError(f"{name_path}:{number}: expected a name, a tab and a row below {len(rows):,}.")
        if names[int(row)]:
            raise UserError(f"{name_path}:{number}: row {int(row)} has the name {names[int(row)]!r} already.")
        names[int(row)] = _decode(parts[0], f"{name_path}:{number}")
    nameless = next((row for row, name in enumerate(names) if not name), None)
    if nameless is not None:
        raise UserError(f"{name_path} names no {part} of row {nameless}, which {vector_path.name} has.")
    return names, np.stack(rows) if rows else np.zeros((0, 1), np.float32)

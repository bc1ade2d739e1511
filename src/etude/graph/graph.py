"""A knowledge graph, on disk or in memory: triples (head, relation, tail) over named entities and relations.

It is a folder of its own, not a part of a corpus: one graph serves many corpora, tasks and runs, and each of them keeps
its fingerprint. The folder holds `manifest.json` and raw little-endian arrays, mapped into memory when first read:

    entities.letters.u8, .bounds.i64, .order.i32     names end to end, where each starts, and their sorted order
    relations.letters.u8, .bounds.i64, .order.i32
    train.triples.i32 (T, 3), train.weights.f32      also valid and test; weights only where the source has them
    outgoing.bounds.i64, .neighbours.i32, .relations.i32      the train triples as rows of heads (CSR)
    incoming.bounds.i64, .neighbours.i32, .relations.i32      and as rows of tails
    labels, aliases, descriptions: .letters.u8, .bounds.i64   one text an entity, where the source has them

Adjacency is that of the train triples alone: what is held out must not be read from a neighbour.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np

from etude.errors import UserError
from etude.graph.adjacency import Adjacency
from etude.graph.array_writer import write_arrays
from etude.graph.graph_files import FORMAT, VERSION, GraphManifest, GraphReport, MappedArrays, read_manifest
from etude.graph.names import Names, Texts, pack_texts, sort_names
from etude.text.checked_files import write_manifest

SPLITS = ("train", "valid", "test")
ALIAS_SEPARATOR = "\n"  # between the aliases of one entity, which are lines

TripleInput = np.ndarray | Sequence[Sequence[int]]


class Graph:
    """Triples, names and neighbours. Make one with `etude prepare --graph`, `open` or `from_triples`."""

    def __init__(self, arrays: Mapping[str, np.ndarray], folder: Path | None, fingerprint: str | None = None) -> None:
        """`arrays` by the names of their files without the type; `folder` None is a graph in memory."""
        self._arrays, self._folder, self._fingerprint = arrays, folder, fingerprint
        self._checked: set[str] = set()  # splits whose ids are in range
        self.splits: tuple[str, ...] = tuple(split for split in SPLITS if f"{split}.triples" in arrays)

    @property
    def folder(self) -> Path:
        """The folder of a graph on disk."""
        if self._folder is None:
            raise ValueError("a graph in memory has no folder")
        return self._folder

    @classmethod
    def open(cls, folder: str | Path, verify: bool | None = None) -> Self:
        """Open a graph folder and check the length of its files.

        `verify` True checks every hash and the arrays too; False checks no hash; None hashes small graphs only.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        arrays = MappedArrays(folder, manifest["files"], verify)
        graph = cls(arrays, folder, manifest["fingerprint"])
        if verify:
            graph.check()
        return graph

    @classmethod
    def from_triples(
        cls,
        triples: TripleInput,
        entities: Sequence[str],
        relations: Sequence[str],
        *,
        valid: TripleInput | None = None,
        test: TripleInput | None = None,
        labels: Sequence[str] | None = None,
        aliases: Sequence[Sequence[str]] | None = None,
        descriptions: Sequence[str] | None = None,
        weights: Sequence[float] | np.ndarray | None = None,
    ) -> Self:
        """Build a graph in memory from triples of numbers (head, relation, tail), in their order.

        entities, relations: the names by number. labels, aliases, descriptions: one an entity; "" or [] is none.
        weights: one a train triple.
        """
        arrays: dict[str, np.ndarray] = {}
        for kind, names in (("entities", entities), ("relations", relations)):
            arrays[f"{kind}.letters"], arrays[f"{kind}.bounds"] = pack_texts(names)
            arrays[f"{kind}.order"] = sort_names(names)
        for split, values in (("train", triples), ("valid", valid), ("test", test)):
            if values is not None:
                numbers = np.asarray(values, np.int64).reshape(-1, 3)
                _check_ids(numbers, len(entities), len(relations), f"The graph has {split} triples")
                arrays[f"{split}.triples"] = numbers.astype(np.int32)
        if weights is not None:
            arrays["train.weights"] = np.asarray(weights, np.float32)
        for kind, incoming in (("outgoing", False), ("incoming", True)):
            rows = Adjacency.build(arrays["train.triples"], len(entities), incoming)
            arrays[f"{kind}.bounds"], arrays[f"{kind}.neighbours"] = rows.bounds, rows.neighbours
            arrays[f"{kind}.relations"] = rows.relations
        lines = None if aliases is None else [ALIAS_SEPARATOR.join(entity_aliases) for entity_aliases in aliases]
        for kind, texts in (("labels", labels), ("aliases", lines), ("descriptions", descriptions)):
            if texts is not None:
                arrays[f"{kind}.letters"], arrays[f"{kind}.bounds"] = pack_texts(texts)
        graph = cls(arrays, None)
        graph.check()
        return graph

    def save(self, folder: str | Path) -> Self:
        """Write a graph in memory to a folder that does not exist yet, and open it there."""
        folder = Path(folder)
        if folder.exists():
            raise UserError(f"{folder} exists already. Choose another name, or remove it.")
        # a name of its own: what a killed process left behind is in nobody's way
        aside = folder.with_name(f".{folder.name}.partial-{os.getpid()}")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        try:
            manifest: GraphManifest = {
                "format": FORMAT, "version": VERSION, "fingerprint": self.fingerprint,
                "files": write_arrays(aside, self._arrays),
            }  # fmt: skip
            write_manifest(aside, manifest)
            aside.rename(folder)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        return type(self).open(folder)

    @cached_property
    def report(self) -> GraphReport | None:
        """What was counted while the graph was prepared from files."""
        return None if self._folder is None else read_manifest(self._folder).get("report")

    @cached_property
    def entities(self) -> Names:
        """The names of entities, by number."""
        return self._names("entities")

    @cached_property
    def relations(self) -> Names:
        """The names of relations, by number."""
        return self._names("relations")

    def _names(self, kind: str) -> Names:
        names = Names(*(self._arrays[f"{kind}.{part}"] for part in ("letters", "bounds", "order")))
        self._check_bounds(names.bounds, len(names.letters), kind)
        order = names.order
        if len(order) != len(names) or (len(order) and not 0 <= int(order.min()) <= int(order.max()) < len(names)):
            raise UserError(f"{self._place} has a broken order of {kind}. Prepare the graph again.")
        return names

    @property
    def _place(self) -> str:
        return f"The graph {self._folder}" if self._folder else "The graph"

    def _check_bounds(self, bounds: np.ndarray, end: int, kind: str) -> None:
        """Check the bounds of texts or rows when they are first read."""
        if not len(bounds) or bounds[0] != 0 or bounds[-1] != end or (bounds[1:] < bounds[:-1]).any():
            raise UserError(f"{self._place} has broken bounds of {kind}. Prepare the graph again.")

    def triples(self, split: str = "train") -> np.ndarray:
        """Return the triples of a split: head, relation, tail, (T, 3) int32; ids are checked when first read."""
        triples = self._arrays[f"{self._known(split)}.triples"]
        if split not in self._checked:
            _check_ids(triples, len(self.entities), len(self.relations), f"{self._place} has {split} triples")
            self._checked.add(split)
        return triples

    def weights(self, split: str = "train") -> np.ndarray | None:
        """Return a weight a triple, (T,) float32, where the source has them."""
        return self._arrays.get(f"{self._known(split)}.weights")

    def _known(self, split: str) -> str:
        if split not in self.splits:
            place = f"The graph {self._folder}" if self._folder else "The graph"
            raise UserError(f"{place} has no split '{split}'. Splits: {', '.join(self.splits)}.")
        return split

    @cached_property
    def outgoing(self) -> Adjacency:
        """The train triples as rows of heads: tails and relations of each."""
        return self._adjacency("outgoing")

    @cached_property
    def incoming(self) -> Adjacency:
        """The train triples as rows of tails: heads and relations of each."""
        return self._adjacency("incoming")

    def _adjacency(self, kind: str) -> Adjacency:
        rows = Adjacency(*(self._arrays[f"{kind}.{part}"] for part in ("bounds", "neighbours", "relations")))
        self._check_bounds(rows.bounds, len(rows.neighbours), f"{kind} rows")
        is_whole = len(rows.bounds) == len(self.entities) + 1 and len(rows.relations) == len(rows.neighbours)
        for ids, count in ((rows.neighbours, len(self.entities)), (rows.relations, len(self.relations))):
            is_whole = is_whole and (not len(ids) or 0 <= int(ids.min()) <= int(ids.max()) < count)
        if not is_whole:
            raise UserError(f"{self._place} has broken {kind} rows. Prepare the graph again.")
        return rows

    def label(self, entity: int) -> str:
        """Return what an entity is called in text; its name where the source has no label."""
        return self._text("labels", entity) or self.entities[entity]

    def aliases(self, entity: int) -> list[str]:
        """Return other names of an entity in text; not its label."""
        text = self._text("aliases", entity)
        return text.split(ALIAS_SEPARATOR) if text else []

    def description(self, entity: int) -> str:
        """Return a text about an entity, or nothing."""
        return self._text("descriptions", entity)

    def _text(self, kind: str, entity: int) -> str:
        texts = self._texts.get(kind)
        return "" if texts is None else texts[entity]

    @cached_property
    def _texts(self) -> dict[str, Texts]:
        kinds = [kind for kind in ("labels", "aliases", "descriptions") if f"{kind}.bounds" in self._arrays]
        if any(f"{kind}.letters" not in self._arrays for kind in kinds):
            raise UserError(f"{self._place} has texts without letters. Prepare the graph again.")
        texts = {kind: Texts(self._arrays[f"{kind}.letters"], self._arrays[f"{kind}.bounds"]) for kind in kinds}
        for kind in kinds:
            self._check_bounds(texts[kind].bounds, len(texts[kind].letters), kind)
            if len(texts[kind]) != len(self.entities):
                raise UserError(f"{self._place} has {len(texts[kind])} {kind} for {len(self.entities)} entities.")
        return texts

    @cached_property
    def fingerprint(self) -> str:
        """One hash over all arrays; whatever depends on a graph stores it."""
        return self._fingerprint or fingerprint_arrays({
            name: hashlib.sha256(self._arrays[name].tobytes()).hexdigest() for name in self._arrays
        })  # fmt: skip

    def check(self) -> None:
        """Check what hashes cannot: ids in range, bounds ascending, one text an entity."""
        place = self._place
        for split in self.splits:
            triples = self.triples(split)
            weights = self.weights(split)
            if weights is not None and len(weights) != len(triples):
                raise UserError(f"{place} has {len(weights)} weights for {len(triples)} {split} triples.")
        _ = self._texts
        for kind, rows in (("outgoing", self.outgoing), ("incoming", self.incoming)):
            if not rows.is_valid(len(self.entities), len(self.triples("train"))):
                raise UserError(f"{place} has broken {kind} rows. Prepare the graph again.")
        for kind, names in (("entities", self.entities), ("relations", self.relations)):
            if not names.is_valid():
                raise UserError(f"{place} has broken names of {kind}. Prepare the graph again.")

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(self.triples(split))} {split}" for split in self.splits)
        return f"Graph({len(self.entities)} entities, {len(self.relations)} relations, triples: {counts})"

    def __reduce__(self) -> tuple[object, ...]:
        if self._folder is not None:  # a loader in another process maps the files again
            return Graph.open, (self._folder, False)
        return Graph, (dict(self._arrays), None)


def _check_ids(triples: np.ndarray, entities: int, relations: int, place: str) -> None:
    """Raise UserError where a triple names an entity or a relation that is not there."""
    for column, kind, count in ((0, "entities", entities), (1, "relations", relations), (2, "entities", entities)):
        ids = triples[:, column]
        if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= count):
            raise UserError(f"{place} with {kind} from {ids.min()} to {ids.max()}, but {count} {kind}.")


def fingerprint_arrays(hashes: Mapping[str, str]) -> str:
    """Return one hash over the names and SHA-256 of arrays."""
    return hashlib.sha256(" ".join(f"{name} {hashes[name]}" for name in sorted(hashes)).encode()).hexdigest()


def check_graph(graph: Graph, fingerprint: str, owner: str) -> None:
    """Raise UserError where `owner` (such as "The run runs/transe") was made with another graph."""
    if graph.fingerprint != fingerprint:
        place = f"the graph {graph.folder}" if graph._folder else "this graph"
        raise UserError(
            f"{owner} was made with another graph than {place} (fingerprint {fingerprint[:12]}, not "
            f"{graph.fingerprint[:12]}): its ids would name other entities. Give it the graph it was made with."
        )

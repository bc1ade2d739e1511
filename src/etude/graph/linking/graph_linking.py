"""The linking of a corpus to a graph: by anchors of the text, by a linker, or by a linker beside the anchors.

`GraphLinking` is what `prepare` is given (text/prepare/linking.py). It writes the tables that the workers need into the
work folder: theirs are memory-mapped, so that all of them together hold one copy.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np

from etude.errors import UserError, suggest_name
from etude.graph.graph import Graph
from etude.graph.linking import trie
from etude.graph.linking.base import Linker, LinkerKind, check_mentions
from etude.graph.linking.entity_index import EntityIndex
from etude.graph.linking.trie import TrieLinker
from etude.kinds import find_kind
from etude.text.checked_files import write_atomically
from etude.text.prepare.anchors import FORMATS, Anchor
from etude.text.prepare.linking import TextMentions

SETTINGS, TRIE = "linking.json", "trie"
KINDS = "graph.linking"  # the group of linkers (kinds.py)


class GraphLinking:
    """How documents get entities of a graph: `linker` is a kind with its settings, as in "trie,threshold=0.4"."""

    module = __name__

    def __init__(self, graph: Graph, linker: str | None = None, anchors: str | None = None) -> None:
        """Without `linker` the anchors are all mentions; without both it is the trie."""
        if anchors is not None and anchors not in FORMATS:
            raise UserError(f"'{anchors}' is no format of anchors.{suggest_name(anchors, FORMATS)}")
        self._graph, self.anchors, self.graph = graph, anchors, graph.fingerprint
        self.linker = linker or (None if anchors else TRIE)
        self.kind: str | None = None
        self.settings: dict[str, object] = {}
        if self.linker is not None:
            self.kind, self.settings = parse_linker(self.linker)
            self._module = cast("LinkerKind", find_kind(KINDS, self.kind))

    @cached_property
    def _linker(self) -> Linker | None:
        return self._module.build(self._graph, self.settings) if self.kind is not None else None

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the graph, the format of anchors and the linker."""
        if self.kind == TRIE:  # known before it is built
            linker = trie.find_fingerprint(self._graph, self.settings)
        else:
            linker = self._linker.fingerprint if self._linker is not None else ""
        return hashlib.sha256(json.dumps([self.graph, self.anchors, self.kind, linker]).encode()).hexdigest()

    def name(self, entity: int) -> str:
        """Return the label of an entity."""
        return self._graph.label(entity)

    def save(self, folder: Path) -> None:
        """Write the tables of the workers; what an interrupted preparation wrote is kept."""
        path = folder / SETTINGS
        content = {
            "fingerprint": self.fingerprint, "entities": len(self._graph.entities), "anchors": self.anchors,
            "kind": self.kind, "settings": self.settings,
            "graph": str(self._graph.folder.absolute()) if self.kind not in (None, TRIE) else None,
        }  # fmt: skip
        if path.is_file() and path.read_text(encoding="utf-8") == json.dumps(content):
            return
        path.unlink(missing_ok=True)  # of another linker: it must not vouch for what is half-written below
        folder.mkdir(parents=True, exist_ok=True)
        if self.anchors is not None:
            EntityIndex.from_graph(self._graph).save(folder)
        if self.kind == TRIE:
            assert isinstance(self._linker, TrieLinker)
            self._linker.save(folder / TRIE)
        write_atomically(path, json.dumps(content))  # last: it says that the rest is there


class GraphTextLinker:
    """Finds the mentions of documents in a worker: anchors first, then what a linker finds between them."""

    def __init__(self, index: EntityIndex | None, linker: Linker | None, entities: int, name: str) -> None:
        self.index, self.linker, self.entities, self.name = index, linker, entities, name

    def link(self, texts: Sequence[str], anchors: Sequence[Sequence[Anchor]]) -> TextMentions:
        """Return the mentions in texts. Inside an anchor whose entity the graph does not have there is none."""
        mentions = [_to_array([])]
        if self.index is not None:
            for number, (text, text_anchors) in enumerate(zip(texts, anchors, strict=True)):
                mentions.append(_to_array(_resolve(number, text, text_anchors, self.index)))
        anchored = np.concatenate(mentions)
        if self.linker is None:
            return _to_mentions(anchored[anchored[:, 3] >= 0])
        linked = self._run_linker(self.linker, texts)
        linked = linked[~_overlaps(linked, anchored)]
        both = np.concatenate([anchored[anchored[:, 3] >= 0], linked])
        return _to_mentions(both[np.lexsort((both[:, 1], both[:, 0]))])

    def _run_linker(self, linker: Linker, texts: Sequence[str]) -> np.ndarray:
        """Return the linker's mentions as rows of text, start, end, entity."""
        if isinstance(linker, TrieLinker):
            return np.stack([column.astype(np.int64) for column in linker.link_batch(texts)[:4]], axis=1)
        rows = [_to_array([])]
        for number, text in enumerate(texts):
            spans = check_mentions(linker.link(text), len(text), self.entities, self.name)
            rows.append(np.concatenate([np.full((len(spans), 1), number), spans], axis=1))
        return np.concatenate(rows)


def open_text_linker(folder: Path) -> GraphTextLinker:
    """Open what `GraphLinking.save` wrote."""
    content = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    count, kind = content["entities"], content["kind"]
    index = EntityIndex.load(folder, count) if content["anchors"] is not None else None
    linker: Linker | None = None
    if kind == TRIE:
        linker = TrieLinker.load(folder / TRIE, verify=False)
    elif kind is not None:
        module = cast("LinkerKind", find_kind(KINDS, kind))
        linker = module.build(Graph.open(content["graph"]), content["settings"])
    return GraphTextLinker(index, linker, count, str(kind))


def parse_linker(spec: str) -> tuple[str, dict[str, object]]:
    """Return kind and settings of "trie,threshold=0.4,titles"; a setting without a value is true."""
    kind, *parts = (part.strip() for part in spec.split(","))
    settings: dict[str, object] = {}
    for part in parts:
        name, equals, value = part.partition("=")
        settings[name.strip()] = _parse_value(value.strip()) if equals else True
    return kind, settings


def _parse_value(text: str) -> object:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value


def _resolve(
    number: int, text: str, anchors: Sequence[Anchor], index: EntityIndex
) -> Iterator[tuple[int, int, int, int]]:
    """Yield the anchors of a text with their entity, -1 where the graph has none, without white space at their ends."""
    for start, end, name in anchors:
        surface = text[start:end]
        first = start + len(surface) - len(surface.lstrip())
        last = start + len(surface.rstrip())
        if first < last:
            entity = index.find(name)
            yield number, first, last, -1 if entity is None else entity


def _to_array(rows: Iterable[tuple[int, int, int, int]]) -> np.ndarray:
    return np.array(list(rows), np.int64).reshape(-1, 4)


def _to_mentions(rows: np.ndarray) -> TextMentions:
    return TextMentions(rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3].astype(np.int32))


def _overlaps(rows: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    """Return whether each span overlaps one of the anchors; both by text and place, each disjoint among themselves."""
    if not len(anchors):
        return np.zeros(len(rows), bool)
    width = max(int(rows[:, 2].max(initial=0)), int(anchors[:, 2].max())) + 1
    starts, ends = anchors[:, 0] * width + anchors[:, 1], anchors[:, 0] * width + anchors[:, 2]
    # the first anchor that ends after the start of a span
    place = np.searchsorted(ends, rows[:, 0] * width + rows[:, 1], "right")
    next_start = np.append(starts, np.iinfo(np.int64).max)[place]
    return next_start < rows[:, 0] * width + rows[:, 2]

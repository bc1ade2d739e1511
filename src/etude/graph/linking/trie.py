"""A linker by a trie over labels and aliases: longest match on word boundaries, case rules, Korean particles, priors.

A mention is a span of whole words that equals a label or an alias up to case (case_rules.py); a Korean particle may
follow inside the last word (particles.py). Its score is the prior of the entity among all that the surface fits, times
how well the case fits; below the threshold there is no mention. Of those left, the first from the left and of these the
longest is taken.

The prior of an entity at a surface: how often the surface names it, where counts are given; otherwise the degree of the
entity in the graph, and aliases count half. Texts are linked many at a time, as arrays.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, ValidationError
from typing_extensions import TypedDict  # that of Python 3.11 cannot be checked

from etude.errors import UserError, suggest_name
from etude.graph.graph import Graph
from etude.graph.linking.base import Mention
from etude.graph.linking.case_rules import Shape, find_sentence_starts, find_shapes, fit_cases, tabulate_factors
from etude.graph.linking.mention_counts import hash_counts, read_counts
from etude.graph.linking.particles import find_stems
from etude.graph.linking.surfaces import Surfaces, list_surfaces
from etude.graph.linking.word_trie import ROOT, WordTrie
from etude.graph.linking.words import BETWEEN, Words
from etude.settings import Strict, check_values
from etude.text.checked_files import FileEntry, check_file, hash_file

FORMAT, VERSION = "etude trie linker", 1
LINKER = "linker.json"
MAX_CANDIDATES = 32  # of a surface: of more than these, none would have a score to speak of
BATCH_CHARACTERS = 1 << 18  # of texts that are linked together: their arrays stay in the cache


class Settings(Strict):
    """What a trie linker takes for a mention."""

    threshold: float = Field(default=0.3, ge=0, le=1)  # of the score
    priors: Literal["degree", "uniform"] = "degree"  # where no counts are given
    case: bool = True  # False: case is ignored, for text that is all lower case
    titles: bool = False  # labels are titles of an encyclopedia: "Anarchism" is also "anarchism"
    common: bool = True  # False: no single words in lower case ("end", "music"), whatever the graph calls so
    commas: bool = False  # "Oakland, California" is also "Oakland"
    plurals: bool = False  # "arguments" is also a mention of "argument": for graphs of English concepts
    min_letters: int = Field(default=2, ge=1)  # of a surface
    alias_weight: float = Field(default=0.5, gt=0)  # the weight of an alias beside that of a label
    counts: str | None = None  # a .tsv file of surface, entity, and how often the one names the other


class LinkerFile(TypedDict):
    """What `linker.json` holds, beside its format and version."""

    fingerprint: str
    graph: str
    counts: str
    settings: dict[str, object]
    files: dict[str, FileEntry]


class BatchMentions(NamedTuple):
    """The mentions of several texts, in order (M mentions)."""

    texts: np.ndarray  # (M,) int64: number of the text
    starts: np.ndarray  # (M,) int64, characters of that text
    ends: np.ndarray  # (M,) int64
    entities: np.ndarray  # (M,) int32
    scores: np.ndarray  # (M,) float32


@dataclass(frozen=True)
class Candidates:
    """The entities of each node's surface: those of node n are bounds[n] .. bounds[n + 1], by entity."""

    bounds: np.ndarray  # (nodes + 1,) int64
    entities: np.ndarray  # (P,) int32
    weights: np.ndarray  # (P,) float32
    shapes: np.ndarray  # (P,) uint8
    cased: np.ndarray  # (P,) uint64


class TrieLinker:
    """Finds labels and aliases of a graph's entities in text."""

    def __init__(self, trie: WordTrie, candidates: Candidates, settings: Settings, graph: str, counts: str) -> None:
        """`graph`: the fingerprint of the graph. `counts`: a hash of the counts of mentions, "" without any."""
        self.trie, self.candidates, self.settings, self.graph, self.counts = trie, candidates, settings, graph, counts
        self._factors = tabulate_factors(settings.titles)
        bounds = candidates.bounds
        self._is_label = bounds[1:] > bounds[:-1]  # (nodes,) bool

    @classmethod
    def from_graph(
        cls, graph: Graph, settings: Settings | None = None, counts: Iterable[tuple[str, int, float]] = ()
    ) -> Self:
        """Build the linker of a graph. `counts` are surfaces, their entities and how often they name them."""
        settings = settings or Settings()
        mention_counts = list(counts)
        if settings.priors == "degree":
            weights = (graph.outgoing.degrees() + graph.incoming.degrees() + 1.0).astype(np.float64)
        else:
            weights = np.ones(len(graph.entities))
        if mention_counts:  # what was never seen counts as half of one mention at most
            weights *= 0.5 / weights.max()
        labels = list_surfaces(graph, weights, settings.alias_weight, settings.commas, settings.plurals)
        surfaces = Surfaces.collect(chain(labels, mention_counts), settings.min_letters, settings.common)
        trie, nodes = WordTrie.build(surfaces.hashes, surfaces.follows_space, surfaces.bounds)
        candidates = _group(surfaces, nodes, len(trie.is_inner))
        return cls(trie, candidates, settings, graph.fingerprint, hash_counts(mention_counts))

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the graph, the counts and the settings: all that decides which mentions are found."""
        return fingerprint_linker(self.graph, self.settings, self.counts)

    def link(self, text: str) -> list[Mention]:
        """Return the mentions in an NFC text."""
        mentions = self.link_batch([text])
        columns = (mentions.starts, mentions.ends, mentions.entities, mentions.scores)
        return [Mention(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]

    def link_batch(self, texts: Sequence[str]) -> BatchMentions:
        """Return the mentions in NFC texts."""
        parts: list[BatchMentions] = []
        first = size = 0
        for number, text in enumerate(texts):
            size += len(text)
            if size >= BATCH_CHARACTERS or number == len(texts) - 1:
                part = self._link_together(texts[first : number + 1])
                parts.append(part._replace(texts=part.texts + first))
                first, size = number + 1, 0
        if len(parts) == 1:
            return parts[0]
        empty = BatchMentions(*(np.zeros(0, dtype) for dtype in (np.int64, np.int64, np.int64, np.int32, np.float32)))
        return BatchMentions(*(np.concatenate(columns) for columns in zip(empty, *parts, strict=True)))

    def _link_together(self, texts: Sequence[str]) -> BatchMentions:
        words = Words(texts)
        firsts, ends, nodes, is_single = self._walk(words)
        entities, scores = self._choose_entities(words, firsts, ends, nodes, is_single)
        sure = np.flatnonzero((scores >= self.settings.threshold) & (scores > 0))
        starts = words.starts[firsts]
        chosen = sure[select_longest(starts[sure], ends[sure])]
        text_starts = np.cumsum([0, *(len(text) + len(BETWEEN) for text in texts[:-1])])
        numbers = np.searchsorted(text_starts, starts[chosen], "right") - 1
        base = text_starts[numbers]
        return BatchMentions(numbers, starts[chosen] - base, ends[chosen] - base, entities[chosen], scores[chosen])

    def _walk(self, words: Words) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return every span that is a surface: first word, end, node, whether it is of one word."""
        hashes = words.hash_prefixes(slice(None), words.ends)
        stem_words, stem_ends = find_stems(words.codes, words.starts, words.ends)
        stem_hashes = words.hash_prefixes(stem_words, stem_ends)
        count = len(words.starts)
        stem_bounds = np.concatenate([[0], np.cumsum(np.bincount(stem_words, minlength=count))])
        firsts = np.arange(count)
        nodes = np.full(count, ROOT, np.int32)
        spans: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []

        def collect(first: np.ndarray, end: np.ndarray, node: np.ndarray, depth: int) -> None:
            is_match = (node >= 0) & self._is_label[node]
            match = np.flatnonzero(is_match)
            spans.append((first[match], end[match], node[match], np.full(len(match), depth == 0)))

        depth = 0
        while len(firsts):
            last = firsts + depth
            follows_space = words.follows_space[last] if depth else np.zeros(len(last), bool)
            if len(stem_words):  # the last word may be a stem before a particle
                counts = stem_bounds[last + 1] - stem_bounds[last]
                stems = _join_ranges(stem_bounds[last], counts)
                owner = np.repeat(np.arange(len(firsts)), counts)
                reached = self.trie.step(nodes[owner], stem_hashes[stems], follows_space[owner])
                collect(firsts[owner], stem_ends[stems], reached, depth)
            nodes = self.trie.step(nodes, hashes[last], follows_space)
            collect(firsts, words.ends[last], nodes, depth)
            goes_on = np.flatnonzero((nodes >= 0) & self.trie.is_inner[nodes] & (last + 1 < count))
            firsts, nodes = firsts[goes_on], nodes[goes_on]
            depth += 1
        columns = [np.concatenate(column) for column in zip(*spans, strict=True)]
        return columns[0], columns[1], columns[2], columns[3]

    def _choose_entities(
        self, words: Words, firsts: np.ndarray, ends: np.ndarray, nodes: np.ndarray, is_single: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the best entity of each span and its score."""
        if not len(firsts):
            return np.zeros(0, np.int32), np.zeros(0, np.float32)
        low = self.candidates.bounds[nodes]
        counts = self.candidates.bounds[nodes + 1] - low  # at least one
        pairs = _join_ranges(low, counts)  # of a span and a candidate
        span = np.repeat(np.arange(len(firsts)), counts)
        factors = self._fit_cases(words, firsts, ends, is_single, pairs, span)
        is_alone = counts == 1
        if is_alone.all():
            return self.candidates.entities[low], factors
        pair_of = np.cumsum(counts) - counts
        entities, scores = self.candidates.entities[low], factors[pair_of]
        many = np.flatnonzero(~is_alone)
        chosen = np.flatnonzero(~is_alone[span])
        number = np.cumsum(~is_alone) - 1  # of a span among those with several candidates
        entities[many], scores[many] = self._choose_among(pairs[chosen], number[span[chosen]], factors[chosen])
        return entities, scores

    def _fit_cases(
        self, words: Words, firsts: np.ndarray, ends: np.ndarray, is_single: np.ndarray, pairs: np.ndarray,
        span: np.ndarray,
    ) -> np.ndarray:  # fmt: skip
        """Return how well the case of each pair of a span and a candidate fits."""
        if not self.settings.case:
            return np.ones(len(pairs), np.float32)
        starts = words.starts[firsts]
        letters = words.count_letters(starts, ends)
        shapes = find_shapes(words, starts, letters, is_single)
        at_start = find_sentence_starts(words, firsts)
        labels, mentions = self.candidates.shapes[pairs], shapes[span]
        is_equal = labels == mentions
        # of these shapes there are several with the same letters
        open_shapes = np.flatnonzero((shapes == Shape.TITLE) | (shapes == Shape.MIXED))
        hashes = np.zeros(len(firsts), np.uint64)
        hashes[open_shapes] = words.hash_cases(starts[open_shapes], ends[open_shapes])
        is_open = np.flatnonzero(is_equal & ((mentions == Shape.TITLE) | (mentions == Shape.MIXED)))
        is_equal[is_open] = self.candidates.cased[pairs[is_open]] == hashes[span[is_open]]
        return fit_cases(
            labels, mentions, is_equal, at_start[span], letters.letters[span], is_single[span], self._factors
        )

    def _choose_among(self, pairs: np.ndarray, span: np.ndarray, factors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the best of several candidates of each span 0, 1, ... and its score."""
        entities, weights = self.candidates.entities[pairs], self.candidates.weights[pairs]
        # several surfaces of one entity differ in case alone: the best of them counts, once
        group = _find_changes(span, entities)
        factors = np.maximum.reduceat(factors, group)
        weights = np.maximum.reduceat(weights, group)
        span, entities = span[group], entities[group]
        first_of_span = _find_changes(span)
        scores = factors * weights
        totals = np.add.reduceat(np.where(factors > 0, weights, 0), first_of_span)
        best = np.maximum.reduceat(scores, first_of_span)
        winners = np.flatnonzero(scores == best[span])
        winners = winners[_find_changes(span[winners])]  # of equals the first
        return entities[winners], best / np.where(totals > 0, totals, 1)

    def save(self, folder: str | Path) -> None:
        """Write the linker as arrays (.npy) and linker.json."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        files: dict[str, FileEntry] = {}
        for name, array in self._arrays().items():
            path = folder / f"{name}.npy"
            np.save(path, array, allow_pickle=False)
            files[path.name] = {"bytes": path.stat().st_size, "sha256": hash_file(path)}
        content = {
            "format": FORMAT, "version": VERSION, "fingerprint": self.fingerprint, "graph": self.graph,
            "counts": self.counts, "settings": self.settings.model_dump(), "files": files,
        }  # fmt: skip
        (folder / LINKER).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    def _arrays(self) -> dict[str, np.ndarray]:
        trie = {"slots": self.trie.slots, "slot_nodes": self.trie.slot_nodes, "is_inner": self.trie.is_inner}
        parts = {name: getattr(self.candidates, name) for name in ("bounds", "entities", "weights", "shapes", "cased")}
        return trie | parts

    @classmethod
    def load(cls, folder: str | Path, verify: bool = True) -> Self:
        """Open a linker that was saved, its arrays mapped into memory; `verify` False checks lengths only."""
        folder = Path(folder)
        try:
            content = json.loads((folder / LINKER).read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            raise UserError(f"{folder} is not a linker: it has no {LINKER}.") from None
        except (ValueError, RecursionError):
            raise UserError(f"{folder / LINKER} is damaged: it is not JSON. Make the linker again.") from None
        if not isinstance(content, dict) or content.get("format") != FORMAT or content.get("version") != VERSION:
            raise UserError(f"{folder / LINKER} is not a linker that this version of etude reads. Make it again.")
        content = check_values(content, LinkerFile, str(folder / LINKER), "Make the linker again.")
        names = [*WordTrie.names(), *(field.name for field in fields(Candidates))]
        if sorted(content["files"]) != sorted(f"{name}.npy" for name in names):
            raise UserError(f"{folder / LINKER} is damaged: it names other files than a linker has. Make it again.")
        arrays = {}
        for name, entry in content["files"].items():
            check_file(folder / name, entry, verify, "linker")
            arrays[name.removesuffix(".npy")] = np.asarray(np.load(folder / name, mmap_mode="r", allow_pickle=False))
        trie = WordTrie(*(arrays.pop(name) for name in WordTrie.names()))
        settings = parse_settings(content["settings"])
        linker = cls(trie, Candidates(**arrays), settings, content["graph"], content["counts"])
        if linker.fingerprint != content["fingerprint"]:
            raise UserError(f"{folder / LINKER} was altered: its fingerprint is another. Make the linker again.")
        return linker


def build(graph: Graph, settings: Mapping[str, object]) -> TrieLinker:
    """Build the trie linker of a graph."""
    checked = parse_settings(settings)
    return TrieLinker.from_graph(graph, checked, read_counts(Path(checked.counts), graph) if checked.counts else ())


def find_fingerprint(graph: Graph, settings: Mapping[str, object]) -> str:
    """Return the fingerprint of the linker that `build` would build."""
    checked = parse_settings(settings)
    counts = hash_counts(read_counts(Path(checked.counts), graph)) if checked.counts else ""
    return fingerprint_linker(graph.fingerprint, checked, counts)


def parse_settings(settings: Mapping[str, object]) -> Settings:
    """Check settings; UserError where there is no such setting, or no such value."""
    try:
        return Settings.model_validate(dict(settings))
    except ValidationError as error:
        problem = error.errors()[0]
        name = ".".join(map(str, problem["loc"]))
        if problem["type"] == "extra_forbidden":
            suggestion = suggest_name(name, Settings.model_fields)
            raise UserError(f"The linker 'trie' has no setting '{name}'.{suggestion}") from None
        raise UserError(f"The setting '{name}' of the linker 'trie': {problem['msg']}.") from None


def fingerprint_linker(graph: str, settings: Settings, counts: str) -> str:
    """Return the fingerprint of a linker before it is built."""
    values = settings.model_dump(exclude={"counts"} if settings.plurals else {"counts", "plurals"})  # linkers before it
    content = json.dumps([FORMAT, VERSION, graph, values, counts], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def select_longest(starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the numbers of the spans that are taken: from the left, the longest at each place, none overlapping."""
    if not len(starts):
        return np.zeros(0, np.int64)
    order = np.argsort((starts << 16) - (ends - starts), kind="stable")
    order = order[_find_changes(starts[order])]  # the longest at each place
    starts, ends = starts[order], ends[order]
    before = np.maximum.accumulate(ends)
    is_chosen = np.ones(len(starts), bool)
    is_chosen[1:] = starts[1:] >= before[:-1]  # nothing reaches into these
    reached, head = 0, -1
    heads = np.maximum.accumulate(np.where(is_chosen, np.arange(len(starts)), 0))
    doubtful = np.flatnonzero(~is_chosen)
    columns = (doubtful, heads[doubtful], starts[doubtful], ends[doubtful], ends[heads[doubtful]])
    for number, owner, start, end, head_end in zip(*(column.tolist() for column in columns), strict=True):
        if owner != head:
            head, reached = owner, head_end
        if start >= reached:
            is_chosen[number] = True
            reached = end
    return order[is_chosen]


def _group(surfaces: Surfaces, nodes: np.ndarray, count: int) -> Candidates:
    """Return the candidates of each node: of equal surfaces, and of very many entities, those of the largest weight."""
    order = np.lexsort((-surfaces.weights, surfaces.cased, surfaces.entities, nodes))
    order = order[_find_changes(nodes[order], surfaces.entities[order], surfaces.cased[order])]
    by_weight = np.lexsort((-surfaces.weights[order], nodes[order]))
    ranks = np.arange(len(order)) - np.searchsorted(nodes[order], nodes[order])  # by_weight is sorted by node, too
    order = order[np.sort(by_weight[ranks < MAX_CANDIDATES])]
    bounds = np.searchsorted(nodes[order], np.arange(count + 1)).astype(np.int64)
    return Candidates(
        bounds, surfaces.entities[order], surfaces.weights[order], surfaces.shapes[order], surfaces.cased[order]
    )


def _find_changes(*columns: np.ndarray) -> np.ndarray:
    """Return the places where any of the columns has another value than before; the first is one."""
    is_new = np.ones(len(columns[0]), bool)
    is_new[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return np.flatnonzero(is_new)


def _join_ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return start, start + 1, ... of each range, end to end."""
    return np.repeat(starts - np.cumsum(lengths) + lengths, lengths) + np.arange(int(lengths.sum()))

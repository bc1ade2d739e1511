"""The concept graph of KagNet: concepts, undirected neighbours, one relation a hop (Lin et al. 2019, section 3.2).

ConceptNet is read as the released code reads it. Names lose their part of speech and their case, and those with other
signs than letters are dropped; 31 relations become 17 classes, some with head and tail exchanged; `hascontext`, self
loops, vague concepts and concepts with a stop word go. The reverse of relation r is r + R. A graph with other
relations (the world's, one of your own) is taken as it is: every relation is a class, every entity a concept.

Paths are searched on the collapsed graph, where two concepts are joined once. A hop then goes by the first relation of
its list: the lowest class, forward before reverse. (The code takes the first of a Python set of their numbers.)
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from etude.errors import UserError
from etude.graph.graph import Graph
from etude.text.function_words import KOREAN

Merge = Literal["conceptnet", "none"]

log = logging.getLogger("etude")

# class -> the relations of ConceptNet that it merges; * exchanges head and tail
CLASSES: dict[str, str] = {
    "atlocation": "atlocation locatednear",
    "capableof": "capableof",
    "causes": "causes causesdesire *motivatedbygoal",
    "createdby": "createdby",
    "desires": "desires",
    "antonym": "antonym distinctfrom",
    "hascontext": "hascontext",
    "hasproperty": "hasproperty",
    "hassubevent": "hassubevent hasfirstsubevent haslastsubevent hasprerequisite entails mannerof",
    "isa": "isa instanceof definedas",
    "madeof": "madeof",
    "notcapableof": "notcapableof",
    "notdesires": "notdesires",
    "partof": "partof *hasa",
    "relatedto": "relatedto similarto synonym",
    "usedfor": "usedfor",
    "receivesaction": "receivesaction",
}
DROPPED = frozenset({"hascontext"})
SYMMETRIC = frozenset({"antonym", "relatedto"})
VAGUE = frozenset(["uk", "us", "take", "make", "object", "person", "people"])
# NLTK's, which the released code takes: not all closed classes ("outside" and "nothing" are concepts)
ENGLISH = """
    i me my myself we our ours ourselves you your yours yourself yourselves he him his himself she her hers herself
    it its itself they them their theirs themselves what which who whom this that these those am is are was were be
    been being have has had having do does did doing a an the and but if or because as until while of at by for with
    about against between into through during before after above below to from up down in out on off over under
    again further then once here there when where why how all any both each few more most other some such no nor not
    only own same so than too very can will just should now s t d ll m o re ve y don ain aren couldn didn doesn hadn
    hasn haven isn ma mightn mustn needn shan shouldn wasn weren won wouldn
"""
ADDED = "like gone did going would could get in up may wanter"  # by the released code
STOP_WORDS = frozenset([*ENGLISH.split(), *ADDED.split(), *KOREAN.split()])

_WORDS = re.compile(r"[^\W\d_]+(?:[_-][^\W\d_]+)*")


@dataclass(frozen=True)
class ConceptGraph:
    """Concepts by number, their neighbours without direction, and the relation of each hop.

    A hop is an entry of `neighbours`: the edge from a concept to a neighbour. Both directions of an edge are hops.
    """

    names: list[str]  # (C,) lower case, words joined by _
    relations: tuple[str, ...]  # (R,) classes; class r + R is the reverse of r
    bounds: np.ndarray  # (C+1,) int64: the hops of each concept
    neighbours: np.ndarray  # (M,) int32, ascending within a concept
    hop_relations: np.ndarray  # (M,) int16, 0 to 2R-1
    entities: np.ndarray  # (C,) int32: the first entity of the graph with this name
    concepts: np.ndarray  # (E,) int32: the concept of an entity; -1 where it was left out
    triple_hops: np.ndarray  # (T, 2) int64: both hops of a train triple; -1 where it was left out
    aliases: list[tuple[int, str]]  # other names of concepts, in lower case; none of ConceptNet
    symmetric: np.ndarray  # (relations of the source,) bool: true both ways round
    merge: Merge
    graph: str  # the fingerprint of the source

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of a concept by its name."""
        return {name: number for number, name in enumerate(self.names)}

    @cached_property
    def keys(self) -> np.ndarray:
        """(M,) int64, ascending: concept * C + neighbour of every hop."""
        heads = np.repeat(np.arange(len(self.names)), np.diff(self.bounds))
        return heads * len(self.names) + self.neighbours

    @cached_property
    def fingerprint(self) -> str:
        """One hash of the source and of how it was merged."""
        digest = hashlib.blake2b(f"{self.graph} {self.merge}".encode(), digest_size=16)
        for array in (self.bounds, self.neighbours, self.hop_relations):
            digest.update(np.ascontiguousarray(array).tobytes())
        digest.update("\n".join([*self.names, *(f"{number} {alias}" for number, alias in self.aliases)]).encode())
        return digest.hexdigest()

    def find_hops(self, heads: np.ndarray, tails: np.ndarray) -> np.ndarray:
        """The numbers of the hops between concepts, of any shape; -1 where two are no neighbours."""
        wanted = heads.astype(np.int64) * len(self.names) + tails
        places = np.searchsorted(self.keys, wanted)
        places = np.minimum(places, max(0, len(self.keys) - 1))
        if not len(self.keys):
            return np.full(wanted.shape, -1, np.int64)
        return np.where(self.keys[places] == wanted, places, -1)

    def name_relation(self, relation: int) -> tuple[str, bool]:
        """The name of a relation class, and whether it is read from tail to head."""
        count = len(self.relations)
        return self.relations[relation % count], relation >= count

    def score_hops(self, entities: np.ndarray, relations: np.ndarray, triples: np.ndarray) -> np.ndarray:
        """(M,) float32: the best (1 + cos(r, t - h)) / 2 among the triples of a hop, by TransE vectors (E, D), (R, D).

        `triples` are the train triples of the source graph. Antonyms and related concepts are scored both ways.
        """
        scores = np.zeros(len(self.neighbours), np.float32)
        for start in range(0, len(triples), 1 << 16):
            part, hops = triples[start : start + (1 << 16)], self.triple_hops[start : start + (1 << 16)]
            present = hops[:, 0] >= 0
            part, hops = np.asarray(part[present]), hops[present]
            difference = entities[part[:, 2]] - entities[part[:, 0]]  # (T, D)
            relation = relations[part[:, 1]]
            lengths = np.linalg.norm(difference, axis=1) * np.linalg.norm(relation, axis=1)
            cosines = (difference * relation).sum(1) / np.maximum(lengths, 1e-12)
            cosines = np.where(self.symmetric[part[:, 1]], np.abs(cosines), cosines)
            for side in range(2):
                np.maximum.at(scores, hops[:, side], ((1 + cosines) / 2).astype(np.float32))
        return scores


# --- from a knowledge graph -------------------------------------------------------------------------


def build_concept_graph(graph: Graph, merge: Merge | None = None, language: str = "en") -> ConceptGraph:
    """Merge the train triples of a graph to concepts and relation classes.

    `merge` None: as ConceptNet where most of the graph's relations are ConceptNet's. `language` is that of names such
    as /c/en/dog; names without one are all read.
    """
    merge = merge or choose_merge(list(graph.relations))
    relations, classes, swapped, symmetric = merge_relations(list(graph.relations), merge)
    if 2 * len(relations) > np.iinfo(np.int16).max:
        raise UserError(
            f"The graph has {len(relations):,} relations; paths have room for {np.iinfo(np.int16).max // 2:,}, each in "
            "two directions. Join those that mean the same, or leave out the rare ones, and prepare it again."
        )
    names, entities, concepts = _merge_entities(graph, merge, language)
    triples = np.asarray(graph.triples("train"))
    heads, tails = concepts[triples[:, 0]], concepts[triples[:, 2]]
    labels = classes[triples[:, 1]].astype(np.int64)
    swap = swapped[triples[:, 1]]
    heads, tails = np.where(swap, tails, heads), np.where(swap, heads, tails)
    present = (heads >= 0) & (tails >= 0) & (heads != tails) & (labels >= 0)
    if not present.any():
        raise UserError(
            f"No triple of the graph is left for concepts (merge={merge}, language={language}). "
            "Prepare it from triples between named concepts, or set task.merge=none."
        )
    log.info("%d concepts; %d of %d triples are left out", len(names), int((~present).sum()), len(triples))
    count, size = len(names), len(relations)
    ends = np.concatenate([heads[present], tails[present]]).astype(np.int64)
    others = np.concatenate([tails[present], heads[present]]).astype(np.int64)
    directed = np.concatenate([labels[present], labels[present] + size])
    keys, hops = np.unique(ends * count + others, return_inverse=True)  # (M,)
    hop_relations = np.full(len(keys), 2 * size, np.int64)
    np.minimum.at(hop_relations, hops, directed)
    triple_hops = np.full((len(triples), 2), -1, np.int64)
    triple_hops[present] = hops.reshape(2, -1).T
    bounds = np.searchsorted(keys, np.arange(count + 1) * count)
    return ConceptGraph(
        names=names,
        relations=tuple(relations),
        bounds=bounds.astype(np.int64),
        neighbours=(keys % count).astype(np.int32),
        hop_relations=hop_relations.astype(np.int16),
        entities=entities,
        concepts=concepts,
        triple_hops=triple_hops,
        aliases=_collect_aliases(graph, entities) if merge == "none" else [],
        symmetric=symmetric,
        merge=merge,
        graph=graph.fingerprint,
    )


def choose_merge(relations: Sequence[str]) -> Merge:
    """ConceptNet's merge where more than half of the relations are ConceptNet's."""
    known = {name.strip("*") for members in CLASSES.values() for name in members.split()}
    return "conceptnet" if 2 * sum(_plain(name) in known for name in relations) > len(relations) else "none"


def merge_relations(relations: Sequence[str], merge: Merge) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray]:
    """The classes; and of each relation: its class (-1: left out), are its ends exchanged, is it symmetric."""
    if merge == "none":
        none = np.zeros(len(relations), bool)
        return list(relations), np.arange(len(relations)), none, none
    members = {
        name.strip("*"): (number, name.startswith("*"))
        for number, names in enumerate(CLASSES.values())
        for name in names.split()
    }
    classes, swapped, symmetric = np.full(len(relations), -1), *np.zeros((2, len(relations)), bool)
    names = list(CLASSES)
    for relation, name in enumerate(relations):
        number, swap = members.get(_plain(name), (-1, False))
        if number >= 0 and names[number] not in DROPPED:
            classes[relation], swapped[relation], symmetric[relation] = number, swap, names[number] in SYMMETRIC
    return names, classes, swapped, symmetric


def normalize_concept(name: str, language: str = "en") -> str | None:
    """A name of ConceptNet without its language and part of speech, in lower case; None where it is no concept here.

    /c/en/Hot_Dog/n -> hot_dog; eat breakfast -> eat_breakfast; None for another language, digits, vague or stop words.
    """
    if name.startswith("/c/"):
        parts = name.split("/")
        if len(parts) < 4 or parts[2] != language:
            return None
        name = parts[3]
    name = "_".join(name.lower().split())
    if not _WORDS.fullmatch(name) or name in VAGUE or any(word in STOP_WORDS for word in name.split("_")):
        return None
    return name


def _plain(relation: str) -> str:
    """/r/IsA -> isa."""
    return relation.rstrip("/").rsplit("/", 1)[-1].lower().replace("_", "")


def _merge_entities(graph: Graph, merge: Merge, language: str) -> tuple[list[str], np.ndarray, np.ndarray]:
    """The names of concepts, the first entity of each, and the concept of each entity."""
    numbers: dict[str, int] = {}
    concepts = np.full(len(graph.entities), -1, np.int32)
    entities: list[int] = []
    for entity in range(len(graph.entities)):
        if merge == "none":
            name: str | None = "_".join(graph.label(entity).lower().split()) or graph.entities[entity]
            if name in numbers:  # two entities of one label stay apart
                name = f"{name}({graph.entities[entity]})"
        else:
            name = normalize_concept(graph.entities[entity], language)
        if name is None:
            continue
        number = numbers.setdefault(name, len(numbers))
        if number == len(entities):
            entities.append(entity)
        concepts[entity] = number
    return list(numbers), np.array(entities, np.int32), concepts


def _collect_aliases(graph: Graph, entities: np.ndarray) -> list[tuple[int, str]]:
    return [
        (concept, "_".join(alias.lower().split()))
        for concept, entity in enumerate(entities.tolist())
        for alias in graph.aliases(entity)
        if alias.strip()
    ]

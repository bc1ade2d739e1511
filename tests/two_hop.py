"""Two-hop questions over a small random graph, whose answers no text tells; and graph folders for tests.

A question names a person and asks for the colour of the person's animal: person -keeps-> animal -has colour-> colour.
Test questions are about persons that no training question names, so only paths can answer them.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

from etude.graph.graph import Graph
from etude.graph.graph_files import FORMAT, SUFFIXES, VERSION
from tests.manifests import write_manifest

COLOURS = ["crimson", "azure", "olive", "amber", "violet"]
RELATIONS = ["keeps", "has colour", "fears", "sells"]


def write_graph(folder: Path, graph: Graph) -> Path:
    """Write a graph in memory as a folder."""
    folder.mkdir(parents=True)
    files = {}
    for name, array in graph._arrays.items():
        content = np.ascontiguousarray(array).tobytes()
        file = f"{name}.{SUFFIXES[array.dtype]}"
        (folder / file).write_bytes(content)
        files[file] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest = {"format": FORMAT, "version": VERSION, "fingerprint": graph.fingerprint, "files": files}
    write_manifest(folder, manifest)
    return folder


def town_graph(persons: int = 120, animals: int = 40, seed: int = 0) -> Graph:
    """Every person keeps one animal and fears another; every animal has one colour; the market sells all colours."""
    draw = np.random.default_rng(seed)
    names = [f"person{n}" for n in range(persons)] + [f"animal{n}" for n in range(animals)] + [*COLOURS, "market"]
    triples = []
    for person in range(persons):
        kept, feared = draw.choice(animals, 2, replace=False)
        triples += [(person, 0, persons + int(kept)), (person, 2, persons + int(feared))]
    for animal in range(animals):
        triples.append((persons + animal, 1, persons + animals + int(draw.integers(len(COLOURS)))))
    triples += [(len(names) - 1, 3, persons + animals + colour) for colour in range(len(COLOURS))]
    return Graph.from_triples(triples, names, RELATIONS)


def questions(graph: Graph, persons: range, seed: int = 0) -> list[dict[str, object]]:
    """One question a person: what colour is the animal that it keeps? The choices are all colours, shuffled."""
    draw = np.random.default_rng(seed)
    tails = {(int(head), int(relation)): int(tail) for head, relation, tail in graph.triples()}
    records: list[dict[str, object]] = []
    for person in persons:
        colour = graph.entities[tails[tails[person, 0], 1]]
        choices = [str(name) for name in draw.permutation(COLOURS)]
        text = f"what of the market is of {graph.entities[person]} ?"
        records.append({"question": text, "choices": choices, "answer": choices.index(colour)})
    return records


def write_questions(path: Path, records: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path

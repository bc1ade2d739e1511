"""A town whose text does not tell what anybody is, and a graph that does: people and places by name, in folders."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from etude.graph.graph import Graph
from etude.text.corpus.shard import Shard
from etude.text.corpus.split_writer import SplitWriter
from etude.text.tokenizer.tokenizer import Tokenizer
from tests.manifests import write_manifest

TYPES = ["baker", "singer", "doctor", "pilot"]
VERBS = ["met", "saw", "called", "knew", "helped", "greeted", "liked", "visited"]
PLACES = ["market", "river", "school", "park", "station"]


@dataclass(frozen=True)
class Town:
    folder: Path
    names: list[str]
    types: list[str]  # of each name
    graph: Path
    corpus: Path


def make_names(count: int) -> list[str]:
    """Words of two syllables that are no other words."""
    first = ["ba", "de", "fi", "go", "hu", "ka", "le", "mi", "no", "pu", "ra", "se", "ti", "vo", "zu"]
    second = ["lan", "mer", "nok", "pil", "rus", "tav", "wen", "xil"]
    return [f"{a}{b}".capitalize() for b in second for a in first][:count]


def build_town(
    folder: Path, people: int = 40, documents: int = 200, seed: int = 0, spec: str = "wordpiece:400,lower"
) -> Town:
    random = np.random.default_rng(seed)
    names = make_names(people)
    types = [TYPES[number % len(TYPES)] for number in range(people)]
    triples = [(number, 0, people + TYPES.index(kind)) for number, kind in enumerate(types)]
    for number in range(people):  # whom one works with is of the same trade
        same = [other for other in range(people) if types[other] == types[number] and other != number]
        triples += [(number, 1, int(other)) for other in random.choice(same, 3, replace=False)]
    entities = [f"Q{number}" for number in range(people)] + TYPES
    labels = [*names, *TYPES]
    graph = Graph.from_triples(np.array(triples), entities, ["is", "works with"], labels=labels).save(folder / "graph")
    texts, mentions = [], []
    for _ in range(documents):
        sentences, columns = [], []
        for _ in range(int(random.integers(3, 7))):
            one, other = (int(number) for number in random.choice(people, 2, replace=False))
            words = f"{names[one]} {random.choice(VERBS)} {names[other]} at the {random.choice(PLACES)} .".split()
            sentences.append(words)
            columns.append({0: one, 2: other})
        texts.append(sentences)
        mentions.append(columns)
    tokenizer = Tokenizer.train(
        spec, [" ".join(words) for document in texts for words in document] + [" ".join(TYPES)] * 5
    )
    write_corpus(folder / "corpus", tokenizer, texts, mentions, graph.fingerprint)
    return Town(folder, names, types, folder / "graph", folder / "corpus")


def write_corpus(
    folder: Path, tokenizer: Tokenizer, texts: list[list[list[str]]], mentions: list[list[dict[int, int]]], graph: str
) -> None:
    """A corpus of documents of sentences of words, with the entity of each word that mentions one."""
    parts = {}
    for split, chosen in (("train", slice(20, None)), ("valid", slice(0, 20))):
        writer = SplitWriter(folder / split, tokenizer.vocab, np.dtype("<u2"), False, 1 << 20, True)
        for document, columns in zip(texts[chosen], mentions[chosen], strict=True):
            ids, starts, words, entities = [], [], [], []
            for sentence, column in zip(document, columns, strict=True):
                starts.append(len(ids))
                for place, encoding in enumerate(tokenizer.encode_batch(sentence)):
                    entity = column.get(place, -1)
                    ids += encoding.ids.tolist()
                    words += [True] + [False] * (len(encoding) - 1)
                    entities += [entity] + [-1 if entity < 0 else -2 - entity] * (len(encoding) - 1)
            block = Shard(np.array(ids), np.zeros(1, np.uint32), np.array(starts, np.uint32), np.array(words, np.uint8))
            block.entities = np.array(entities, np.int32)
            writer.append(block, sum(len(word) + 1 for sentence in document for word in sentence))
        parts[split] = writer.finish()
    manifest = {
        "format": "etude corpus", "version": 1, "parts": parts, "entities": {"graph": graph},
        "tokenizer": {"fingerprint": tokenizer.fingerprint, "kind": tokenizer.kind, "vocab": tokenizer.vocab},
    }  # fmt: skip
    write_manifest(folder, manifest)
    tokenizer.save(folder)


def typing_records(town: Town, chosen: list[int], count: int, seed: int, noise: float = 0.0) -> list[dict[str, object]]:
    """Mentions of some people, whose trade is the label; `noise` of the links point to anybody."""
    random = np.random.default_rng(seed)
    records: list[dict[str, object]] = []
    for _ in range(count):
        one = int(random.choice(chosen))
        other = int(random.integers(len(town.names)))
        text = f"{town.names[one]} {random.choice(VERBS)} {town.names[other]} at the {random.choice(PLACES)} ."
        entities = []
        for number, start in ((one, 0), (other, text.index(town.names[other], len(town.names[one])))):
            linked = int(random.integers(len(town.names))) if random.random() < noise else number
            entities.append([f"Q{linked}", start, start + len(town.names[number]), 1.0])
        end = len(town.names[one])
        records.append({"text": text, "start": 0, "end": end, "labels": [town.types[one]], "entities": entities})
    return records

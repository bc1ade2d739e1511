"""Precision and recall of the trie linker on GUM (entities of Wikipedia, annotated by hand), with and without priors.

    python benchmarks/linking_quality.py data/tasks/gum_entity_linking/train.jsonl.xz \\
        --labels data/knowledge/fb15k237_entity_labels.tsv.xz --triples data/knowledge/fb15k237_train.tsv.xz

GUM links whole noun phrases, pronouns too. Two sets of gold mentions are counted against all predictions:

    names   phrases whose words are capitalised, but for function words; without articles before and ’s behind them
    all     every linked phrase, pronouns and descriptions included: out of reach of any look-up of names

Graphs, from the most to the least that is known beforehand; five folds by document, all folds counted together:

    all titles             the titles of every entity of GUM, the test fold's included: what there is to find is known
    all titles + surfaces  the same, with the surfaces of the training folds and how often each names an entity
    train only             titles, surfaces and counts of the training folds alone: entities of the test fold that are
                           not in them cannot be found (the last column is that ceiling of recall)
    all titles + FB        all titles among the 14,541 labels of FB15k-237, most of which GUM does not annotate, with
                           degrees in its triples as priors

A mention is right if its span is (detection), and if its entity is, too (linking). Nested gold mentions are all in the
gold set; the linker gives one reading, so its recall has a ceiling there.
"""

from __future__ import annotations

import argparse
import io
import json
import lzma
import urllib.parse
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from etude.chance import fold
from etude.graph.graph import Graph
from etude.graph.linking.trie import Settings, TrieLinker
from etude.text.function_words import FUNCTION_WORDS
from etude.text.tokenizer.normalization import normalize_nfc

FOLDS = 5
ARTICLES = {"the", "a", "an"}
POSSESSIVES = {"’s", "'s", "’", "'"}
Key = tuple[int, int]  # first token and end


@dataclass
class Sentence:
    """One sentence of GUM."""

    document: str
    tokens: list[str]
    mentions: dict[Key, str] = field(default_factory=dict)  # of linked phrases, without articles and ’s, by span
    names: set[Key] = field(default_factory=set)  # those that are names

    @property
    def text(self) -> str:
        return " ".join(self.tokens)


@dataclass
class Counts:
    """What was predicted and what was right."""

    predicted: int = 0
    gold: int = 0
    spans: int = 0
    entities: int = 0
    reachable: int = 0  # gold mentions whose entity is in the graph

    def format(self) -> str:
        scores = (_format_scores(self.spans, self), _format_scores(self.entities, self))
        return f"{'   '.join(scores)}   {self.reachable / self.gold:6.1%}"


def _format_scores(right: int, counts: Counts) -> str:
    precision, recall = right / max(1, counts.predicted), right / max(1, counts.gold)
    f1 = 2 * precision * recall / max(1e-9, precision + recall)
    return f"{precision:6.1%} {recall:6.1%} {f1:6.1%}"


def read_gum(path: Path) -> list[Sentence]:
    sentences = []
    for line in _open(path):
        record = json.loads(line)
        sentence = Sentence(record["doc"], [normalize_nfc(token) for token in record["tokens"]])
        for entity in record["entities"]:
            start, end = entity["start"], entity["end"]
            if entity["wiki"] is None:
                continue
            while end - start > 1 and sentence.tokens[start].lower() in ARTICLES:
                start += 1
            while end - start > 1 and sentence.tokens[end - 1] in POSSESSIVES:
                end -= 1
            title = urllib.parse.unquote(entity["wiki"]).replace("_", " ")
            sentence.mentions[start, end] = normalize_nfc(title)
            words = [token for token in sentence.tokens[start:end] if any(map(str.isalnum, token))]
            content = [word for word in words if word.lower() not in FUNCTION_WORDS]
            if content and all(word[0].isupper() or word[0].isdigit() for word in content):
                sentence.names.add((start, end))
        sentences.append(sentence)
    return sentences


def _open(path: Path) -> io.TextIOBase:
    return lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else path.open(encoding="utf-8")  # type: ignore[return-value]


def count_surfaces(sentences: Iterable[Sentence]) -> Counter[tuple[str, str]]:
    """Return how often each surface names each title in the names of some sentences."""
    counts: Counter[tuple[str, str]] = Counter()
    for sentence in sentences:
        for key in sentence.names:
            counts[" ".join(sentence.tokens[key[0] : key[1]]), sentence.mentions[key]] += 1
    return counts


def build_linker(
    titles: list[str], surfaces: Counter[tuple[str, str]], settings: Settings, with_counts: bool,
    edges: list[tuple[int, int]] | None = None,
) -> TrieLinker:  # fmt: skip
    """Build the linker of a graph whose entities are titles, with surfaces as aliases and, if wanted, their counts."""
    number = {title: place for place, title in enumerate(titles)}
    aliases: dict[int, set[str]] = defaultdict(set)
    observed = []
    for (surface, title), count in surfaces.items():
        if title in number:
            aliases[number[title]].add(surface)
            observed.append((surface, number[title], float(count)))
    graph = Graph.from_triples(
        [(head, 0, tail) for head, tail in edges or [(0, 0)]], titles, ["related"], labels=titles,
        aliases=[sorted(aliases[place]) for place in range(len(titles))],
    )  # fmt: skip
    return TrieLinker.from_graph(graph, settings, observed if with_counts else ())


def add_counts(sentences: list[Sentence], linker: TrieLinker, titles: list[str], counts: dict[str, Counts]) -> None:
    """Link sentences and add what came of it, for both sets of gold mentions."""
    known = set(titles)
    mentions = linker.link_batch([sentence.text for sentence in sentences])
    predictions: list[dict[Key, str]] = [{} for _ in sentences]
    bounds = [_token_bounds(sentence.tokens) for sentence in sentences]
    for text, start, end, entity in zip(*(column.tolist() for column in mentions[:4]), strict=True):
        starts, ends = bounds[text]
        first = int(np.searchsorted(starts, start, "right")) - 1
        last = int(np.searchsorted(ends, end, "left")) + 1
        while last - first > 1 and sentences[text].tokens[first].lower() in ARTICLES:
            first += 1
        predictions[text][first, last] = titles[entity]
    for sentence, predicted in zip(sentences, predictions, strict=True):
        for name, keys in (("names", sentence.names), ("all", set(sentence.mentions))):
            part = counts[name]
            part.predicted += len(predicted)
            part.gold += len(keys)
            part.reachable += sum(sentence.mentions[key] in known for key in keys)
            part.spans += sum(key in keys for key in predicted)
            part.entities += sum(key in keys and sentence.mentions[key] == title for key, title in predicted.items())


def _token_bounds(tokens: list[str]) -> tuple[np.ndarray, np.ndarray]:
    ends = np.cumsum([len(token) + 1 for token in tokens]) - 1
    return ends - [len(token) for token in tokens], ends


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gum", type=Path)
    parser.add_argument("--labels", type=Path, help="entity labels of FB15k-237: id, Wikidata id, label, description")
    parser.add_argument("--triples", type=Path, help="train triples of FB15k-237")
    parser.add_argument("--threshold", type=float, default=Settings().threshold)
    parser.add_argument("--titles", action="store_true", help="lower-case mentions of one word, too")
    parser.add_argument("--commas", action="store_true", help='"Oakland, California" is also "Oakland"')
    arguments = parser.parse_args()
    sentences = read_gum(arguments.gum)
    documents = sorted({sentence.document for sentence in sentences})
    parts = {document: fold("linking quality", document) % FOLDS for document in documents}
    gold = {name: sum(len(keys(s)) for s in sentences) for name, keys in _sets().items()}
    print(f"{len(documents)} documents, {gold['all']:,} linked phrases, {gold['names']:,} of them names")
    all_titles = sorted({title for sentence in sentences for title in sentence.mentions.values()})
    fb_labels: list[str] = []
    fb_edges: list[tuple[str, str]] = []
    if arguments.labels and arguments.triples:
        fb_labels, fb_edges = read_fb(arguments.labels, arguments.triples)

    def settings(priors: str) -> Settings:
        return Settings(threshold=arguments.threshold, titles=arguments.titles, priors=priors, commas=arguments.commas)  # type: ignore[arg-type]

    Builder = Callable[[list[Sentence]], tuple[TrieLinker, list[str]]]

    def all_known(train: list[Sentence]) -> tuple[TrieLinker, list[str]]:
        return build_linker(all_titles, Counter(), settings("uniform"), False), all_titles

    def with_surfaces(counts: bool) -> Builder:
        return lambda train: (build_linker(all_titles, count_surfaces(train), settings("uniform"), counts), all_titles)

    def train_only(counts: bool) -> Builder:
        def build(train: list[Sentence]) -> tuple[TrieLinker, list[str]]:
            titles = sorted({title for sentence in train for title in sentence.mentions.values()})
            return build_linker(titles, count_surfaces(train), settings("uniform"), counts), titles

        return build

    def among_fb(priors: str) -> Builder:
        names = [*all_titles, *(label for label in fb_labels if label not in set(all_titles))]
        place = {name: number for number, name in enumerate(names)}
        edges = [(place[head], place[tail]) for head, tail in fb_edges]
        return lambda train: (build_linker(names, Counter(), settings(priors), False, edges), names)

    rows: list[tuple[str, str, Builder]] = [
        ("all titles", "-", all_known),
        ("all titles + surfaces", "uniform", with_surfaces(False)),
        ("all titles + surfaces", "counts", with_surfaces(True)),
        ("train only", "uniform", train_only(False)), ("train only", "counts", train_only(True)),
    ]  # fmt: skip
    if fb_labels:
        rows += [("all titles + FB", "uniform", among_fb("uniform")), ("all titles + FB", "degree", among_fb("degree"))]
    scores = "     P      R      F   "
    print(
        f"\n{'':<39}{'detection':<23}{'linking':<23}\n{'graph':<23}{'priors':<9}{'gold':<7}{scores}{scores}in the graph"
    )
    for name, priors, build in rows:
        counts = {"names": Counts(), "all": Counts()}
        for number in range(FOLDS):
            train = [sentence for sentence in sentences if parts[sentence.document] != number]
            test = [sentence for sentence in sentences if parts[sentence.document] == number]
            linker, titles = build(train)
            add_counts(test, linker, titles, counts)
        for gold_set, part in counts.items():
            print(f"{name:<23}{priors:<9}{gold_set:<7}{part.format()}")


def _sets() -> dict[str, Callable[[Sentence], set[Key]]]:
    return {"names": lambda sentence: sentence.names, "all": lambda sentence: set(sentence.mentions)}


def read_fb(labels: Path, triples: Path) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the distinct labels of FB15k-237, and its triples as pairs of labels."""
    label = {}
    for line in _open(labels):
        parts = line.rstrip("\n").split("\t")
        if len(parts) > 2 and parts[2].strip():
            label[parts[0]] = normalize_nfc(parts[2].strip())
    edges = [line.rstrip("\n").split("\t") for line in _open(triples)]
    pairs = [(label[head], label[tail]) for head, _, tail in edges if head in label and tail in label]
    return sorted(set(label.values())), pairs


if __name__ == "__main__":
    main()

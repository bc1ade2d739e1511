"""How many mentions of SemEval-2010 task 8 does a graph know? Linked as a study links them, graph by graph.

    python benchmarks/linking_coverage.py shared/data

The task marks two noun phrases in each sentence, mostly common nouns. A mention counts as linked where the linker finds
an entity whose span ends with the mention's last word (`exact`: it is the whole mention). Both: the sentences with both
mentions linked. The graphs: labels of FB15k-237, lemmas of WN18RR's synsets, and CN-100K's concepts.
"""

from __future__ import annotations

import argparse
import json
import lzma
import tempfile
from pathlib import Path

from etude.graph.graph import Graph
from etude.graph.linking.trie import Settings, TrieLinker
from etude.verbs.graph import prepare_graph


def prepare_graphs(data: Path, folder: Path) -> dict[str, Graph]:
    """The three graphs; a synset's label is its lemma."""
    wordnet = data / "wn18rr_text_train.tsv.xz"
    with lzma.open(wordnet, "rt", encoding="utf-8") as file:
        synsets = sorted({name for line in file for name in line.split("\t")[::2]})
    labels = folder / "lemmas.tsv"
    names = (synset.strip() for synset in synsets)
    labels.write_text("".join(f"{name}\t{name.rsplit('.', 2)[0].replace('_', ' ')}\n" for name in names), "utf-8")
    return {
        "FB15k-237": prepare_graph(
            data / "fb15k237_train.tsv.xz", out=folder / "fb", entities=data / "fb15k237_entity_labels.tsv.xz",
            entity_columns="id,-,label,description",
        ),
        "WN18RR": prepare_graph(wordnet, out=folder / "wn", entities=labels, entity_columns="id,label"),
        "CN-100K": prepare_graph(
            data / "conceptnet_cn100k_train.tsv.xz", out=folder / "cn", triple_columns="relation,head,tail"
        ),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    options = parser.parse_args()
    with lzma.open(options.data / "tasks/semeval2010_8/train.jsonl.xz", "rt", encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    with tempfile.TemporaryDirectory() as folder:
        for name, graph in prepare_graphs(options.data / "knowledge", Path(folder)).items():
            for plurals in (False, True):
                linker = TrieLinker.from_graph(graph, Settings(plurals=plurals))
                print(f"{name:10} {'with' if plurals else 'without'} plurals: {measure(linker, records)}", flush=True)


def measure(linker: TrieLinker, records: list[dict[str, object]]) -> str:
    linked = exact = both = mentions = 0
    found = linker.link_batch([str(record["sentence"]) for record in records])
    by_text: dict[int, dict[int, int]] = {}
    for text, start, end in zip(found.texts.tolist(), found.starts.tolist(), found.ends.tolist(), strict=True):
        by_text.setdefault(text, {})[end] = start
    for number, record in enumerate(records):
        hits = []
        for role in ("subject_entity", "object_entity"):
            span = record[role]
            assert isinstance(span, dict)
            start = by_text.get(number, {}).get(span["end_idx"] + 1)
            hits.append(start is not None)
            exact += start == span["start_idx"]
        linked, both, mentions = linked + sum(hits), both + all(hits), mentions + 2
    count = len(records)
    rate = len(found.texts) / count
    return (
        f"{linked / mentions:.1%} linked, {exact / mentions:.1%} exact, {both / count:.1%} both, {rate:.1f} a sentence"
    )


if __name__ == "__main__":
    main()

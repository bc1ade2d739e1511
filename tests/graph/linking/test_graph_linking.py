"""A prepared corpus has the entities its text mentions, by a linker or by anchors, in any number of processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import etude
from etude.errors import UserError
from etude.graph.graph import Graph
from etude.graph.linking.base import Mention
from etude.graph.linking.entity_index import EntityIndex
from etude.graph.linking.graph_linking import GraphLinking, GraphTextLinker, open_text_linker, parse_linker
from etude.graph.linking.trie import TrieLinker
from etude.text.corpus.corpus import Corpus
from etude.text.prepare import readers
from etude.text.prepare.anchors import Anchor
from etude.text.prepare.corpus_report import format_report
from etude.text.prepare.prepare import Progress, prepare

GRAPH = Graph.from_triples(
    [(0, 0, 1), (2, 0, 1), (0, 0, 1)], ["Q8684", "Q884", "Q16520", "Q90"], ["in"],
    labels=["서울", "South Korea", "Busan", "Paris"], aliases=[["Seoul"], ["대한민국"], [], []],
)  # fmt: skip
DOCUMENT = (
    "He left Seoul for Busan, in South Korea. (Seoul) is not Paris{}. 그는 서울에서는 대한민국의 Busan{}을 보았다."
)
LINKER = '''
from etude.graph.linking.base import Mention

class Capitals:
    """Links the word Seoul to the first entity."""
    fingerprint = "capitals 1"
    def __init__(self, graph, settings):
        self.entity = graph.entities.find(settings.get("entity", "Q8684"))
    def link(self, text):
        start = text.find("Seoul")
        return [] if start < 0 else [Mention(start, start + 5, self.entity)]

def build(graph, settings):
    return Capitals(graph, settings)
'''


def write_text(folder: Path, count: int = 60) -> Path:
    path = folder / "text.txt"
    path.write_text("\n\n".join(DOCUMENT.format(number, number) for number in range(count)), encoding="utf-8")
    return path


def write_graph(folder: Path) -> Path:
    """The same graph on disk, by the command."""
    folder.mkdir(exist_ok=True)
    names = ["Q8684", "Q884", "Q16520", "Q90"]
    triples = [(names[head], "in", names[tail]) for head, _, tail in GRAPH.triples().tolist()]
    (folder / "t.tsv").write_text("".join("\t".join(triple) + "\n" for triple in [*triples, ("Q90", "in", "Q90")]))
    rows = [(name, GRAPH.label(number), "|".join(GRAPH.aliases(number))) for number, name in enumerate(names)]
    (folder / "e.jsonl").write_text(
        "".join(json.dumps({"id": a, "label": b, "aliases": c.split("|") if c else []}) + "\n" for a, b, c in rows)
    )
    from etude.verbs.graph import prepare_graph

    prepare_graph(folder / "t.tsv", out=folder / "g", entities=folder / "e.jsonl")
    return folder / "g"


def read_mentions(corpus: Corpus) -> list[list[tuple[str, int]]]:
    """The mentions of each document as text and entity."""
    result = []
    for number in range(len(corpus.documents)):
        start, stop = corpus.documents[number], corpus.documents[number + 1]
        column, tokens = corpus.entities(start, stop).tolist(), corpus.tokens(start, stop).tolist()
        firsts = [place for place, entity in enumerate(column) if entity >= 0]
        mentions = []
        for first in firsts:
            last = first + 1
            while last < len(column) and column[last] == -2 - column[first]:
                last += 1
            mentions.append((corpus.tokenizer.decode(tokens[first:last]).strip(), column[first]))
        result.append(mentions)
    return result


@pytest.mark.parametrize("tokenizer", ["wordpiece:300", "bpe:300", "bytebpe:400", "unigram:200", "char"])
def test_a_trie_links_a_corpus(tmp_path: Path, tokenizer: str) -> None:
    corpus = prepare(write_text(tmp_path, 20), tmp_path / "c", tokenizer, linking=GraphLinking(GRAPH), valid=0.1)
    assert corpus.graph == GRAPH.fingerprint
    verified = Corpus.open(tmp_path / "c", verify=True)
    expected = [("Seoul", 0), ("Busan", 2), ("South Korea", 1), ("Seoul", 0), ("서울", 0), ("대한민국", 1)]
    for mentions in read_mentions(verified):
        names = [(name.replace(" ", "") if tokenizer == "char" else name, id) for name, id in mentions]
        # a particle may be in the same token as the end of a name
        assert [id for _, id in names] == [id for _, id in expected]
        assert all(a.startswith(b) or b.replace(" ", "") == a for (a, _), (b, _) in zip(names, expected, strict=True))
    entry = corpus.manifest["entities"]
    documents = sum(part["documents"] for part in corpus.manifest["parts"].values())
    assert entry["mentions"] == 6 * documents
    assert entry["entities"] == 3
    assert entry["top"] == [["서울", 3 * documents], ["South Korea", 2 * documents], ["Busan", documents]]
    column = corpus.entities(0, corpus.total)
    held_out = Corpus.open(tmp_path / "c", "valid")
    share = ((column != -1).sum() + (held_out.entities(0, held_out.total) != -1).sum()) / (
        corpus.total + held_out.total
    )
    assert entry["token_share"] == pytest.approx(share, abs=1e-5)


def test_a_corpus_without_links_is_as_before(tmp_path: Path) -> None:
    """Linking adds a column and an entry of the manifest, and changes nothing else."""
    text = write_text(tmp_path)
    plain = prepare(text, tmp_path / "plain", "bpe:300")
    linked = prepare(text, tmp_path / "linked", "bpe:300", linking=GraphLinking(GRAPH))
    assert plain.graph is None
    names = {path.relative_to(plain.folder) for path in plain.folder.rglob("*") if path.is_file()}
    added = {path.relative_to(linked.folder) for path in linked.folder.rglob("*") if path.is_file()} - names
    assert {path.name for path in added} == {"00000.entities.i32"}
    for name in names - {Path("manifest.json")}:
        assert (plain.folder / name).read_bytes() == (linked.folder / name).read_bytes()
    assert "anchors" not in json.dumps(plain.manifest)
    assert plain.manifest["settings"] == linked.manifest["settings"]


def test_workers_and_interruptions_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "BLOCK_BYTES", 1 << 13)
    text = write_text(tmp_path, 250)
    settings = {"tokenizer": "wordpiece:300", "valid": 0.1, "commit_seconds": 0.0, "shard_tokens": 2000}

    def run(out: str, workers: int, stop_after: int | None = None) -> tuple[Corpus, list[int]]:
        steps: list[int] = []

        def report(progress: Progress) -> None:
            if progress.phase == "encoding":
                steps.append(progress.documents)
                if len(steps) == stop_after:
                    raise KeyboardInterrupt

        linking = GraphLinking(GRAPH)
        return prepare(text, tmp_path / out, workers=workers, linking=linking, progress=report, **settings), steps

    alone, steps = run("a", 0)
    with pytest.raises(KeyboardInterrupt):
        run("b", 0, stop_after=3)
    again, last_steps = run("b", 2)
    assert 3 < len(steps) > len(last_steps) > 0  # it went on from where it was
    assert again.fingerprint == alone.fingerprint
    assert again.manifest == alone.manifest
    for path in sorted(alone.folder.rglob("*")):
        if path.is_file():
            assert path.read_bytes() == (again.folder / path.relative_to(alone.folder)).read_bytes()


KILLED = """
import sys
from etude.graph.graph import Graph
from etude.graph.linking.graph_linking import GraphLinking
from etude.text.prepare import readers
from etude.text.prepare.prepare import prepare
readers.BLOCK_BYTES = 1 << 12
if __name__ == "__main__":
    prepare(sys.argv[1], sys.argv[2], "wordpiece:300", workers=2, commit_seconds=0.0,
            linking=GraphLinking(Graph.open(sys.argv[3])), progress=lambda p: print(p.phase, p.text, flush=True))
"""


def test_a_killed_preparation_with_links_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL while texts are linked, workers and all, then the same call again: byte for byte the same corpus."""
    monkeypatch.setattr(readers, "BLOCK_BYTES", 1 << 12)
    text, graph = write_text(tmp_path, 400), write_graph(tmp_path / "graph")
    linking = GraphLinking(Graph.open(graph))
    whole = prepare(text, tmp_path / "whole", "wordpiece:300", workers=0, linking=linking)
    arguments = [sys.executable, "-c", KILLED, str(text), str(tmp_path / "c"), str(graph)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    encoding = (line for line in iter(process.stdout.readline, "") if line.startswith("encoding"))
    assert len([next(encoding) for _ in range(4)]) == 4
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    assert not (tmp_path / "c").exists() and (tmp_path / "c.partial").exists()
    again = prepare(text, tmp_path / "c", "wordpiece:300", workers=0, linking=linking)
    assert again.manifest == whole.manifest and again.graph == whole.graph is not None
    for path in sorted(whole.folder.rglob("*")):
        if path.is_file():
            assert path.read_bytes() == (again.folder / path.relative_to(whole.folder)).read_bytes()


def test_another_graph_starts_anew(tmp_path: Path) -> None:
    """What an interrupted preparation linked to one graph is not continued with another."""
    fingerprints = {GraphLinking(GRAPH).fingerprint, GraphLinking(GRAPH, "trie,threshold=0.5").fingerprint}
    fingerprints |= {GraphLinking(GRAPH, anchors="wiki").fingerprint, GraphLinking(GRAPH, "trie", "wiki").fingerprint}
    graph = Graph.from_triples([(0, 0, 1)], ["Q8684", "Q884"], ["in"], labels=["서울", "South Korea"])
    fingerprints |= {GraphLinking(graph).fingerprint}
    assert len(fingerprints) == 5


def test_wiki_anchors(tmp_path: Path) -> None:
    text = tmp_path / "wiki.txt"
    line = "In [[Seoul|the capital]] of [[south Korea]], Busan. [[Tokyo]] [[Q90]]{}"
    text.write_text("\n\n".join(line.format(" x" * number) for number in range(1, 15)), encoding="utf-8")
    corpus = prepare(text, tmp_path / "c", "wordpiece:200", linking=GraphLinking(GRAPH, anchors="wiki"))
    assert read_mentions(corpus)[0] == [("the capital", 0), ("south Korea", 1), ("Q90", 3)]
    assert corpus.tokenizer.decode(corpus.tokens(0, 6)).startswith("In the capital of south Korea")
    both = prepare(text, tmp_path / "d", "wordpiece:200", linking=GraphLinking(GRAPH, "trie", "wiki"))
    assert read_mentions(both)[0] == [("the capital", 0), ("south Korea", 1), ("Busan", 2), ("Q90", 3)]
    entry = both.manifest["entities"]
    assert (entry["anchors"], entry["anchor_count"]) == ("wiki", 4 * 14)
    pieces = [corpus.tokenizer.token(id) for id in range(corpus.tokenizer.vocab)]
    assert not any("[[" in piece or "|" in piece for piece in pieces)  # the tokenizer never saw the markup
    rows = dict(format_report(both.manifest))
    assert rows["entities"].startswith("56 mentions of 4 entities, ")
    assert rows["anchors"] == "56 in the text, wiki"
    assert rows["most frequent"] == "서울 14, South Korea 14, Busan 14, Paris 14"


def test_wiki_links_that_stay_in_the_text_are_reported(tmp_path: Path) -> None:
    """Without --anchors the brackets are text; nobody finds that out from a model."""
    text = tmp_path / "wiki.txt"
    line = "In [[Seoul|the capital]] of [[south Korea]], Busan{}. An array [0] [[ and ]] and [[]]."
    text.write_text("\n\n".join(line.format(" x" * number) for number in range(1, 15)), encoding="utf-8")
    kept = prepare(text, tmp_path / "c", "wordpiece:200", linking=GraphLinking(GRAPH))
    assert kept.manifest["entities"]["unread_links"] == 2 * 14
    assert dict(format_report(kept.manifest))["wiki links"] == (
        "28 [[...]] are kept as text; --anchors wiki reads them as links and removes the brackets"
    )
    for corpus in (
        prepare(text, tmp_path / "d", "wordpiece:200", linking=GraphLinking(GRAPH, anchors="wiki")),
        prepare(write_text(tmp_path), tmp_path / "e", "wordpiece:200", linking=GraphLinking(GRAPH)),
    ):
        assert "unread_links" not in corpus.manifest["entities"]
        assert "wiki links" not in dict(format_report(corpus.manifest))


def test_a_mention_over_two_sentences_is_two(tmp_path: Path) -> None:
    text = tmp_path / "wiki.txt"
    text.write_text("\n\n".join(f"[[Seoul|He came. She]] left {'x ' * number}" for number in range(1, 15)))
    prepare(text, tmp_path / "c", "wordpiece:200", linking=GraphLinking(GRAPH, anchors="wiki"))
    corpus = Corpus.open(tmp_path / "c", verify=True)
    assert corpus.sentences.slice(0, 2).tolist() == [0, 3]
    assert corpus.entities(0, 5).tolist() == [0, -2, -2, 0, -1]


def test_ernie_files(tmp_path: Path) -> None:
    sentence = {
        "wordpieces": ["in", "se", "##oul", "and", "par", "##is"],
        "qid": [None, "Q8684", None, None, "Q1", None],
    }
    (tmp_path / "e.jsonl").write_text("".join(json.dumps({"sentences": [sentence] * n}) + "\n" for n in range(1, 14)))
    linking = GraphLinking(GRAPH, anchors="ernie")
    corpus = prepare(tmp_path / "e.jsonl", tmp_path / "c", "wordpiece:60", linking=linking)
    assert all(len(mentions) in range(1, 14) and set(mentions) == {("seoul", 0)} for mentions in read_mentions(corpus))
    with pytest.raises(UserError, match=r"reads records, but .* is plain text"):
        prepare(write_text(tmp_path), tmp_path / "d", "wordpiece:60", linking=linking)


def test_a_column_of_entities(tmp_path: Path) -> None:
    rows = [{"body": f"{number} to Seoul and Rome", "entities": [[len(str(number)) + 4, len(str(number)) + 9, "Seoul"]]}
            for number in range(15)]  # fmt: skip
    (tmp_path / "e.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    linking = GraphLinking(GRAPH, anchors="entities")
    corpus = prepare(tmp_path / "e.jsonl", tmp_path / "c", "word:60", text_field="body", linking=linking)
    assert all(mentions == [("Seoul", 0)] for mentions in read_mentions(corpus))
    rows[7]["entities"] = [[0, 1]]
    (tmp_path / "e.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match=r"e.jsonl, line 8: 'entities' has \[0, 1\]"):
        prepare(tmp_path / "e.jsonl", tmp_path / "d", "word:60", text_field="body", linking=linking)


def test_a_linker_of_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the full name of its module, also in worker processes, with settings."""
    (tmp_path / "their_package").mkdir()
    (tmp_path / "their_package" / "__init__.py").touch()
    (tmp_path / "their_package" / "capitals.py").write_text(LINKER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    graph, text = write_graph(tmp_path / "graph"), write_text(tmp_path, 30)
    corpus = etude.prepare(
        text,
        out=tmp_path / "c",
        tokenizer="wordpiece:300",
        link=graph,
        linker="their_package.capitals,entity=Q884",
        workers=1,
    )
    number = Graph.open(graph).entities.find("Q884")
    assert all(mentions == [("Seoul", number)] for mentions in read_mentions(corpus))


def test_linkers_must_keep_their_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    class Careless:
        fingerprint = "x"

        def __init__(self, mentions: list[Mention]) -> None:
            self.mentions = mentions

        def link(self, text: str) -> list[Mention]:
            return self.mentions

    for mentions, message in (
        ([Mention(0, 99, 0)], "outside"), ([Mention(3, 5, 0), Mention(0, 2, 0)], "out of order"),
        ([Mention(0, 2, 4)], "entities from 4 to 4 in a graph of 4"), ([Mention(2, 2, 0)], "empty"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            GraphTextLinker(None, Careless(mentions), 4, "x").link(["some text"], [[]])
    module = ModuleType("their_module")
    monkeypatch.setitem(sys.modules, "their_package.their_module", module)
    with pytest.raises(UserError, match="not a kind of linker, because it does not define build"):
        GraphLinking(GRAPH, "their_package.their_module")
    with pytest.raises(UserError, match=r"'tri' is not a kind of linker\. Did you mean 'trie'\?"):
        GraphLinking(GRAPH, "tri")


def test_anchors_come_before_what_a_linker_finds() -> None:
    linker = GraphTextLinker(EntityIndex.from_graph(GRAPH), TrieLinker.from_graph(GRAPH), 4, "trie")
    text = "Seoul and Busan and  Paris South Korea"
    anchors = [Anchor(0, 9, "Q90"), Anchor(19, 26, "unknown"), Anchor(33, 38, "Q884")]
    rows = [tuple(int(value) for value in row) for row in zip(*linker.link(["", text], [[], anchors]), strict=True)]
    assert rows == [(1, 0, 9, 3), (1, 10, 15, 2), (1, 33, 38, 1)]


def test_names_are_found_by_rank() -> None:
    graph = Graph.from_triples(
        [(3, 0, 0), (3, 0, 1)], ["Paris", "Q1", "Q2", "Q3"], ["in"],
        labels=["", "Paris", "New York", "New York"], aliases=[[], ["Rome", "Q2"], ["Rome"], []],
    )  # fmt: skip
    index = EntityIndex.from_graph(graph)
    assert index.find("Paris") == 0  # a name before a label
    assert index.find("New_York") == 3  # the larger degree
    assert index.find("Rome") == 1
    assert index.find("Q2") == 2  # a name before an alias
    assert index.find("new York") == 3
    assert index.find("NEW YORK") is None
    assert (index.find(2), index.find(4), index.find(-1)) == (2, None, None)


def test_options_are_checked(tmp_path: Path) -> None:
    text = write_text(tmp_path, 20)
    with pytest.raises(UserError, match="--anchors goes with --link"):
        etude.prepare(text, out=tmp_path / "c", anchors="wiki")
    with pytest.raises(UserError, match="not a graph"):
        etude.prepare(text, out=tmp_path / "c", link=tmp_path)
    with pytest.raises(UserError, match="pairs is not linked"):
        prepare(text, tmp_path / "c", pairs="en,ko", linking=GraphLinking(GRAPH))
    with pytest.raises(UserError, match="no format of anchors"):
        GraphLinking(GRAPH, anchors="wikis")
    assert parse_linker("trie,threshold=0.4,titles,case=false") == (
        "trie", {"threshold": 0.4, "titles": True, "case": False},
    )  # fmt: skip


def test_counts_of_mentions_are_read(tmp_path: Path) -> None:
    path = tmp_path / "counts.tsv"
    path.write_text("the capital\tQ8684\t12\nParis\tQ884\t3\nRome\tQ220\t5\n", encoding="utf-8")
    linking = GraphLinking(GRAPH, f"trie,counts={path}")
    linking.save(tmp_path / "linking")
    mentions = open_text_linker(tmp_path / "linking").link(["in the capital Paris"], [[]])
    assert np.asarray(mentions.entities).tolist() == [0, 1]
    fingerprint = linking.fingerprint
    assert fingerprint != GraphLinking(GRAPH).fingerprint
    path.write_text("the capital\tQ8684\t12\nParis\tQ884\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"counts\.tsv:2: expected surface, entity and count"):
        _ = GraphLinking(GRAPH, f"trie,counts={path}").fingerprint
    path.write_text("Rome\tQ220\t5\n", encoding="utf-8")
    with pytest.raises(UserError, match="no count of an entity of this graph"):
        _ = GraphLinking(GRAPH, f"trie,counts={path}").fingerprint


@pytest.mark.parametrize("content", ["", '{"fingerprint": "', "\0\0"])
def test_tables_whose_list_is_half_written_are_written_again(tmp_path: Path, content: str) -> None:
    linking = GraphLinking(GRAPH)
    linking.save(tmp_path / "linking")
    whole = (tmp_path / "linking" / "linking.json").read_bytes()
    (tmp_path / "linking" / "linking.json").write_text(content)
    linking.save(tmp_path / "linking")
    assert (tmp_path / "linking" / "linking.json").read_bytes() == whole
    assert open_text_linker(tmp_path / "linking").link(["Seoul"], [[]]).entities.tolist() == [0]

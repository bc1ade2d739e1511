"""The linker that the page on knowledge writes: it runs as it stands there, in the processes of a preparation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from etude.graph.graph import Graph
from etude.text.corpus.corpus import Corpus
from tests.docs.code_blocks import DOCS, ROOT, read_blocks


def test_the_linker_of_the_page_links_a_corpus(tmp_path: Path) -> None:
    page = (DOCS / "knowledge.md").read_text(encoding="utf-8")
    [block] = [block for block in read_blocks(page) if block.title == "my_linkers/tickers.py"]
    (tmp_path / block.title).parent.mkdir()
    (tmp_path / block.title).write_text(block.text, encoding="utf-8")
    graph = Graph.from_triples([[0, 0, 1]], ["a", "b"], ["owns"], labels=["ETDE", "OPUS"])
    graph.save(tmp_path / "companies")
    news = "\n\n".join(f"Shares of #OPUS rose {n}, said #ETDE and #NOBODY. OPUS is a word." for n in range(40))
    (tmp_path / "news.txt").write_text(news + "\n", encoding="utf-8")
    words = ["--link", "companies", "--linker", "my_linkers.tickers,sign=#", "-t", "word:50", "--valid", "0.1"]
    command = [sys.executable, "-m", "etude", "prepare", "news.txt", *words, "-o", "linked", "--workers", "2"]
    folders = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    environment = os.environ | {"PYTHONPATH": folders}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    corpus = Corpus.open(tmp_path / "linked")
    assert corpus.graph == graph.fingerprint
    entities = corpus.entities(0, 100).tolist()
    assert {entity for entity in entities if entity >= 0} == {0, 1}

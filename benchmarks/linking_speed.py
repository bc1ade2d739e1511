"""How fast text is linked on one core, and what the tables take, beside other ways of finding many labels in text.

    python benchmarks/linking_speed.py data/corpora/enwiki_train.txt.xz --labels 1000000
    python benchmarks/linking_speed.py data/corpora/kowiki_train.txt.xz --labels 200000 --peers

The labels are made from the text itself, so that mentions are about as frequent as in linked text: distinct runs of
capitalised words (of Korean: a quarter of the words that occur at most ten times), and pairs of words at random up to
the number wanted, which are hardly ever met. The first half of the text is linked, after a short warm-up, three times
in turns with the peers; the median of the CPU time is printed. Peers, where they are installed, look for the same
labels with a check of word bounds in Python and do less: no case rules, no particles, no priors, no scores.

    pyahocorasick   an Aho-Corasick automaton over lower-case letters, in C; longest match (iter_long)
    flashtext       a trie of dictionaries over letters, in Python
"""

from __future__ import annotations

import argparse
import lzma
import multiprocessing
import os
import platform
import random
import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from datetime import date
from pathlib import Path

import numpy as np

from etude.graph.graph import Graph
from etude.graph.linking.trie import TrieLinker
from etude.text.tokenizer.normalization import normalize_nfc

CAPITALISED = re.compile(r"\b[A-Z][a-z]+(?: (?:of |the |de )?[A-Z][a-z]+){0,3}\b")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--labels", type=int, default=1_000_000)
    parser.add_argument("--characters", type=int, default=12_000_000, help="of text that is read")
    parser.add_argument("--peers", action="store_true")
    arguments = parser.parse_args()
    print(f"{date.today()}, {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
          f"numpy {np.__version__}, load {os.getloadavg()[0]:.1f}")  # fmt: skip
    opener = lzma.open if arguments.text.suffix == ".xz" else open
    with opener(arguments.text, "rt", encoding="utf-8") as file:
        text = normalize_nfc(file.read(arguments.characters))
    documents = [document for document in text.split("\n\n") if document.strip()]
    documents = documents[: len(documents) // 2]
    words = sum(len(document.split()) for document in documents)
    labels = make_labels(text, arguments.labels)
    print(f"{len(documents):,} documents, {words:,} words; {len(labels):,} labels")
    ways: dict[str, Callable[[], int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        # the graph lies on disk, as a user's does: its names are mapped and not in the memory of the builder
        names = [f"Q{n}" for n in range(len(labels))]
        Graph.from_triples([(0, 0, 0)], names, ["r"], labels=labels).save(f"{folder}/graph")
        del names
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.apply(build_trie, (folder,)))
        size = sum(path.stat().st_size for path in Path(folder, "trie").iterdir())
        begin = time.process_time()
        linker = TrieLinker.load(f"{folder}/trie", verify=False)  # memory-mapped, as in a worker
        opened = time.process_time() - begin
        linker.link(documents[0])
        begin = time.process_time()
        for document in documents[:200]:
            linker.link(document[:200])
        alone = (time.process_time() - begin) / len(documents[:200])
        print(f"{size / 1e6:.0f} MB on disk, {size / len(labels):.0f} bytes a label; opened in {1e3 * opened:.0f} ms; "
              f"200 characters alone: {1e3 * alone:.2f} ms")  # fmt: skip
        ways["etude"] = lambda: len(linker.link_batch(documents).texts)
        if arguments.peers:
            ways |= build_peers(labels, documents)
        linker.link_batch(documents[:50])
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        mentions: dict[str, int] = {}
        for _ in range(3):
            for name, way in ways.items():
                begin = time.process_time()
                mentions[name] = way()
                seconds[name].append(time.process_time() - begin)
    for name, times in seconds.items():
        speed, share = words / statistics.median(times), mentions[name] / words
        print(f"{name:<14}{speed / 1e6:6.2f} M words a second   {mentions[name]:,} mentions ({share:.1%} of words)")


def build_trie(folder: str) -> str:
    """Build and save the trie of a graph on disk, in a process of its own: CPU time, and memory at the peak."""
    graph = Graph.open(f"{folder}/graph")
    before, begin = read_peak(), time.process_time()
    linker = TrieLinker.from_graph(graph)
    built = time.process_time() - begin
    linker.save(f"{folder}/trie")
    return f"etude: built in {built:.1f} s of CPU, {read_peak() - before:.0f} MB at the peak beside {before:.0f}"


def read_peak() -> float:
    """The most memory that this process has had, in MB; `getrusage` would count its parent's before the exec."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1e3


def make_labels(text: str, count: int) -> list[str]:
    """Return distinct labels: names of the text, then pairs of its words at random."""
    drawer = random.Random(0)
    frequencies = Counter(text.split())
    names = [name for name, times in Counter(CAPITALISED.findall(text)).items() if " " in name or times <= 20]
    rare = [word for word, times in frequencies.items() if times <= 10 and "가" <= word[:1] <= "힣" and len(word) > 1]
    names += [word for word in rare if drawer.random() < 0.25]
    labels = dict.fromkeys(names[: count // 2])
    vocabulary = list(frequencies)
    while len(labels) < count:
        labels[f"{drawer.choice(vocabulary)} {drawer.choice(vocabulary)}"] = None
    return list(labels)


def build_peers(labels: list[str], documents: list[str]) -> dict[str, Callable[[], int]]:
    peers: dict[str, Callable[[], int]] = {}
    try:
        import ahocorasick

        start = time.perf_counter()
        automaton = ahocorasick.Automaton()
        for number, label in enumerate(labels):
            automaton.add_word(label.lower(), (number, len(label)))
        automaton.make_automaton()
        size = automaton.get_stats()["total_size"]
        print(f"pyahocorasick: built in {time.perf_counter() - start:.1f} s, {size / 1e6:.0f} MB in memory")

        def run_automaton() -> int:
            total = 0
            for document in documents:
                lower = document.lower()
                for end, (_, length) in automaton.iter_long(lower):
                    first = end - length + 1
                    is_start = first == 0 or not lower[first - 1].isalnum()
                    total += is_start and (end + 1 == len(lower) or not lower[end + 1].isalnum())
            return total

        peers["pyahocorasick"] = run_automaton
    except ImportError:
        print("pyahocorasick is not installed")
    try:
        import flashtext

        start = time.perf_counter()
        processor = flashtext.KeywordProcessor()
        for label in labels:
            processor.add_keyword(label)
        print(f"flashtext: built in {time.perf_counter() - start:.1f} s")
        peers["flashtext"] = lambda: sum(len(processor.extract_keywords(document)) for document in documents)
    except ImportError:
        print("flashtext is not installed")
    return peers


if __name__ == "__main__":
    main()

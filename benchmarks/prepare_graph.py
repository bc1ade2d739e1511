"""How fast files of triples become a graph, and in how much memory.

    python benchmarks/prepare_graph.py                      # 3 million English edges in the form of ConceptNet's dump
    python benchmarks/prepare_graph.py --edges 300000 --form tsv

The file is generated: concepts drawn by Zipf's law from a million of them, ConceptNet's relations by their frequency, a
JSON object with a weight behind each edge, one edge in eight of another language, packed with gzip. Each size is
prepared in a fresh process; memory is the peak that the system counts for it. The graph is opened again with every hash
checked, and edges drawn at random are looked up in its rows.
"""

from __future__ import annotations

import argparse
import gzip
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import numpy as np

RELATIONS = {
    "RelatedTo": 0.5, "FormOf": 0.11, "DerivedFrom": 0.1, "HasContext": 0.07, "IsA": 0.07, "Synonym": 0.065,
    "UsedFor": 0.012, "SimilarTo": 0.01, "EtymologicallyRelatedTo": 0.01, "AtLocation": 0.01, "HasSubevent": 0.008,
    "CapableOf": 0.007, "HasPrerequisite": 0.007, "Antonym": 0.006, "Causes": 0.006, "PartOf": 0.004,
    "HasProperty": 0.003, "MannerOf": 0.002,
}  # fmt: skip
CONCEPTS = 1_000_000
BLOCK = 100_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edges", type=int, default=3_000_000)
    parser.add_argument("--small", type=int, default=300_000, help="the size that memory is compared with")
    parser.add_argument("--form", choices=("conceptnet", "tsv"), default="conceptnet")
    arguments = parser.parse_args()
    print(f"{date.today()}, {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
          f"numpy {np.__version__}, load {os.getloadavg()[0]:.1f}")  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for edges in (arguments.small, arguments.edges):
            path = folder / ("assertions.csv.gz" if arguments.form == "conceptnet" else "triples.tsv.gz")
            unpacked = write_edges(path, edges, arguments.form)
            seconds, cpu, memory = measure(path, folder / "graph")
            checked, counts = check(folder / "graph")
            print(f"{edges:>9,} edges, {unpacked / 1e6:6.0f} MB ({path.stat().st_size / 1e6:.0f} MB packed): "
                  f"{seconds:5.1f} s, {edges / seconds:9,.0f} edges/s, {cpu:5.1f} s of CPU, "
                  f"peak memory {memory:5.0f} MB; {counts}; {checked} rows checked")  # fmt: skip


def write_edges(path: Path, edges: int, form: str) -> int:
    """Write a generated file; return its size before packing."""
    draw = np.random.default_rng(0)
    shares = np.array(list(RELATIONS.values()))
    size = written = 0
    with gzip.open(path, "wb", compresslevel=1) as file:
        while written < edges:
            count = min(BLOCK, edges - written)
            # exponent 1 over ranks, as words have it: a few hubs, many concepts with one edge
            heads, tails = (np.exp(draw.random((2, count)) * np.log(CONCEPTS))).astype(int) * 7919 % CONCEPTS
            kinds = draw.choice(len(RELATIONS), count, p=shares / shares.sum())
            text = "".join(_lines(form, heads.tolist(), kinds.tolist(), tails.tolist(), draw)).encode()
            file.write(text)
            size += len(text)
            written += count
    return size


def _lines(form: str, heads: list[int], kinds: list[int], tails: list[int], draw: np.random.Generator) -> list[str]:
    names = list(RELATIONS)
    if form == "tsv":
        return [f"concept_{h}\t{names[r]}\tconcept_{t}\n" for h, r, t in zip(heads, kinds, tails, strict=True)]
    weights = draw.choice([0.5, 1.0, 2.0, 2.828], len(heads)).tolist()
    lines = []
    for head, kind, tail, weight in zip(heads, kinds, tails, weights, strict=True):
        relation = names[kind]
        facts = (
            f'{{"dataset": "/d/wiktionary/en", "license": "cc:by-sa/4.0", "sources": [{{"contributor": '
            f'"/s/resource/wiktionary/en", "process": "/s/process/wikiparsec/2"}}], "weight": {weight}}}'
        )
        start, end = f"/c/en/word_{head}/n", f"/c/en/word_{tail}"
        lines.append(f"/a/[/r/{relation}/,{start}/,{end}/]\t/r/{relation}\t{start}\t{end}\t{facts}\n")
        if (head + tail) % 8 == 0:
            lines.append(
                f"/a/[/r/{relation}/,/c/fr/mot_{head}/,{end}/]\t/r/{relation}\t/c/fr/mot_{head}\t{end}\t{facts}\n"
            )
    return lines


def measure(path: Path, out: Path) -> tuple[float, float, float]:
    """Prepare in a process of its own; return seconds, seconds of CPU, and its peak memory in MB."""
    code = "import sys\nfrom etude.graph.prepare.prepare import prepare_graph\n"
    code += "prepare_graph(sys.argv[1], sys.argv[2], force=True)\n"
    code += "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code, str(path), str(out)], check=True, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, cpu, int(done.stdout) / 1e3


def check(folder: Path) -> tuple[int, str]:
    """Verify every hash, and look up train triples in the rows of both directions."""
    from etude.graph.graph import Graph

    graph = Graph.open(folder, verify=True)
    triples = graph.triples()
    for head, relation, tail in triples[np.random.default_rng(1).integers(0, len(triples), 2000)].tolist():
        for rows, own, neighbour in ((graph.outgoing, head, tail), (graph.incoming, tail, head)):
            neighbours, relations = rows.of(own)
            assert ((neighbours == neighbour) & (relations == relation)).sum() == 1
    return 2000, f"{len(graph.entities):,} entities, {len(triples):,} triples"


if __name__ == "__main__":
    main()

"""Readers to be fuzzed: each a file that they read whole, and what is called on a changed one."""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import zstandard
from safetensors.torch import save_file

import etude
from etude.baselines import registry as baselines
from etude.graph.entity_table import load_entity_table
from etude.graph.graph import Graph
from etude.graph.readers.base import ReadSettings as GraphReadSettings
from etude.graph.readers.base import SkipCounts
from etude.graph.readers.formats import describe_graph_file, read_triples
from etude.hub.vector_files import read_vectors, write_vectors
from etude.hub.weights import read_config, read_tensors
from etude.hub.word_vectors import WordVectors
from etude.inference.abstention import read_abstention
from etude.pick.journal import Journal
from etude.recipes.document import FOLDER as RECIPES
from etude.recipes.document import parse
from etude.recipes.schema import Recipe
from etude.runs.source import read_origin
from etude.runs.task_plan import Plan
from etude.study.budget import Machine
from etude.study.cell_archive import HASH_BYTES, export_cells, import_cells, sign_archive
from etude.study.cells import CellStore
from etude.study.settings import Study
from etude.tasks import classify, span
from etude.tasks.data import conll
from etude.tasks.data.records import records
from etude.text.corpus.corpus import Corpus
from etude.text.prepare.documents import parse_documents
from etude.text.prepare.readers import Position, ReadSettings, read_blocks
from etude.text.prepare.sources import find_sources
from etude.text.run_checksums import verify_checksums
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.train import checkpoint
from etude.train.metrics_log import read_metrics
from etude.transfer.prompt_file import PromptFile
from tests.hostile.mutations import mutate_bytes, mutate_json
from tests.hostile.samples import Samples
from tests.manifests import read_values, resign, write_manifest

Mutate = Callable[[bytes, random.Random], bytes]
OUT = "out"  # where a verb writes, in the folder of its input
VECTORS = WordVectors(["red", "집", "house"], np.arange(12, dtype=np.float32).reshape(3, 4))
TEXT = "The house is red. 집은 빨갛다.\n\nA garden, a market.\n"


@dataclass(frozen=True)
class Target:
    """A folder with one file that is changed, and a reader of the folder or the file."""

    name: str
    folder: Path
    file: str
    read: Callable[[Path], object]  # of the folder
    mutate: Mutate = mutate_bytes
    share: float = 1  # how many of the draws, in parts: slow readers get fewer
    fix: Callable[[Path], None] = lambda folder: None  # after a change: hashes that would hide it


def list_first_lines(path: Path, count: int) -> bytes:
    return b"".join(path.read_bytes().splitlines(keepends=True)[:count])


def read_corpus(folder: Path) -> None:
    corpus = Corpus.open(folder)
    corpus.tokens(0, corpus.total)
    list(corpus.documents)
    list(corpus.sentences)
    corpus.token_counts()
    _ = corpus.fingerprint, corpus.pairs, corpus.manifest.get("report")


def read_graph(folder: Path) -> None:
    graph = Graph.open(folder)
    names = list(graph.entities) + list(graph.relations)
    for split in graph.splits:
        graph.triples(split)
    graph.outgoing.of(0)
    graph.incoming.of(0)
    graph.entities.find(names[0])
    _ = graph.label(0), graph.aliases(0), graph.description(0)


def read_text(path: Path, settings: ReadSettings) -> None:
    for source in find_sources(str(path)):
        for block in read_blocks(list(source.files), settings, Position()):
            parse_documents(block.parts, bytes(block.payload), settings, None)


def read_tokenizer(path: Path) -> None:
    tokenizer = Tokenizer.open(path)
    tokenizer.decode(tokenizer.encode(TEXT).ids)
    tokenizer.encode_batch(["[MASK]", ""])


def rehash(folder: Path) -> None:
    """Put the hash and length of every file into a corpus's or a graph's manifest: only ids and bounds are wrong."""
    manifest = read_values(folder)
    if "parts" in manifest:
        for split, part in manifest["parts"].items():
            entries = {name: entry for shard in part.get("shards", []) for name, entry in shard["files"].items()}
            _rehash_entries(folder / split, entries | ({"counts.npy": part["counts"]} if "counts" in part else {}))
    else:
        _rehash_entries(folder, manifest["files"])
    write_manifest(folder, manifest)


def resign_archive(folder: Path) -> None:
    """Sign a changed archive of cells, where it is long enough to have a hash."""
    path = folder / "cells.zip"
    if path.stat().st_size >= HASH_BYTES:
        sign_archive(path)


def _rehash_entries(folder: Path, entries: dict[str, dict[str, object]]) -> None:
    for name, entry in entries.items():
        content = (folder / name).read_bytes()
        entry |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def make_targets(samples: Samples, root: Path) -> list[Target]:
    """Write a whole file for each reader under `root`."""
    targets: list[Target] = []

    def add(name: str, file: str, content: bytes, read: Callable[[Path], object], **options: object) -> None:
        folder = root / name.replace(" ", "-")
        folder.mkdir(parents=True)
        (folder / file).write_bytes(content)
        targets.append(Target(name, folder, file, read, **options))  # type: ignore[arg-type]

    def add_folder(name: str, source: Path, file: str, read: Callable[[Path], object], **options: object) -> None:
        folder = root / name.replace(" ", "-")
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns("tensorboard"))
        targets.append(Target(name, folder, file, read, **options))  # type: ignore[arg-type]

    source = samples.folder
    # --- YAML
    recipe = (RECIPES / "bert-toy.yaml").read_bytes()
    add("yaml", "x.yaml", recipe, lambda folder: parse((folder / "x.yaml").read_text("utf-8", "replace"), "x"), share=8)
    add("recipe", "x.yaml", recipe, lambda folder: Recipe.load(str(folder / "x.yaml")), share=4)
    add("study", "x.yaml", (source / "tiny.yaml").read_bytes(), lambda folder: Study.load(folder / "x.yaml"), share=3)
    prompt = b"kind: classify\ntest: x.jsonl\ncolumns: {text: text, label: label}\n"
    prompt += b"template: '{text} It is about'\nanswers: {food: meals}\n"
    add("prompt", "x.yaml", prompt, lambda folder: PromptFile.load(folder / "x.yaml"), share=3)
    tuned = source / "tuned"
    etude.finetune(source / "run", "classify", train=source / "labels.jsonl", dev=source / "labels.jsonl", out=tuned,
                   settings={"train.steps": 2, "train.batch_examples": 8}, quiet=True)  # fmt: skip
    add("task plan", "task.yaml", (tuned / "task.yaml").read_bytes(), Plan.read, share=2)
    # --- manifests
    etude.prepare(
        str(source / "pairs.jsonl"), out=source / "pair-corpus", tokenizer="bpe:300", pairs="en,ko", workers=0
    )
    etude.prepare_graph([str(source / "graph.tsv")], out=source / "graph")
    for name, folder in (("corpus", source / "corpus"), ("pair corpus", source / "pair-corpus")):
        add_folder(f"{name} manifest", folder, "manifest.json", read_corpus, mutate=mutate_json, share=0.5)
        add_folder(
            f"{name} signed manifest", folder, "manifest.json", read_corpus, mutate=mutate_json, share=2, fix=resign
        )
        for file in sorted((folder / "train").iterdir()):
            relative = f"train/{file.name}"
            add_folder(f"{name} {file.name}", folder, relative, read_corpus, fix=rehash, share=1)
    add_folder("corpus tokenizer", source / "corpus", "tokenizer.json", read_corpus, share=1)
    add_folder("graph manifest", source / "graph", "manifest.json", read_graph, mutate=mutate_json, share=0.5)
    add_folder(
        "graph signed manifest", source / "graph", "manifest.json", read_graph, mutate=mutate_json, share=2, fix=resign
    )
    for file in sorted((source / "graph").glob("*.*.*")):
        add_folder(f"graph {file.name}", source / "graph", file.name, read_graph, fix=rehash)
    # --- of runs
    origin = json.dumps({"corpus": "/x", "fingerprint": "0" * 64, "pairs": ["en", "ko"],
                         "start": {"folder": "x", "fingerprint": "y"}}).encode()  # fmt: skip
    add("origin", "origin.json", origin, read_origin, mutate=mutate_json, share=4)
    step = checkpoint.list_steps(source / "run" / "checkpoints")[-1]
    add_folder("checkpoint state", source / "run" / "checkpoints", f"step-{step:012d}/state.json",
               lambda folder: checkpoint.verify(folder, step), mutate=mutate_json)  # fmt: skip
    add_folder("checksums", tuned, "checksums.json", verify_checksums, mutate=mutate_json)
    add("metrics", "metrics.jsonl", (source / "run" / "metrics.jsonl").read_bytes(),
        lambda folder: read_metrics(folder / "metrics.jsonl"), share=4)  # fmt: skip
    add(
        "abstention",
        "abstention.json",
        b'{"threshold": 0.5, "accuracy": 0.9}',
        read_abstention,
        mutate=mutate_json,
        share=4,
    )
    machine = b'{"device": "cpu", "precision": "float32", "torch": "2.13.0", "speeds": {"a": 1000.0}}'
    add(
        "machine", "machine.json", machine, lambda folder: Machine(folder / "machine.json"), mutate=mutate_json, share=4
    )
    journal = b'{"version": 1, "inputs": {"the text": "x"}, "spent": 1.5, "decisions": {"folds tfidf": 3}}'
    add(
        "journal",
        "pick.json",
        journal,
        lambda folder: Journal(folder, {"the text": "x"}).start(60),
        mutate=mutate_json,
        share=3,
    )
    result = b'{"kind": "pretrain", "seconds": 1.0, "step": 1, "tokens": 5, "flops": 7, "valid": {}, "curve": []}'
    key = "a" * 32
    store = root / "store" / "cells"
    (store / key).mkdir(parents=True)
    (store / key / "result.json").write_bytes(result)
    archive = root / "store" / "cells.zip"
    export_cells(CellStore(store), archive, root / "store")
    add("cells", "cells.zip", archive.read_bytes(),
        lambda folder: import_cells(CellStore(folder / "cells"), folder / "cells.zip", folder))  # fmt: skip
    add("signed cells", "cells.zip", archive.read_bytes(),
        lambda folder: import_cells(CellStore(folder / "cells"), folder / "cells.zip", folder),
        fix=resign_archive)  # fmt: skip
    add_folder(
        "cell result",
        store,
        f"{key}/result.json",
        lambda folder: CellStore(folder).result(key),
        mutate=mutate_json,
        share=4,
    )
    examples = classify.read(source / "labels.jsonl")
    settings = classify.Settings()
    baseline = baselines.fit(
        "tfidf", "classify", settings, examples, 0, facts=classify.learn(examples, settings), columns={}
    )
    baseline.save(source / "baseline")
    (source / "baseline" / "checksums.json").unlink()
    add_folder("baseline", source / "baseline", "baseline.json", baselines.load, mutate=mutate_json)
    # --- tokenizers
    tokenizer = (source / "corpus" / "tokenizer.json").read_bytes()
    add("tokenizer", "tokenizer.json", tokenizer, lambda folder: read_tokenizer(folder / "tokenizer.json"),
        mutate=mutate_json, share=2)  # fmt: skip
    add("vocabulary", "vocab.txt", b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b\nthe\n",
        lambda folder: read_tokenizer(folder / "vocab.txt"), share=3)  # fmt: skip
    add("merges", "merges.txt", b"#version: 0.2\na b\nab c\n", lambda folder: read_tokenizer(folder), share=3)
    (targets[-1].folder / "vocab.json").write_text('{"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4}')
    # --- weights and vectors
    model = root / "model-source"
    etude.export(source / "run", out=model)
    add_folder("config", model, "config.json", read_config, mutate=mutate_json, share=2)
    add("weights", "model.safetensors", (model / "model.safetensors").read_bytes(), read_tensors)
    small = root / "small.safetensors"
    save_file({"a": torch.ones(3, 4), "b": torch.zeros(2, dtype=torch.float16)}, small)
    add("small weights", "model.safetensors", small.read_bytes(), read_tensors, share=3)
    torch.save({"a": torch.ones(3, 4), "b": torch.zeros(2)}, root / "small.bin")
    add("bin", "pytorch_model.bin", (root / "small.bin").read_bytes(), read_tensors, share=2)
    for form, ending in (("word2vec", "vec"), ("word2vec-binary", "bin"), ("glove", "txt")):
        write_vectors(VECTORS, root / f"v.{ending}", form)  # type: ignore[arg-type]
        file = f"v.{ending}"
        add(f"vectors {form}", file, (root / file).read_bytes(), lambda folder, file=file: read_vectors(folder / file),
            share=3)  # fmt: skip
    add(
        "entity vectors",
        "e.vec",
        b"3 2\nann 0.5 1\nbob 1 2\ncat 3 4\n",
        lambda folder: load_entity_table(folder / "e.vec"),
        share=2,
    )
    # --- labelled and plain text
    labels = list_first_lines(source / "labels.jsonl", 12)
    table = b'text,label\nThe house is red,home\n"A, b",art\n'
    squad = json.dumps({"data": [{"title": "t", "paragraphs": [{"context": "A red house.", "qas": [
        {"id": "1", "question": "Colour?", "answers": [{"text": "red", "answer_start": 2}]}]}]}]}).encode()  # fmt: skip
    plain = [
        ("labels.jsonl", labels),
        ("labels.csv", table),
        ("labels.tsv", table.replace(b",", b"\t")),
        ("labels.json", squad),
    ]
    packed = [("labels.jsonl.gz", gzip.compress(labels)), ("labels.jsonl.xz", lzma.compress(labels)),
              ("labels.jsonl.zst", zstandard.ZstdCompressor().compress(labels))]  # fmt: skip
    for file, content in (*plain, *packed):
        add(f"records {file}", file, content, lambda folder, file=file: list(records(folder / file)), share=2)
    add("classify", "labels.jsonl", labels, lambda folder: classify.read(folder / "labels.jsonl"), share=3)
    add("span", "squad.json", squad, lambda folder: span.read(folder / "squad.json"), mutate=mutate_json, share=3)
    add("conll", "x.conll", b"EU NNP B-ORG\nrejects VBZ O\n\nGerman JJ B-MISC\ncall NN O\n",
        lambda folder: list(conll.sentences(folder / "x.conll")), share=3)  # fmt: skip
    tmx = (b'<?xml version="1.0"?><tmx version="1.4"><header/><body><tu><tuv xml:lang="en"><seg>red</seg></tuv>'
           b'<tuv xml:lang="ko"><seg>\xeb\xb9\xa8\xea\xb0\x95</seg></tuv></tu></body></tmx>')  # fmt: skip
    pairs = list_first_lines(source / "pairs.jsonl", 20)
    texts: list[tuple[str, bytes, ReadSettings]] = [
        ("a.txt", TEXT.encode() * 5, ReadSettings()), ("a.jsonl", labels, ReadSettings()),
        ("a.csv", table, ReadSettings()), ("a.tsv", table.replace(b",", b"\t"), ReadSettings()),
        ("p.jsonl", pairs, ReadSettings(pairs=("en", "ko"))), ("p.tmx", tmx, ReadSettings(pairs=("en", "ko"))),
        ("a.txt.zst", zstandard.ZstdCompressor().compress(TEXT.encode() * 50), ReadSettings()),
        ("a.txt.gz", gzip.compress(TEXT.encode() * 50), ReadSettings()),
    ]  # fmt: skip
    for file, content, reading in texts:
        add(f"text {file}", file, content,
            lambda folder, file=file, reading=reading: read_text(folder / file, reading), share=2)  # fmt: skip
    # --- graphs
    graphs = {
        "g.tsv": list_first_lines(source / "graph.tsv", 20),
        "g.csv": b"head,relation,tail\nann,knows,bob\n",
        "g.jsonl": b'{"head": "ann", "relation": "knows", "tail": "bob"}\n',
        "g.nt": b"<http://x/a> <http://x/p> <http://x/b> .\n"
                b'<http://x/a> <http://www.w3.org/2000/01/rdf-schema#label> "A"@en .\n',
        "c.csv": b"/a/[/r/IsA/,/c/en/cat/,/c/en/animal/]\t/r/IsA\t/c/en/cat\t/c/en/animal\t{\"weight\": 1.0}\n",
    }  # fmt: skip
    for file, content in graphs.items():
        add(f"triples {file}", file, content, lambda folder, file=file: _read_graph_file(folder / file), share=2)
    return targets


def _read_graph_file(path: Path) -> None:
    for _ in read_triples(describe_graph_file(path), GraphReadSettings(), SkipCounts()):
        pass

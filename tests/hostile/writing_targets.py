"""Verbs that make a folder out of a changed file: it is complete, or it is not there."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import etude
from etude.hub.vector_files import write_vectors
from tests.hostile.mutations import mutate_bytes, mutate_json
from tests.hostile.samples import Samples
from tests.hostile.targets import OUT, VECTORS, Target, list_first_lines

STEPS = {"train.steps": 1, "train.batch_examples": 4, "train.workers": 0}


def make_writing_targets(samples: Samples, root: Path) -> list[Target]:
    """Folders with an input each, and a verb that writes `out` beside it."""
    source, tokenizer = samples.folder, samples.folder / "corpus" / "tokenizer.json"
    targets: list[Target] = []

    def prepare(file: str, content: bytes, share: float, pairs: str | None = None) -> None:
        folder = root / f"prepare-{file}"
        folder.mkdir(parents=True)
        (folder / file).write_bytes(content)
        targets.append(
            Target(f"prepare {file}", folder, file, lambda folder: etude.prepare(
                str(folder / file), out=folder / OUT, tokenizer=tokenizer, workers=0, pairs=pairs), share=share)
        )  # fmt: skip

    prepare("a.txt", (source / "town.txt").read_bytes()[:2000], 0.5)
    prepare("a.jsonl", list_first_lines(source / "labels.jsonl", 12), 0.5)
    prepare("p.jsonl", list_first_lines(source / "pairs.jsonl", 12), 0.5, "en,ko")
    graph = root / "prepare-graph"
    graph.mkdir()
    (graph / "g.tsv").write_bytes(list_first_lines(source / "graph.tsv", 20))
    targets.append(Target("prepare graph", graph, "g.tsv", lambda folder: etude.prepare_graph(
        [str(folder / "g.tsv")], out=folder / OUT), share=0.5))  # fmt: skip
    model = root / "model"
    etude.export(source / "run", out=model)
    for file in ("config.json", "tokenizer.json", "model.safetensors"):
        folder = root / f"import-{file}"
        shutil.copytree(model, folder / "model")
        mutate = mutate_json if file.endswith("json") else mutate_header
        targets.append(Target(f"import {file}", folder, f"model/{file}", lambda folder: etude.import_(
            folder / "model", out=folder / OUT), mutate=mutate, share=0.3))  # fmt: skip
    vectors = root / "import-vectors"
    vectors.mkdir()
    write_vectors(VECTORS, vectors / "v.vec", "word2vec")
    targets.append(Target("import vectors", vectors, "v.vec", lambda folder: etude.import_(
        folder / "v.vec", out=folder / OUT), share=0.3))  # fmt: skip
    tuned = root / "finetune"
    tuned.mkdir()
    (tuned / "labels.jsonl").write_bytes(list_first_lines(source / "labels.jsonl", 12))
    targets.append(Target("finetune", tuned, "labels.jsonl", lambda folder: etude.finetune(
        source / "run", "classify", train=folder / "labels.jsonl", dev=source / "labels.jsonl", out=folder / OUT,
        settings=STEPS, quiet=True), share=0.2))  # fmt: skip
    return targets


def mutate_header(content: bytes, draw: random.Random) -> bytes:
    """Change the JSON header of a safetensors file as often as its bytes."""
    if draw.random() < 0.5:
        return mutate_bytes(content, draw)
    length = int.from_bytes(content[:8], "little")
    header = mutate_json(json.dumps(json.loads(content[8 : 8 + length])).encode(), draw)
    return len(header).to_bytes(8, "little") + header + content[8 + length :]

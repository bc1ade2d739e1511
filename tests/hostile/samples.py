"""Inputs of every verb that writes, made once, and the command line of each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import etude
from etude.world import World

SMALL = ("train.steps=6", "train.save_every=2", "model.layers=1", "model.width=32", "model.heads=2",
         "train.batch_tokens=256", "train.log_every=1", "train.workers=0")  # fmt: skip
TUNED = ("train.steps=6", "train.save_every=2", "train.batch_examples=8", "train.log_every=1", "train.workers=0")
# of the cells of a study one of each kind: a pre-training, two transfers, the first weights, the most frequent answer
STUDY = """
name: tiny
question: Does it run?
text: {world: 0.05, valid: 0.1}
budget: {flops: 6.0e8}
epochs: 50
contenders:
  bert: {recipe: bert-toy, set: {model.layers: 1, model.width: 16, model.heads: 2, train.batch_tokens: 256}}
tasks:
  topic: {kind: classify, world: topic, labels: [16], columns: {text: text}, dev_size: 16, test_size: 40}
transfer: {train.epochs: 1, train.batch_examples: 8}
control: {epochs: 1}
seeds: {pretrain: 1, transfer: 1}
claims:
  - {claim: Pre-training pays, better: bert, than: no pre-training, on: topic@16}
"""
VERBS = ("pretrain", "finetune", "prepare", "pairs", "graph", "study", "pick", "export")


@dataclass(frozen=True)
class Samples:
    folder: Path

    def command(self, verb: str, out: Path) -> list[str]:
        """The words of a command that writes `out`."""
        folder = self.folder
        return {
            "pretrain": ["pretrain", "bert-toy", f"{folder}/corpus", "-o", f"{out}", "-q", *SMALL],
            "finetune": ["finetune", f"{folder}/run", "classify", "--train", f"{folder}/labels.jsonl",
                         "--dev", f"{folder}/labels.jsonl", "-o", f"{out}", "-q", *TUNED],
            "prepare": ["prepare", f"{folder}/town.txt", "-o", f"{out}", "-t", "wordpiece:300", "--unique"],
            "pairs": ["prepare", f"{folder}/pairs.jsonl", "--pairs", "en,ko", "-o", f"{out}", "-t", "bpe:300"],
            "graph": ["prepare", f"{folder}/graph.tsv", "--graph", "-o", f"{out}"],
            "study": ["study", f"{folder}/tiny.yaml", "-o", f"{out}", "-q"],
            "pick": ["pick", "--task", "classify", "--train", f"{folder}/labels.jsonl", "-o", f"{out}",
                     "--minutes", "20", "--device", "cpu"],
            "export": ["export", f"{folder}/run", "-o", f"{out}"],
        }[verb]  # fmt: skip


def write_samples(folder: Path) -> Samples:
    town = World()
    (folder / "town.txt").write_text("\n\n".join(town.text(0.05)), encoding="utf-8")
    lines = [{"en": f"The house number {n} is red.", "ko": f"{n}번 집은 빨갛다."} for n in range(200)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    triples = [f"person{n % 40}\tlives_in\ttown{n % 7}\n" for n in range(280)]
    (folder / "graph.tsv").write_text("".join(sorted(set(triples))))
    records = town.task("topic", "train", 40)
    (folder / "labels.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "tiny.yaml").write_text(STUDY, encoding="utf-8")
    etude.prepare(str(folder / "town.txt"), out=folder / "corpus", tokenizer="wordpiece:300", workers=0)
    settings = {name: int(value) for name, value in (word.split("=") for word in SMALL)}
    etude.pretrain("bert-toy", folder / "corpus", out=folder / "run", settings=settings, quiet=True)
    return Samples(folder)

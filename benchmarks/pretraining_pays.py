"""Does pre-training pay? Parts of speech and names on real text, from the supervised network to ELMo.

    python benchmarks/pretraining_pays.py shared/data --out runs/pays              # all of it, on one core
    python benchmarks/pretraining_pays.py shared/data --out runs/pays --stage table
    python benchmarks/pretraining_pays.py shared/data --out runs/pays --gpu --seconds 200 --jobs 16

The table the field remembers (Collobert et al. 2011; Peters et al. 2017, 2018), on a small scale: each system is
trained on 1 %, 10 % and 100 % of the labels with three seeds (each seed draws labels of its own), and every cell is one
JSON line. Nothing is chosen on the held-out sentences but the number of steps, which is the same for all systems: a few
trials of the biLSTM at seed 0 had shown it starved at a hundred. What is done already is not done again: a run that was
stopped goes on, cell by cell and, within pre-training, step by step.

    window WLL, SLL   Collobert's window network, word- and sentence-level likelihood, random vectors
    + ranking         its word vectors from his ranking of windows over unlabelled text
    + skip-gram       from skip-gram over the same text
    + features        and suffixes and capitals
    biLSTM            two biLSTMs and a CRF over skip-gram vectors and a character CNN
    TagLM             and the top states of two frozen language models behind the first of them
    ELMo              and a learned mix of all layers of a frozen biLM at the input

POS is UD EWT (accuracy; its own held-out sentences), NER is Wikigold (entity F1; every fourth sentence is held out).
`--gpu` pre-trains larger language models on a CUDA device, both at once, on as much text as `--seconds` allow; `--jobs`
cells are trained at a time, each on one core.
"""

from __future__ import annotations

import argparse
import json
import lzma
import multiprocessing
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import etude
from etude.runs.model_card import describe_hardware, describe_versions
from etude.runs.run import Run

SEEDS, SHARES = (0, 1, 2), (0.01, 0.1, 1.0)
WIDTH = 50  # of word vectors, Collobert's
LETTERS = {"filters": [[1, 16], [2, 16], [3, 32], [4, 32], [5, 32]], "embedding": 16, "highways": 1, "length": 30}
READER: dict[str, Any] = {  # the language models: as much as ten minutes of a slow core allow
    "model.width": 64, "model.cells": 128, "model.dropout": 0.0, "objective.softmax": "adaptive",
    "objective.cutoffs": [1500, 6000], "objective.unroll": 20, "objective.tied": False, "train.batch_tokens": 1280,
    "train.lr": 4e-3, "train.lr_schedule": "cosine", "train.warmup": 100, "train.tokens": 1_000_000,
}  # fmt: skip
LARGER: dict[str, Any] = {  # the size of the smallest released ELMo; without clips cuDNN does it
    "model.width": 128, "model.cells": 1024, "model.dropout": 0.1, "model.cell_clip": None,
    "model.projection_clip": None, "train.batch_tokens": 20 * 512, "train.tokens": 84_000_000, "train.lr": 2e-3,
    "train.precision": "float32", "train.workers": 4,
}  # fmt: skip
READERS = {"taglm", "elmo"}
PRETRAINED: dict[str, tuple[str, dict[str, Any]]] = {
    "skipgram": ("skipgram-toy", {"model.width": WIDTH, "train.tokens": 14_000_000}),
    "ranking": ("collobert", {"model.width": WIDTH, "objective.negatives": 4, "train.tokens": 7_000_000,
                              "train.batch_tokens": 2_000}),
    "taglm": ("taglm-toy", READER | {"model.characters": LETTERS}),
    "elmo": ("elmo-toy", READER | {"model.characters": LETTERS}),
}  # fmt: skip
TASKS = {  # columns, settings, scorer, steps of 32 sentences at each share of the labels
    "pos": ({"tags": "upos"}, {"task.scheme": "none"}, "accuracy", {0.01: 400, 0.1: 500, 1.0: 800}),
    "ner": ({"tags": "ner"}, {"task.scheme": "iob2", "task.encoding": "iobes"}, "f1", {0.01: 250, 0.1: 350, 1.0: 500}),
}


def systems(runs: Path) -> dict[str, tuple[str, dict[str, Any]]]:
    """Name -> the run it starts from, and its settings. The supervised ones start from a run and never ask it."""
    window = {"task.network.kind": "window", "task.network.hidden": 150, "task.network.words": WIDTH,
              "task.network.states": [], "task.network.dropout": 0.25}  # fmt: skip
    ranking = {"task.network.vectors": str(runs / "ranking")}
    skipgram = {"task.network.vectors": str(runs / "skipgram")}
    features = {"task.network.features.capitals": True, "task.network.features.suffix": 2}
    sentence = {"task.head": "crf"}
    rnn = sentence | skipgram | {
        "task.network.kind": "rnn", "task.network.words": WIDTH, "task.network.cells": 64, "task.network.states": [],
        "task.network.dropout": 0.25, "task.network.characters.filters": [[3, 30]],
        "task.network.characters.highways": 0, "task.network.characters.length": 30,
    }  # fmt: skip
    frozen = {"transfer.frozen": True}
    elmo = {"transfer.layers": "all", "task.network.mix": True, "task.network.mix_penalty": 0.001,
            "task.network.state_dropout": 0.25, "task.network.states": ["input"]}  # fmt: skip
    return {
        "window WLL": ("skipgram", window),
        "window SLL": ("skipgram", window | sentence),
        "+ ranking": ("skipgram", window | sentence | ranking),
        "+ skip-gram": ("skipgram", window | sentence | skipgram),
        "+ features": ("skipgram", window | sentence | skipgram | features),
        "biLSTM": ("skipgram", rnn),
        "TagLM": ("taglm", rnn | frozen | {"task.network.states": ["first"]}),
        "ELMo": ("elmo", rnn | frozen | elmo),
    }


# --- text and labels --------------------------------------------------------------------------------


def prepared(data: Path, out: Path) -> Path:
    """One corpus of words for all: the letters of unknown words are kept with it."""
    folder = out / "corpus"
    if not folder.is_dir():
        text = data / "corpora" / "enwiki_train.txt.xz"
        etude.prepare(text, out=folder, tokenizer="word:20000,lower", valid=0.005)
    return folder


def labelled(data: Path, task: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Sentences to learn from and held-out ones: a file of its own where there is one, else every fourth."""
    name, column = {"pos": ("ud_ewt", "upos"), "ner": ("wikigold_ner", "ner")}[task]

    def read(split: str) -> list[dict[str, Any]]:
        with lzma.open(data / "tasks" / name / f"{split}.jsonl.xz", "rt", encoding="utf-8", newline="\n") as file:
            items = [json.loads(line) for line in file.read().split("\n") if line]
        return [{"tokens": item["tokens"], column: item[column]} for item in items if item["tokens"]]

    items = read("train")
    if task == "pos":
        return items, read("valid")
    return [item for n, item in enumerate(items) if n % 4], [item for n, item in enumerate(items) if n % 4 == 0]


def files(data: Path, out: Path, task: str, share: float, seed: int) -> tuple[Path, Path, int]:
    """The training file of a cell, the held-out file, and how many sentences the first has."""
    train, held = labelled(data, task)
    count = max(1, round(share * len(train)))
    chosen = np.random.default_rng([seed, 7]).permutation(len(train))[:count]
    folder = out / "labels"
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / f"{task}-{share:g}-{seed}.jsonl", folder / f"{task}-held.jsonl"
    for path, items in zip(paths, ([train[number] for number in chosen], held), strict=True):
        own = path.with_suffix(f".{os.getpid()}")  # other cells read and write the same files
        own.write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items), encoding="utf-8")
        os.replace(own, path)
    return *paths, count


# --- the three stages -------------------------------------------------------------------------------


def pretrain(data: Path, out: Path, gpu: bool, seconds: float | None) -> None:
    corpus = prepared(data, out)
    if not gpu:
        for name in PRETRAINED:
            pretrain_one(corpus, out, name, False, None)
        return
    context = multiprocessing.get_context("spawn")  # CUDA does not outlive a fork
    readers = [context.Process(target=pretrain_one, args=(corpus, out, name, True, seconds)) for name in READERS]
    for process in readers:
        process.start()
    for name in PRETRAINED.keys() - READERS:
        pretrain_one(corpus, out, name, False, None)
    for process in readers:
        process.join()


def pretrain_one(corpus: Path, out: Path, name: str, gpu: bool, seconds: float | None) -> None:
    folder = out / name
    if folder.is_dir() and Run.open(folder).finished:
        return
    begun = time.perf_counter()
    recipe, settings = PRETRAINED[name]
    settings = settings | (LARGER if gpu else {"train.device": "cpu"})
    settings |= {"train.save_every": 500, "train.eval_every": 500, "train.eval_tokens": 20_000}
    if folder.is_dir():
        run = etude.resume(folder, quiet=True)
    else:
        if seconds is not None:
            settings["train.tokens"] = affordable(corpus, recipe, settings, seconds)
        run = etude.pretrain(recipe, corpus, out=folder, quiet=True, settings=settings)
    print(f"{name}: {run.metrics('valid')[-1]} ({time.perf_counter() - begun:.0f} s)", flush=True)


def affordable(corpus: Path, recipe: str, settings: dict[str, Any], seconds: float) -> int:
    """Tokens for so many seconds, by the speed of some first steps; not more than the settings say."""
    few = {"train.tokens": 60 * settings["train.batch_tokens"], "train.log_every": 10, "train.eval_every": 0}
    few |= {"train.warmup": 0.1}
    with tempfile.TemporaryDirectory() as folder:
        run = etude.pretrain(recipe, corpus, out=Path(folder) / "trial", quiet=True, settings=settings | few)
        lines = run.metrics("train")
    speed = (lines[-1]["tokens"] - lines[2]["tokens"]) / (lines[-1]["seconds"] - lines[2]["seconds"])
    print(f"{recipe}: {speed:,.0f} tokens/s", flush=True)
    return min(settings["train.tokens"], round(speed * seconds))


def cells() -> Iterator[tuple[float, int, str, str]]:
    """Few labels first; a whole seed of them before the next, so that a part of the grid is a grid."""
    for share in SHARES:
        for seed in SEEDS:
            for task in TASKS:
                for system in systems(Path()):
                    yield share, seed, task, system


def run_cell(data: Path, out: Path, share: float, seed: int, task: str, system: str) -> dict[str, Any]:
    columns, settings, score, steps = TASKS[task]
    base, own = systems(out)[system]
    train, held, count = files(data, out, task, share, seed)
    folder = out / f"cell-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    begun = time.perf_counter()
    training = {
        "train.steps": steps[share], "train.batch_examples": 32, "train.lr": 3e-3, "train.warmup": 0.05,
        "train.lr_schedule": "linear", "train.clip": 5.0, "train.weight_decay": 0.0, "train.seed": seed,
        "train.save_every": 10**6, "train.eval_every": 10**6, "train.device": "cpu", "train.precision": "float32",
    }  # fmt: skip
    tuned = etude.finetune(
        out / base, "tag", train=train, out=folder, columns=columns, quiet=True, settings=settings | own | training
    )
    found = tuned.evaluate(tuned.model.read(held, columns), intervals=False)
    value = found[score].value if score in found else found[tuned.model.task.score].value
    cost = tuned_cost(folder)
    shutil.rmtree(folder)
    return {
        "task": task, "system": system, "share": share, "seed": seed, "sentences": count, "score": round(value, 5),
        "measure": score, "seconds": round(time.perf_counter() - begun, 1), **cost,
    }  # fmt: skip


def tuned_cost(folder: Path) -> dict[str, Any]:
    last = Run(folder).metrics("train")[-1]
    return {"tokens": last["tokens"], "flops": last["flops"]}


def weight(cell: tuple[float, int, str, str]) -> float:
    """About how long a cell takes: an RNN thrice as long as a window, a language model's states once a sentence."""
    share, _, task, system = cell
    base, settings = systems(Path())[system]
    steps = TASKS[task][3][share] * (3 if settings["task.network.kind"] == "rnn" else 1)
    return steps + (share * 3000 if base in READERS else 0)


def grid(data: Path, out: Path, minutes: float | None, only: set[str] | None, jobs: int, wait: bool) -> None:
    path = out / "cells.jsonl"
    done = {cell_of(line) for line in lines(path)}
    begun = time.perf_counter()

    def work(*cell: Any) -> None:
        line = run_cell(data, out, *cell)
        with path.open("a", encoding="utf-8") as file:  # a line is one write, also beside other processes
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)

    context = multiprocessing.get_context("fork")
    working: list[Any] = []
    todo = [cell for cell in cells() if cell not in done and (only is None or cell[3] in only)]
    if jobs > 1:  # the long ones first: no core is left with one at the end
        todo.sort(key=weight, reverse=True)
    while todo:
        if minutes is not None and time.perf_counter() - begun > 60 * minutes:
            print("out of time; what is there goes on from here", flush=True)
            break
        working = [process for process in working if process.is_alive()]
        ready = [cell for cell in todo if not wait or Run(out / systems(out)[cell[3]][0]).finished]
        if not ready or len(working) >= jobs:
            time.sleep(0.2)
            continue
        todo.remove(ready[0])
        if jobs == 1:
            work(*ready[0])
            continue
        working.append(context.Process(target=work, args=ready[0]))
        working[-1].start()
    for process in working:
        process.join()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def cell_of(line: dict[str, Any]) -> tuple[float, int, str, str]:
    return line["share"], line["seed"], line["task"], line["system"]


def table(out: Path) -> str:
    """Mean and standard deviation over seeds, in points."""
    found: dict[tuple[str, str, float], list[float]] = {}
    for line in lines(out / "cells.jsonl"):
        found.setdefault((line["task"], line["system"], line["share"]), []).append(100 * line["score"])
    columns = [(task, share) for task in TASKS for share in SHARES]
    head = [f"{task.upper()} {share:.0%}" for task, share in columns]
    rows = [f"| system | {' | '.join(head)} |", "|---" * (len(head) + 1) + "|"]
    for system in systems(Path()):
        values = [found.get((task, system, share), []) for task, share in columns]
        rows.append(f"| {system} | {' | '.join(_told(one) for one in values)} |")
    return "\n".join(rows)


def _told(values: list[float]) -> str:
    if not values:
        return "–"
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread}" + ("" if len(values) == len(SEEDS) else f" (n = {len(values)})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the folder with corpora/ and tasks/")
    parser.add_argument("--out", type=Path, default=Path("runs/pays"))
    parser.add_argument("--stage", choices=["all", "pretrain", "grid", "table"], default="all")
    parser.add_argument("--minutes", type=float, help="stop the grid after so many")
    parser.add_argument("--only", help="systems, separated by commas")
    parser.add_argument("--gpu", action="store_true", help="larger language models")
    parser.add_argument("--seconds", type=float, help="for each of them")
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time")
    parser.add_argument("--wait", action="store_true", help="for runs that another process is still pre-training")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    print(f"{describe_hardware()}, {describe_versions()}, commit {commit.stdout.strip() or 'unknown'}", flush=True)
    if asked.stage in ("all", "pretrain"):
        pretrain(asked.data, asked.out, asked.gpu, asked.seconds)
    if asked.stage in ("all", "grid"):
        only = set(asked.only.split(",")) if asked.only else None
        grid(asked.data, asked.out, asked.minutes, only, asked.jobs, asked.wait)
    print(table(asked.out))


if __name__ == "__main__":
    main()

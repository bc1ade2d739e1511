"""Seconds from typing `etude finetune` to its first step, the first time and once kernels are cached.

    python benchmarks/finetune_start.py                                   # encoder-20min and bert-base, on a GPU
    python benchmarks/finetune_start.py --recipes bert-toy --rounds 2     # does it run?

A model of each recipe is pre-trained for one step on text of the built-in world, then fine-tuned on sentences of that
world with labels that say nothing: a new process each time, which starts Python, reads the files, opens the model,
compiles and takes a step. The clock stops where the first step stands in the run's log. The first round has an empty
cache of compiled kernels; the others have what it left. Printed: seconds of every round, the median of the cached
ones, and whether it is below ten.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

from etude.runs.model_card import describe_hardware, describe_versions
from etude.world import World

LIMIT = 10.0  # seconds from which a start is too slow
PATIENCE = 600.0
SENTENCES, HELD_OUT = 2000, 200


def write_files(folder: Path) -> None:
    """Write text to pre-train on, and sentences with labels that say nothing: speed depends on none."""
    texts = [document.text for document in islice(World(seed=0).documents(), 400)]
    (folder / "text.txt").write_text("\n\n".join(texts), encoding="utf-8")
    sentences = [sentence.strip() for text in texts for sentence in text.split(".") if sentence.strip()][:SENTENCES]
    for name, part in (("train", sentences[HELD_OUT:]), ("dev", sentences[:HELD_OUT])):
        with open(folder / f"{name}.csv", "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            writer.writerows([sentence, str(len(sentence) % 2)] for sentence in part)


def etude(folder: Path, *words: str) -> None:
    done = subprocess.run([sys.executable, "-m", "etude", *words], cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"etude {words[0]} ended with {done.returncode}: {done.stderr[-500:]}")


def prepare_model(folder: Path, recipe: str, settings: list[str]) -> Path:
    """Pre-train a recipe for one step: speed depends on no weight."""
    run = folder / recipe
    budget = ["train.minutes=null", "train.tokens=null", "train.flops=null", "train.steps=1"]
    etude(folder, "pretrain", recipe, "corpus", "-o", str(run), *budget, *settings, "-q")
    return run


def measure_start(run: Path, out: Path, cache: Path, settings: list[str]) -> float:
    """Return the seconds until the first step of a fine-tuning is logged, which is ended there."""
    train, dev = (str(out.parent / f"{name}.csv") for name in ("train", "dev"))
    words = ["finetune", str(run), "classify", "--train", train, "--dev", dev, "-o", str(out), "-q"]
    words += ["train.epochs=null", "train.steps=1000", "train.log_every=1", "train.batch_examples=32", *settings]
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(cache), "TRITON_CACHE_DIR": str(cache / "triton")}
    messages = out.with_name(f"{out.name}.log")
    start = time.perf_counter()
    with open(messages, "wb") as file:
        process = subprocess.Popen([sys.executable, "-m", "etude", *words], env=environment, stdout=file, stderr=file)
    try:
        while time.perf_counter() - start < PATIENCE:
            log = out / "metrics.jsonl"
            if log.is_file() and '"loss"' in log.read_text(encoding="utf-8"):
                return time.perf_counter() - start
            if process.poll() is not None:
                raise SystemExit(f"etude finetune ended before its first step: {messages.read_text()[-500:]}")
            time.sleep(0.02)
        raise SystemExit(f"no step after {PATIENCE:.0f} seconds")
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=["encoder-20min", "bert-base"])
    parser.add_argument("--rounds", type=int, default=4, help="the first has an empty cache")
    parser.add_argument("--settings", nargs="*", default=[], help="of pre-training, as in model.layers=2")
    parser.add_argument("--task-settings", nargs="*", default=[], help="of fine-tuning, as in train.device=cpu")
    arguments = parser.parse_args()
    print(f"{describe_hardware()}; {describe_versions()}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder)
        etude(folder, "prepare", "text.txt", "-o", "corpus", "--tokenizer", "wordpiece:2000,lower")
        for recipe in arguments.recipes:
            run = prepare_model(folder, recipe, arguments.settings)
            cache = folder / f"{recipe}-cache"
            seconds = [
                measure_start(run, folder / f"{recipe}-{number}", cache, arguments.task_settings)
                for number in range(arguments.rounds)
            ]
            cached = statistics.median(seconds[1:]) if len(seconds) > 1 else float("nan")
            rounds = " ".join(f"{value:.1f}" for value in seconds)
            print(f"{recipe}: {rounds} s; cached {cached:.1f} s, {'below' if cached < LIMIT else 'above'} {LIMIT:.0f}")


if __name__ == "__main__":
    main()

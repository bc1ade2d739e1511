"""Several seeds of a fine-tuning at once beside two seeds one after another, each from typing the command to its end.

    python benchmarks/finetune_seeds.py                                      # encoder-20min and bert-base, on a GPU
    python benchmarks/finetune_seeds.py --recipes bert-toy --steps 20 --rounds 1 --task-settings train.device=cpu

A model of each recipe is pre-trained for one step on text of the built-in world, and fine-tuned on sentences of that
world (finetune_start.py): `--seeds 2` alone, and `--seeds 5 --parallel 5`, in turns. NVIDIA's MPS is started where it
is installed. Printed: seconds of every round, and the ratio of the medians, which is below one if five seeds at once
cost less than two in a row.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from finetune_start import etude, prepare_model, write_files
from studies_gpu import start_mps

from etude.runs.model_card import describe_hardware, describe_versions

SIDES = {"two in a row": ["--seeds", "2"], "five at once": ["--seeds", "5", "--parallel", "5"]}


def measure(run: Path, folder: Path, words: list[str], settings: list[str]) -> float:
    """Return the seconds of a whole search, which is removed."""
    out = folder / "out"
    command = [
        sys.executable,
        "-m",
        "etude",
        "finetune",
        str(run),
        "classify",
        "--train",
        "train.csv",
        "--dev",
        "dev.csv",
    ]
    command += ["-o", str(out), "-q", *words, *settings]
    start = time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=os.environ)
    seconds = time.perf_counter() - start
    if done.returncode != 0:
        raise SystemExit(f"etude finetune ended with {done.returncode}: {done.stderr[-500:]}")
    shutil.rmtree(out)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=["encoder-20min", "bert-base"])
    parser.add_argument("--steps", type=int, default=1500, help="of each fine-tuning, of 32 sentences")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--settings", nargs="*", default=[], help="of pre-training, as in model.layers=2")
    parser.add_argument("--task-settings", nargs="*", default=[], help="of fine-tuning, as in train.device=cpu")
    arguments = parser.parse_args()
    print(f"{describe_hardware()}; {describe_versions()}; MPS {'on' if start_mps() else 'off'}")
    settings = ["train.epochs=null", f"train.steps={arguments.steps}", "train.batch_examples=32"]
    settings += arguments.task_settings
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder)
        etude(folder, "prepare", "text.txt", "-o", "corpus", "--tokenizer", "wordpiece:2000,lower")
        for recipe in arguments.recipes:
            run = prepare_model(folder, recipe, arguments.settings)
            measure(run, folder, SIDES["two in a row"], settings)  # compiles kernels
            found: dict[str, list[float]] = {side: [] for side in SIDES}
            for _ in range(arguments.rounds):
                for side, words in SIDES.items():
                    found[side].append(measure(run, folder, words, settings))
            for side, seconds in found.items():
                print(f"{recipe}, {side}: {' '.join(f'{value:.1f}' for value in seconds)} s", flush=True)
            two, five = (statistics.median(seconds) for seconds in found.values())
            print(f"{recipe}: five at once take {five / two:.2f} times as long as two in a row", flush=True)


if __name__ == "__main__":
    main()

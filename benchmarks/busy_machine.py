"""Training beside another program: threads that sleep while they wait, as Etude sets it, and OpenMP's own way.

    python benchmarks/busy_machine.py [--recipe encoder-5min-cpu] [--steps 150] [--rounds 3] [--busy 0 1] [--threads 2]

`etude pretrain` runs as it does for anyone, on text of the built-in world, in turns with both settings, first on the
machine as it is and then with so many processes beside it that do nothing but count. Printed: tokens a second of every
round, over the last two thirds of the steps, and the ratio of the medians. Nothing else should run meanwhile; the load
of the machine at the start is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

# Etude sets its own where nothing is set, and 300,000 is what GNU's OpenMP does of itself
SIDES: dict[str, dict[str, str]] = {"asleep": {}, "spinning": {"GOMP_SPINCOUNT": "300000"}}
UNSET = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_NUM_THREADS")
COUNT = "while True: pass"


def etude(*words: object, environment: dict[str, str]) -> None:
    subprocess.run([sys.executable, "-m", "etude", *map(str, words)], check=True, capture_output=True, env=environment)


def measure(options: argparse.Namespace, corpus: Path, run: Path, settings: dict[str, str]) -> float:
    """Train once; returns tokens a second."""
    environment = {name: value for name, value in os.environ.items() if name not in UNSET} | settings
    shutil.rmtree(run, ignore_errors=True)
    if options.threads:
        environment["OMP_NUM_THREADS"] = str(options.threads)
    words = [f"train.steps={options.steps}", "train.minutes=null", "train.log_every=2", "train.device=cpu"]
    words += [f"train.{name}={10 * options.steps}" for name in ("eval_every", "save_every")]
    etude("pretrain", options.recipe, corpus, "-o", run, "-q", *words, environment=environment)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    train = [line for line in lines if line["split"] == "train"]
    first, last = train[len(train) // 3], train[-1]
    return float((last["tokens"] - first["tokens"]) / (last["seconds"] - first["seconds"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default="encoder-5min-cpu")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1], help="processes that count beside it")
    parser.add_argument("--threads", type=int, help="of the training; as many as cores if not given")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    print(f"{cores} cores, load {os.getloadavg()[0]:.1f}; {options.recipe}, {options.steps} steps", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text, environment = folder / "world" / "text.txt", dict(os.environ)
        etude("world", "-o", folder / "world", "--megabytes", 1, environment=environment)
        etude("prepare", text, "-o", folder / "corpus", "--tokenizer", "wordpiece:2000", environment=environment)
        for count in options.busy:
            rates: dict[str, list[float]] = {side: [] for side in SIDES}
            beside = [subprocess.Popen([sys.executable, "-c", COUNT]) for _ in range(count)]
            try:
                for _ in range(options.rounds):
                    for side, settings in SIDES.items():
                        rates[side].append(measure(options, folder / "corpus", folder / "run", settings))
            finally:
                for process in beside:
                    process.kill()
            for side, found in rates.items():
                print(f"{count} beside, {side}: {' '.join(f'{rate:,.0f}' for rate in found)} tokens/s", flush=True)
            ratios = [asleep / spinning for asleep, spinning in zip(rates["asleep"], rates["spinning"], strict=True)]
            ratio = statistics.median(rates["asleep"]) / statistics.median(rates["spinning"])
            print(f"{count} beside: {ratio:.2f} x ({min(ratios):.2f} - {max(ratios):.2f})", flush=True)


if __name__ == "__main__":
    main()

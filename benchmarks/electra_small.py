"""ELECTRA-small at a fraction of its training, beside the paper's row (Clark et al. 2020, table 1 and section 3.4).

    python benchmarks/electra_small.py TEXT TASKS WORK [--vocab VOCAB] [--share 0.0625] [--seeds 3] [--processes 12]

TEXT is a text file (one paragraph a line, blank lines between documents), TASKS a folder with <task>/train.jsonl.xz and
valid.jsonl.xz, VOCAB BERT's uncased vocab.txt. The learning-rate schedule is that of the shorter run. Fine-tuning is
the paper's: lr 3e-4, layer-wise decay 0.8, batches of 32, 3 epochs (10 on RTE and STS-B), warm-up 10 %, no weight
decay; the last weights count in the paper, the best of each epoch on dev here, as everywhere in this toolkit.

Everything lies in WORK and goes on where it stopped: run it again after an interruption. Prints a table and writes
WORK/electra_small.json.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

STEPS = 1_000_000  # of the paper's full training
TASKS = {  # name in TASKS -> (task, options, epochs, official score, published dev median of the released Small-OWT)
    "sst2": ("sst2", [], 3, "accuracy", 88.3),
    "stsb": ("stsb", [], 10, "spearman", 86.8),
    "ud_ewt": ("tag", ["-c", "tags=upos"], 3, "accuracy", None),
    "cola": ("cola", [], 3, "mcc", 56.8),
    "rte": ("rte", [], 10, "accuracy", 68.5),
    "mrpc": ("mrpc", [], 3, "accuracy", 87.4),
    "wnut17_ner": ("tag", ["-c", "tags=ner"], 3, "entity_f1", None),
    "qnli": ("qnli", [], 3, "accuracy", 87.9),
}
FINE_TUNING = ["train.lr=3e-4", "train.layer_decay=0.8", "train.batch_examples=32", "train.warmup=0.1",
               "train.weight_decay=0.0", "task.length=128"]  # fmt: skip
RUNNING: set[subprocess.Popen[bytes]] = set()


def etude(*words: object, log: Path, threads: int = 1) -> int:
    """Run one command; its output goes to a log."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    with open(log, "ab") as file:
        command = [sys.executable, "-m", "etude", *map(str, words)]
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
        RUNNING.add(process)
        try:
            return process.wait()
        finally:
            RUNNING.discard(process)


def stop(*_: object) -> None:
    """Pass SIGTERM on, so that every command saves a checkpoint, and end when they have."""
    for process in list(RUNNING):
        process.terminate()
    for process in list(RUNNING):
        process.wait()
    os._exit(143)


def pretrain(arguments: argparse.Namespace, work: Path) -> Path:
    corpus, run = work / "corpus", work / "electra-small"
    if not (corpus / "manifest.json").is_file():
        tokenizer = arguments.vocab or "wordpiece:30522,lower"
        etude("prepare", arguments.text, "-o", corpus, "--tokenizer", tokenizer, log=work / "prepare.log")
    if (run / "recipe.yaml").is_file():
        etude("pretrain", "--resume", run, log=work / "pretrain.log", threads=4)
    else:
        settings = [f"train.steps={round(arguments.share * STEPS)}", "train.save_every=2000", "train.eval_every=20000"]
        etude("pretrain", "electra-small", corpus, "-o", run, *settings, log=work / "pretrain.log", threads=4)
    return run


def finetune(arguments: argparse.Namespace, run: Path, work: Path, name: str, seed: int) -> None:
    kind, options, epochs, _, _ = TASKS[name]
    folder = work / "tasks" / f"{name}-{seed}"
    if (folder / "model.safetensors").is_file():
        return
    folder.parent.mkdir(exist_ok=True)
    log = work / "tasks" / f"{name}-{seed}.log"
    if (folder / "recipe.yaml").is_file():
        etude("finetune", "--resume", folder, "-q", log=log)
        return
    files = ["--train", f"{arguments.tasks}/{name}/train.jsonl.xz", "--dev", f"{arguments.tasks}/{name}/valid.jsonl.xz"]
    settings = [*FINE_TUNING, f"train.epochs={epochs}", f"train.seed={seed}"]
    etude("finetune", run, kind, *options, *files, "-o", folder, *settings, "-q", log=log)


def collect(work: Path) -> dict[str, object]:
    """Scores of the finished fine-tunings on the valid splits, and the end of the pre-training."""
    import yaml

    scores: dict[str, list[float]] = {}
    for name in TASKS:
        for folder in sorted((work / "tasks").glob(f"{name}-*/")):
            if (folder / "model.safetensors").is_file():
                plan = yaml.safe_load((folder / "task.yaml").read_text(encoding="utf-8"))
                scores.setdefault(name, []).append(round(100 * plan["scores"][TASKS[name][3]]["value"], 2))
    lines = (work / "electra-small" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return {"pretraining": json.loads(lines[-1]), "scores": scores}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text")
    parser.add_argument("tasks")
    parser.add_argument("work", type=Path)
    parser.add_argument("--vocab")
    parser.add_argument("--share", type=float, default=0.0625)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--only", choices=("pretrain", "finetune"))
    arguments = parser.parse_args()
    work: Path = arguments.work
    work.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, stop)
    start = time.perf_counter()
    run = work / "electra-small" if arguments.only == "finetune" else pretrain(arguments, work)
    print(f"pre-training: {time.perf_counter() - start:.0f} s", flush=True)
    if arguments.only != "pretrain" and (run / "model.safetensors").is_file():
        # the long ones first; SST-2 is as long as all the others together: one seed
        jobs = [(name, seed) for name in TASKS for seed in range(1 if name == "sst2" else arguments.seeds)]
        with ThreadPoolExecutor(arguments.processes) as pool:
            list(pool.map(lambda job: finetune(arguments, run, work, *job), jobs))
        print(f"with fine-tuning: {time.perf_counter() - start:.0f} s", flush=True)
    result = collect(work)
    (work / "electra_small.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
    print(json.dumps(result["pretraining"]))
    for name, values in result["scores"].items():
        published = TASKS[name][4]
        beside = f"released small (OWT, 4 x the steps and more): {published}" if published else ""
        print(f"{name:12} {TASKS[name][3]:10} median {statistics.median(values):6.2f}  all {values}  {beside}")


if __name__ == "__main__":
    main()

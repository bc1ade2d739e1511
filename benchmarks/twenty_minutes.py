"""Twenty minutes of one GPU: an encoder of your own text, and what it is worth on eight tasks.

    python benchmarks/twenty_minutes.py TEXT TASKS WORK [--vocab VOCAB] [--recipe encoder-20min] [--seeds 5]
    python benchmarks/twenty_minutes.py TEXT TASKS WORK --decoder      # bits a byte and LAMBADA beside gpt2

TEXT is a text file, TASKS a folder with <task>/train.jsonl.xz and valid.jsonl.xz, VOCAB BERT's uncased vocab.txt. The
recipe's `train.minutes` become steps by the measured speed of the card, once: a run that was interrupted goes on with
the same schedule. Every fine-tuning is tried in four ways with one seed (three rates, and a higher one that falls from
layer to layer, as ELECTRA's), and the best on valid is repeated with the others; medians are over all its seeds.
LAMBADA's passages are TASKS/lambada/*.jsonl.xz; without them bits a byte stand alone. Everything lies in WORK and goes
on where it stopped: run it again after an interruption. On another machine, a second visit needs two things of WORK:
`encoder` (its checkpoints apart), which is then not pre-trained again and needs no text, and scores.jsonl, whose
fine-tunings are not repeated; of decoders, decoders.json. `--stop-after 540` ends by itself before a visit does.

At the end the best runs of two tasks are exported and scored by `transformers` alone, beside their own scores.

BERT-medium's published row (Turc et al. 2019, 8 x 512 too) and the goals stand beside the table. Scores are those of
the `valid` splits, on which the rate and the epoch were chosen: development figures, not test figures.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

# name in TASKS -> (task, options, epochs, score, goal, BERT-medium's published test score)
TASKS: dict[str, tuple[str, list[str], int, str, float, float | None]] = {
    "sst2": ("sst2", [], 2, "accuracy", 90.5, 89.6),
    "stsb": ("stsb", [], 8, "spearman", 86.5, 78.4),
    "ud_ewt": ("tag", ["-c", "tags=upos"], 4, "accuracy", 96.0, None),
    "cola": ("cola", [], 6, "mcc", 45.0, 38.0),
    "rte": ("rte", [], 8, "accuracy", 63.0, 62.2),
    "mrpc": ("mrpc", [], 6, "f1", 88.0, 86.6),
    "wnut17_ner": ("tag", ["-c", "tags=ner"], 6, "entity_f1", 40.0, None),
    "qnli": ("qnli", [], 6, "accuracy", 80.0, None),
}
CANDIDATES = {  # tried with one seed; a name is what tables and folders say
    "5e-5": ["train.lr=5e-5"],
    "1e-4": ["train.lr=1e-4"],
    "2e-4": ["train.lr=2e-4"],
    "3e-4-decay": ["train.lr=3e-4", "train.layer_decay=0.8", "transfer.dropout=0.1"],
}
FINE_TUNING = ["train.batch_examples=32", "train.warmup=0.1", "task.length=128"]
EXPORTED = ("mrpc", "rte")  # scored again by transformers
KEPT = "scores.jsonl"
KEEPING = threading.Lock()
RUNNING: set[subprocess.Popen[bytes]] = set()
STOPPED = threading.Event()


def etude(*words: object, log: Path, threads: int = 1) -> int:
    """Run one command; its output goes to a log, and the end of it is shown where the command fails."""
    if STOPPED.is_set():
        return 1
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as file:
        command = [sys.executable, "-m", "etude", *map(str, words)]
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
        RUNNING.add(process)
        try:
            code = process.wait()
        finally:
            RUNNING.discard(process)
    if code != 0 and not STOPPED.is_set():
        last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        print(f"etude {words[0]} failed with {code}, see {log}: {' '.join(last)}", file=sys.stderr, flush=True)
    return code


def stop(*_: object) -> None:
    """Pass SIGTERM on, so that every command saves a checkpoint, and start nothing more."""
    STOPPED.set()
    for process in list(RUNNING):
        process.terminate()


def prepare(arguments: argparse.Namespace, work: Path) -> Path:
    """Prepare the text; decoders have a tokenizer of bytes, since lower-cased words have other bits a byte."""
    corpus = work / ("corpus-bytes" if arguments.decoder else "corpus")
    if not (corpus / "manifest.json").is_file():
        tokenizer = "bytebpe:50304" if arguments.decoder else "wordpiece:30522,lower"
        if (
            arguments.vocab is not None and not arguments.decoder
        ):  # its first unused entry becomes end-of-text, which causal models need
            tokenizer = str(work / "vocab.txt")
            words = Path(arguments.vocab).read_text(encoding="utf-8").replace("[unused0]\n", "[EOT]\n", 1)
            Path(tokenizer).write_text(words, encoding="utf-8")
        if etude("prepare", arguments.text, "-o", corpus, "--tokenizer", tokenizer, log=work / "prepare.log") != 0:
            raise SystemExit(1)
    return corpus


def pretrain(arguments: argparse.Namespace, work: Path, recipe: str, name: str, settings: list[str]) -> Path:
    """Pre-train, or go on with what was interrupted; `train.minutes` were turned into steps at the first start."""
    run, log = work / name, work / f"{name}.log"
    if (run / "model.safetensors").is_file():  # perhaps brought here without its text
        return run
    corpus = prepare(arguments, work)
    if (run / "recipe.yaml").is_file():
        etude("pretrain", "--resume", run, log=log, threads=4)
    else:
        etude("pretrain", recipe, corpus, "-o", run, *settings, *arguments.settings, log=log, threads=4)
    return run


def finetune(arguments: argparse.Namespace, run: Path, work: Path, name: str, rate: str, seed: int) -> None:
    kind, options, epochs, *_ = TASKS[name]
    folder = find_tasks(work) / f"{name}-{rate}-{seed}"
    log = folder.with_name(f"{folder.name}.log")
    if seed in read_scores(work, name).get(rate, {}):
        return
    if (folder / "recipe.yaml").is_file() and not (folder / "model.safetensors").is_file():
        etude("finetune", "--resume", folder, "-q", log=log)
    elif not folder.exists():
        files = [f"{arguments.tasks}/{name}/{part}.jsonl.xz" for part in ("train", "valid")]
        settings = [*FINE_TUNING, *CANDIDATES[rate], f"train.epochs={epochs}", f"train.seed={seed}"]
        settings += [f"train.steps={arguments.task_steps}", "train.epochs=null"] if arguments.task_steps else []
        words = ["--train", files[0], "--dev", files[1], "-o", folder, *settings, "-q"]
        etude("finetune", run, kind, *options, *words, log=log)
    if (folder / "model.safetensors").is_file():
        keep_scores(folder, work, name, rate, seed)


def keep_scores(folder: Path, work: Path, name: str, rate: str, seed: int) -> None:
    """Add a line with the scores of a finished fine-tuning: the weights of so many come home from no machine."""
    import yaml

    scores = yaml.safe_load((folder / "task.yaml").read_text(encoding="utf-8"))["scores"]
    line = {
        "task": name, "rate": rate, "seed": seed, "encoder": hash_encoder(work),
        "scores": {key: score["value"] for key, score in scores.items()},
    }  # fmt: skip
    with KEEPING, open(work / KEPT, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def find_tasks(work: Path) -> Path:
    """Return the folder of the fine-tunings of the encoder that is there: those of another one are not its own."""
    return work / "tasks" / (hash_encoder(work) or "encoder")


def hash_encoder(work: Path) -> str:
    """Return what names the weights that are fine-tuned, so that scores of others are not taken for theirs."""
    sums = work / "encoder" / "checksums.json"
    if not sums.is_file():
        return ""
    digest: str = json.loads(sums.read_text(encoding="utf-8"))["files"]["model.safetensors"]["sha256"]
    return digest[:16]


def read_scores(work: Path, name: str) -> dict[str, dict[int, float]]:
    """Return the scores of the finished fine-tunings of a task, by rate and seed."""
    with KEEPING:
        lines = (work / KEPT).read_text(encoding="utf-8").splitlines() if (work / KEPT).is_file() else []
    scores: dict[str, dict[int, float]] = {}
    encoder = hash_encoder(work)
    for line in map(json.loads, lines):
        if line["task"] == name and line["rate"] in CANDIDATES and line["encoder"] == encoder:
            scores.setdefault(line["rate"], {})[line["seed"]] = 100 * line["scores"][TASKS[name][3]]
    return scores


def best_rate(scores: dict[str, dict[int, float]]) -> str | None:
    """Return the candidate that is best with the first seed; None before all were tried."""
    first = {rate: values[0] for rate, values in scores.items() if 0 in values}
    return max(first, key=lambda rate: first[rate]) if len(first) == len(CANDIDATES) else None


def finetune_all(arguments: argparse.Namespace, run: Path, work: Path) -> None:
    """Try all candidates of all tasks, the long ones first; repeat a task's best with other seeds once it is known."""
    with ThreadPoolExecutor(arguments.processes) as pool:

        def begin(name: str, rate: str, seed: int) -> Future[None]:
            return pool.submit(finetune, arguments, run, work, name, rate, seed)

        trials = {begin(name, rate, 0): name for name in arguments.only for rate in CANDIDATES}
        repeats, left = [], Counter(trials.values())
        for trial in as_completed(trials):
            name = trials[trial]
            left[name] -= 1
            if left[name] == 0 and (rate := best_rate(read_scores(work, name))) is not None:
                repeats += [begin(name, rate, seed) for seed in range(1, arguments.seeds)]
        for job in [*trials, *repeats]:
            job.result()


def check_exports(arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Export a best run of some tasks; returns its score and that of transformers on the same file."""
    found: dict[str, Any] = {}
    for name in EXPORTED:
        rate = best_rate(read_scores(work, name)) if name in arguments.only else None
        runs = [folder.parent for folder in sorted(find_tasks(work).glob(f"{name}-{rate}-*/model.safetensors"))]
        if not runs or STOPPED.is_set():
            continue
        run = runs[0]
        script = Path(__file__).with_name("exported_scores.py")
        command = [sys.executable, str(script), str(run), f"{arguments.tasks}/{name}/valid.jsonl.xz"]
        done = subprocess.run(command, capture_output=True, text=True)
        (run.parent / f"{run.name}-exported.log").write_text(done.stderr, encoding="utf-8")
        found[name] = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else done.stderr[-300:]
        print(f"{run.name}, exported: {found[name]}", flush=True)
    return found


def collect(arguments: argparse.Namespace, run: Path, work: Path) -> dict[str, Any]:
    """Collect pre-training and all scores, with every trial."""
    lines = (
        (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines() if (run / "metrics.jsonl").is_file() else []
    )
    valid = [json.loads(line) for line in lines if '"valid"' in line]
    result: dict[str, Any] = {
        "recipe": arguments.recipe, "settings": arguments.settings, "encoder": hash_encoder(work),
        "pretraining": valid[-1] if valid else None, "tasks": {},
    }  # fmt: skip
    for name in arguments.only:
        scores = read_scores(work, name)
        rate = best_rate(scores)
        values = [scores[rate][seed] for seed in sorted(scores[rate])] if rate else []
        result["tasks"][name] = {
            "trials": scores, "rate": rate, "values": values, "median": statistics.median(values) if values else None,
        }  # fmt: skip
    return result


def print_table(result: dict[str, Any]) -> None:
    print(f"pre-training: {json.dumps(result['pretraining'])}")
    for name, row in result["tasks"].items():
        _, _, _, score, goal, published = TASKS[name]
        if row["median"] is None:
            print(f"{name:12} {score:10} not done: {sum(map(len, row['trials'].values()))} runs so far")
            continue
        beside = f"BERT-medium {published}" if published else ""
        values = " ".join(f"{value:.1f}" for value in row["values"])
        mark = "reached" if row["median"] >= goal else "missed"
        print(
            f"{name:12} {score:10} {row['median']:6.1f}  goal {goal} {mark:8} lr {row['rate']}  all {values}  {beside}"
        )


def compare_decoders(arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Pre-train decoder-20min, gpt2 and gpt2 at decoder-20min's shape for the same minutes, one after the other."""
    minutes = [f"train.minutes={arguments.minutes}"] if arguments.minutes else []
    peer = ["train.tokens=null", "train.batch_tokens=131072", "train.micro_tokens=131072",
            f"train.minutes={arguments.minutes or 20}"]  # fmt: skip
    shape = ["model.layers=8", "model.width=512", "model.heads=8"]
    works = (("decoder-20min", "decoder-20min", minutes), ("gpt2", "gpt2", peer), ("gpt2-8x512", "gpt2", peer + shape))
    path = work / "decoders.json"
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    for name, recipe, settings in works:
        if name in results:
            continue
        run = pretrain(arguments, work, recipe, name, settings)
        if (run / "model.safetensors").is_file():
            lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
            valid = [json.loads(line) for line in lines if '"valid"' in line][-1]
            lambada = score_last_words(arguments, run, work)
            if not STOPPED.is_set():  # else a part of it is missing
                results[name] = {"valid": valid, "lambada": lambada}
        path.write_text(json.dumps(results, indent=1), encoding="utf-8")
    return results


def score_last_words(arguments: argparse.Namespace, run: Path, work: Path) -> dict[str, Any] | None:
    """Ask for the last words of LAMBADA's passages without examples; returns what `etude prompt --json` says."""
    passages = sorted(Path(arguments.tasks, "lambada").glob("*.jsonl.xz"))
    if not passages:
        return None
    question = work / "lambada.yaml"
    question.write_text(f'kind: word\ntest: {passages[0].resolve()}\ntemplate: "{{context}}"\n', encoding="utf-8")
    log = work / f"{run.name}-lambada.json"
    log.unlink(missing_ok=True)
    if etude("prompt", run, question, "--shots", "0", "--json", log=log) != 0:
        return None
    (line,) = [line for line in log.read_text(encoding="utf-8").splitlines() if line.startswith('{"baseline"')]
    scores: dict[str, Any] = json.loads(line)
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("tasks")
    parser.add_argument("work", type=Path)
    parser.add_argument("--vocab")
    parser.add_argument("--recipe", default="encoder-20min")
    parser.add_argument("--minutes", type=float, help="in place of the recipe's")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--only", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--task-steps", type=int, help="of every fine-tuning, in place of its epochs: for a trial")
    parser.add_argument("--stop-after", type=float, help="seconds, after which everything saves and ends")
    parser.add_argument("--decoder", action="store_true")
    parser.add_argument("--settings", nargs="*", default=[], help="of the recipe, as in train.lr=1e-3")
    arguments = parser.parse_args()
    work: Path = arguments.work
    work.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, stop)
    if arguments.stop_after:
        timer = threading.Timer(arguments.stop_after, stop)
        timer.daemon = True
        timer.start()
    start = time.perf_counter()
    if arguments.decoder:
        print(json.dumps(compare_decoders(arguments, work), indent=1))
        return
    minutes = [f"train.minutes={arguments.minutes}"] if arguments.minutes else []
    run = pretrain(arguments, work, arguments.recipe, "encoder", minutes)
    print(f"pre-training: {time.perf_counter() - start:.0f} s", flush=True)
    if (run / "model.safetensors").is_file():
        finetune_all(arguments, run, work)
    elif not STOPPED.is_set():
        raise SystemExit(1)  # the command has said why
    from etude.runs.model_card import describe_hardware, describe_versions

    machine = {"hardware": describe_hardware(), "versions": describe_versions()}
    result = machine | collect(arguments, run, work) | {"exported": check_exports(arguments, work)}
    (work / "twenty_minutes.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
    print_table(result)
    print(f"{time.perf_counter() - start:.0f} s in all{', stopped: run it again' if STOPPED.is_set() else ''}")


if __name__ == "__main__":
    main()

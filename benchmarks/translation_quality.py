"""Quality of translation beside JoeyNMT at the same budget: BLEU of unseen pairs, several seeds, resumable.

    PYTHONPATH=JOEYNMT_FOLDER python benchmarks/translation_quality.py --tasks TASKS --out quality.jsonl \\
        --parallel 12 --minutes 8.5                                                                    # on a GPU
    python benchmarks/translation_quality.py --tasks TASKS --out q.jsonl --tiny --steps 20 --seeds 1      # does it run?

TASKS holds multi30k_en_fr (train and valid), tatoeba_en_ko, jhe_ko_en and park_news_ko_en. Each line of the output is a
cell: pair of languages, kind of model, side, seed. A cell that is there is not done again, so a run that was stopped
goes on with the next one; within a cell a line is printed every ten seconds. Several cells at once share the GPU, so
their seconds are no speeds (translation_speed.py measures those).

Same pairs, tokenizer, sizes, dropout, smoothing, tokens a step, steps, and rate: warm-up, then the inverse square root.
4 beams; the length penalty is each side's own form of exponent 1. BLEU is sacrebleu's on detokenised text, with its
signature. Korean to English has 500 pairs of the three sets held out, by a fixed draw.
"""

from __future__ import annotations

import argparse
import json
import lzma
import multiprocessing
import multiprocessing.connection
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from translation_peers import Etude, Joey, Pairs, Side, Size
from translation_speed import SIZES, now

import etude
from etude.runs.model_card import describe_hardware, describe_versions
from etude.tasks.translate.scores import score_translations
from etude.text.corpus.corpus import Corpus

PEAK, WARM_UP = 1e-3, 1000
HELD_OUT = 500
# about 28 and 14 times through 29,000 pairs, 37 and 22 times through 4,455
STEPS = {("en-fr", "transformer"): 3000, ("en-fr", "rnn"): 1500, ("ko-en", "transformer"): 1000, ("ko-en", "rnn"): 600}
KOREAN = ("tatoeba_en_ko", "jhe_ko_en", "park_news_ko_en")
TextPairs = list[tuple[str, str]]


def read_pairs(tasks: Path, languages: str) -> tuple[TextPairs, TextPairs]:
    """Training pairs, and those that are translated."""
    source, target = languages.split("-")
    if languages == "en-fr":
        train, test = ([tasks / "multi30k_en_fr" / f"{part}.jsonl.xz"] for part in ("train", "valid"))
        return tuple(_read(files, source, target) for files in (train, test))  # type: ignore[return-value]
    files = [path for name in KOREAN for path in sorted((tasks / name).glob("*.jsonl.xz"))]
    pairs = sorted(set(_read(files, source, target)))
    order = np.random.default_rng(0).permutation(len(pairs))
    return [pairs[n] for n in order[HELD_OUT:]], [pairs[n] for n in order[:HELD_OUT]]


def _read(files: list[Path], source: str, target: str) -> TextPairs:
    pairs = []
    for path in files:
        with lzma.open(path, "rt", encoding="utf-8") as file:
            for record in map(json.loads, file):
                pairs.append((" ".join(record[source].split()), " ".join(record[target].split())))
    return pairs


def write_corpus(pairs: TextPairs, folder: Path, vocab: int) -> Corpus:
    lines = "".join(f"{a}\t{b}\n" for a, b in pairs)
    (folder / "pairs.tsv").write_text(f"source\ttarget\n{lines}", encoding="utf-8")
    etude.prepare(
        folder / "pairs.tsv", out=folder / "corpus", tokenizer=f"bpe:{vocab}", pairs="source,target", valid=0.0
    )
    return Corpus.open(folder / "corpus")


def build(side: str, corpus: Corpus, size: Size, device: torch.device, seed: int, warm_up: int) -> Side:
    if side == "joeynmt":
        return Joey(Pairs.from_corpus(corpus, size.context), size, corpus.tokenizer.vocab, device, seed)
    changes = {"train.lr": PEAK, "train.lr_schedule": "inverse_sqrt", "train.warmup": warm_up}
    return Etude(corpus, size, device, seed, **changes)


def train(side: Side, steps: int, warm_up: int, label: str) -> int:
    """Return the target tokens read; print how far it is every ten seconds."""
    tokens, started = 0, time.perf_counter()
    last = started
    for number in range(1, steps + 1):
        if isinstance(side, Joey):  # ours has the same in its recipe
            for group in side.optimizer.param_groups:
                group["lr"] = PEAK * min(number / warm_up, (warm_up / number) ** 0.5)
        tokens += side.step()
        moment = time.perf_counter()
        if number == 1 or moment - last > 10:
            print(
                f"{label}: step {number:,} of {steps:,}, {tokens:,} target tokens, {moment - started:.0f} s", flush=True
            )
            last = moment
    return tokens


def run_cell(side: str, corpus: Corpus, test: TextPairs, size: Size, device: torch.device, seed: int, steps: int,
             label: str) -> dict[str, Any]:  # fmt: skip
    warm_up = min(WARM_UP, max(1, steps // 8))
    learner = build(side, corpus, size, device, seed, warm_up)
    started = now(device)
    tokens = train(learner, steps, warm_up, label)
    seconds = now(device) - started
    print(f"{label}: trained in {seconds:.0f} s, translates {len(test)} sentences", flush=True)
    encoded = corpus.tokenizer.encode_batch([source for source, _ in test])
    sources = [np.append(each.ids[: size.context - 1], 5).astype(np.int64) for each in encoded]
    written = [corpus.tokenizer.decode(ids, special=False).strip() for ids in learner.decode(sources)]
    bleu, chrf = score_translations(written, [target for _, target in test])
    return {
        "steps": steps, "target_tokens": tokens, "seconds": seconds, "bleu": bleu.value, "chrf": chrf.value,
        "signature": bleu.signature, "example": {"source": test[0][0], "reference": test[0][1], "written": written[0]},
    }  # fmt: skip


def summarise(cells: list[dict[str, Any]]) -> None:
    """Mean and standard error of each side, and the difference."""
    groups: dict[tuple[str, str], dict[str, list[float]]] = {}
    for cell in cells:
        groups.setdefault((cell["languages"], cell["kind"]), {}).setdefault(cell["side"], []).append(cell["bleu"])
    for (languages, kind), sides in groups.items():
        print(f"\n{languages}, {kind}, BLEU")
        errors = {}
        for side, values in sides.items():
            errors[side] = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
            seeds = ", ".join(f"{value:.2f}" for value in values)
            print(f"  {side:<10} {statistics.mean(values):6.2f} +- {errors[side]:.2f}   seeds: {seeds}")
        if {"etude", "joeynmt"} <= sides.keys():
            gap = statistics.mean(sides["etude"]) - statistics.mean(sides["joeynmt"])
            print(
                f"  difference {gap:+.2f} +- {(errors['etude'] ** 2 + errors['joeynmt'] ** 2) ** 0.5:.2f}", flush=True
            )


@dataclass(frozen=True)
class Cell:
    """A model of one side and seed."""

    languages: str
    kind: str
    side: str
    seed: int

    def __str__(self) -> str:
        return f"{self.languages} {self.kind} {self.side} seed {self.seed}"


def work_on(cell: Cell, folder: str, test: TextPairs, steps: int, tiny: bool) -> dict[str, Any]:
    """Do a cell, in a process of its own or in this one."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    size = replace(SIZES["tiny" if tiny else "gpu"][cell.kind], dropout=0.3)
    result = run_cell(cell.side, Corpus.open(folder), test, size, device, cell.seed, steps, str(cell))
    return {**asdict(cell), **result, "hardware": describe_hardware(), "versions": describe_versions(),
            "finished": time.strftime("%Y-%m-%d %H:%M")}  # fmt: skip


def plan(options: argparse.Namespace, done: set[Cell]) -> list[Cell]:
    """Cells that are missing, those that take longest first within a pair of languages and a seed."""
    order = sorted(options.kinds, key=("rnn", "transformer").index), sorted(options.sides, key="joeynmt".__ne__)
    cells = [
        Cell(languages, kind, side, seed)
        for languages in options.languages
        for seed in range(options.seeds)
        for kind in order[0]
        for side in order[1]
    ]
    return [cell for cell in cells if cell not in done]


def start_mps() -> None:
    """Start NVIDIA's daemon by which kernels of several processes run at once, where it is installed."""
    if torch.cuda.is_available() and shutil.which("nvidia-cuda-mps-control"):
        subprocess.run(["nvidia-cuda-mps-control", "-d"], capture_output=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=Path, default=Path("../shared/data/tasks"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--languages", nargs="*", default=["en-fr", "ko-en"])
    parser.add_argument("--kinds", nargs="*", default=["transformer", "rnn"])
    parser.add_argument("--sides", nargs="*", default=["etude", "joeynmt"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="of every cell, in the place of those in STEPS")
    parser.add_argument("--parallel", type=int, default=1, help="cells at once, each in a process")
    parser.add_argument("--minutes", type=float, default=1e6, help="after these, cells in flight are given up")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    started = time.perf_counter()
    results = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.is_file() else []
    done = {Cell(*(result[field.name] for field in fields(Cell))) for result in results}
    cells = plan(options, done)

    def store(result: dict[str, Any]) -> None:
        results.append(result)
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result, ensure_ascii=False) + "\n")
        name = " ".join(str(result[field.name]) for field in fields(Cell))
        moment = time.perf_counter() - started
        print(f"[{moment:.0f} s] {name}: BLEU {result['bleu']:.2f}, chrF {result['chrf']:.2f}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        arguments = []
        corpora: dict[str, tuple[str, TextPairs]] = {}
        for cell in cells:
            if cell.languages not in corpora:
                train_pairs, test = read_pairs(options.tasks, cell.languages)
                if options.tiny:
                    train_pairs, test = train_pairs[:2000], test[:20]
                place = Path(folder) / cell.languages
                place.mkdir()
                corpus = write_corpus(train_pairs, place, 2000 if options.tiny else 8000)
                corpora[cell.languages] = str(corpus.folder), test
            steps = options.steps or STEPS[cell.languages, cell.kind]
            arguments.append((cell, *corpora[cell.languages], steps, options.tiny))
        print(f"{len(cells)} cells to do, {len(done)} are there", flush=True)
        if options.parallel == 1:
            for entry in arguments:
                store(work_on(*entry))
                if time.perf_counter() - started > 60 * options.minutes:
                    break
        else:
            start_mps()
            run_parallel(arguments, options.parallel, started + 60 * options.minutes, store)
    summarise(results)


def run_parallel(
    arguments: list[tuple[Cell, str, TextPairs, int, bool]],
    parallel: int,
    deadline: float,
    store: Callable[[dict[str, Any]], None],
) -> None:
    """Do cells in processes of their own, in the order given; those that fail are told and left out."""
    context = multiprocessing.get_context("spawn")
    waiting, running = list(arguments), {}
    while (waiting or running) and time.perf_counter() < deadline:
        while waiting and len(running) < parallel:
            entry = waiting.pop(0)
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_send_result, args=(sender, entry))
            process.start()
            sender.close()
            running[receiver] = process, entry[0]
        for receiver in multiprocessing.connection.wait(list(running), timeout=1.0):
            process, cell = running.pop(receiver)  # type: ignore[index]
            try:
                store(receiver.recv())  # type: ignore[union-attr]
            except EOFError:
                process.join()
                print(f"{cell}: FAILED, exit {process.exitcode}; its message stands above", flush=True)
            process.join()
    for process, cell in running.values():
        print(f"{cell}: given up, because the minutes are over", flush=True)
        process.terminate()
    if waiting:
        print(f"{len(waiting)} cells not begun", flush=True)


def _send_result(sender: multiprocessing.connection.Connection, entry: tuple[Cell, str, TextPairs, int, bool]) -> None:
    sender.send(work_on(*entry))


if __name__ == "__main__":
    main()

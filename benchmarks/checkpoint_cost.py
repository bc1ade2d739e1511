"""What checkpoints cost a fine-tuning: seconds of the whole and of saving, as it is and as it was, in turns.

    python benchmarks/checkpoint_cost.py                                   # BERT-mini's shape on a CPU
    python benchmarks/checkpoint_cost.py --layers 12 --width 768 --examples 3200 --device cuda
    python benchmarks/checkpoint_cost.py --layers 8 --width 512 --examples 1200 --device cuda

`every epoch` is the rule there was: a checkpoint at each epoch, each best evaluation and the end, each file read again
and hashed by one thread (BLAKE2b). `by the clock` is train/saver.py. Both end with the same weights, which is checked.
Examples are random words with random labels: what is learnt does not matter here.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from etude.hub import run_weights
from etude.pretraining.bench import word_level_tokenizer
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.runs import checksums
from etude.runs.run import Run
from etude.train import checkpoint
from etude.train.saver import Saver
from etude.transfer import finetune as transfer
from etude.transfer import task_weights

VOCAB = 30_522


def write_base(folder: Path, layers: int, width: int) -> Path:
    """A finished run with random weights."""
    changes = {"model.layers": layers, "model.width": width, "model.heads": max(1, width // 64)}
    tokenizer = word_level_tokenizer(VOCAB)
    recipe = Recipe.load("bert-base", changes).resolve(vocab=VOCAB)
    torch.manual_seed(0)
    model, objective = build_learner(recipe, tokenizer)
    run = Run.create(folder, recipe, tokenizer, {})
    run_weights.save_final(run, model, objective, "random weights")
    return folder


def write_examples(path: Path, count: int) -> Path:
    draw = np.random.default_rng(0)
    texts = [" ".join(f"w{number}" for number in draw.integers(10, VOCAB - 10, 24)) for _ in range(count)]
    labels = draw.integers(0, 2, count).tolist()
    records = [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]
    path.write_text("\n".join(map(json.dumps, records)) + "\n")
    return path


class Stopwatch:
    """Adds up the seconds inside some functions."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started
                self.calls[name] = self.calls.get(name, 0) + 1

        return timed

    def format(self) -> str:
        return ", ".join(f"{name} {value:.2f} s ({self.calls[name]})" for name, value in self.seconds.items())


class WholeHash:
    """The hash there was: one thread over the whole file, before it is flushed."""

    def __init__(self, path: Path) -> None:
        self.size, self._hash = path.stat().st_size, checkpoint.hash_file(path)

    def result(self) -> str:
        return self._hash


@contextlib.contextmanager
def earlier_rules(epoch: int) -> Iterator[None]:
    """Save at each epoch, best evaluation and the end."""

    def keep_all(self: Saver) -> None:
        self.every = epoch

    with (
        mock.patch.object(Saver, "end_with_best", keep_all),
        mock.patch.object(checkpoint, "PieceHash", WholeHash),
        mock.patch.object(checkpoint, "hash_pieces", checkpoint.hash_file),
    ):
        yield


def time_finetuning(base: Path, data: Path, out: Path, device: str, rule: str, epochs: int, epoch: int) -> Stopwatch:
    watch = Stopwatch()
    overrides = {"train.epochs": epochs, "train.device": device, "train.batch_examples": 32, "task.dropout": 0.0}
    patches = [
        mock.patch.object(checkpoint, "save", watch.wrap("checkpoints", checkpoint.save)),
        mock.patch.object(task_weights, "write_tensors", watch.wrap("final weights", task_weights.write_tensors)),
        mock.patch.object(checksums, "hash_file", watch.wrap("final hashes", checksums.hash_file)),
        mock.patch.object(transfer, "_train", watch.wrap("training", transfer._train)),
    ]
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        if rule == "every epoch":
            stack.enter_context(earlier_rules(epoch))
        finetune = watch.wrap("whole", transfer.finetune)
        finetune(base, "classify", data, out, dev=data.with_name("dev.jsonl"), overrides=overrides, quiet=True)
    return watch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--examples", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    device = torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU"
    print(f"{arguments}\ntorch {torch.__version__}, {device}, {torch.get_num_threads()} threads", flush=True)
    seconds: dict[str, list[tuple[float, float]]] = {"every epoch": [], "by the clock": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = write_base(folder / "base", arguments.layers, arguments.width)
        data = write_examples(folder / "train.jsonl", arguments.examples)
        write_examples(folder / "dev.jsonl", 64)
        epoch = -(-arguments.examples // 32)
        weights = []
        for number in range(arguments.rounds):
            for rule in seconds:
                out = folder / f"{rule} {number}"
                watch = time_finetuning(base, data, out, arguments.device, rule, arguments.epochs, epoch)
                saving = sum(watch.seconds.get(part, 0.0) for part in ("checkpoints", "final weights", "final hashes"))
                seconds[rule].append((watch.seconds["whole"], saving))
                print(f"{rule:13} {watch.format()}", flush=True)
                weights.append(checkpoint.hash_file(out / "model.safetensors"))
    for rule, values in seconds.items():
        whole, saving = (float(np.median([value[place] for value in values])) for place in (0, 1))
        print(f"{rule:13} median {whole:.2f} s, of it saving {saving:.2f} s: {100 * saving / whole:.0f} %")
    medians = {rule: float(np.median([value[0] for value in values])) for rule, values in seconds.items()}
    print(f"by the clock takes {medians['by the clock'] / medians['every epoch']:.2f} of the time")
    print("final weights: " + ("equal in all rounds" if len(set(weights)) == 1 else f"{len(set(weights))} different"))


if __name__ == "__main__":
    main()

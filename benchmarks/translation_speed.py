"""Speed of translation: training and beam search beside JoeyNMT and a plain `transformers` loop, in turns.

    PYTHONPATH=JOEYNMT_FOLDER python benchmarks/translation_speed.py --data MULTI30K --out results.json   # on a GPU
    python benchmarks/translation_speed.py --small --data MULTI30K --rounds 5                             # on a CPU
    python benchmarks/translation_speed.py --tiny --data MULTI30K --rounds 2 --seconds 2 --sentences 40   # does it run?

MULTI30K is a folder with train.jsonl.xz and valid.jsonl.xz, fields en and fr. Sentences have their natural lengths.
Training is in real target tokens a second, decoding (4 beams, all sentences of valid) in sentences a second. The sides
take turns for some rounds; a ratio is the median of those of the rounds, and every round is told. Before decoding, the
Transformers of all three have the same weights, ours after the training of the first part, so that they write the same
text (the share of equal translations is told); recurrent ones decode with what they learnt in the same rounds. Each
peer decodes as many sentences at once as it does fastest.

Before the first round a side trains until its speed is steady, because compilations and recordings come with new shapes
of batches, and translates all sentences once. Every side and round prints a line with its figure when it is over, and
--out is written again after each, so a run that is cut off leaves what it had measured ("complete": false).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from translation_peers import Etude, Joey, Marian, Pairs, Side, Size

import etude
from etude.runs.model_card import describe_hardware, describe_versions
from etude.text.corpus.corpus import Corpus

SIZES = {
    "gpu": {
        "transformer": Size("transformer", 4, 256, 4, 1024, 0.1, 128, 8192),
        "rnn": Size("rnn", 1, 512, 1, 0, 0.1, 128, 8192),
    },
    "small": {
        "transformer": Size("transformer", 4, 256, 4, 1024, 0.1, 64, 2048),
        "rnn": Size("rnn", 1, 256, 1, 0, 0.1, 64, 2048),
    },
    "tiny": {
        "transformer": Size("transformer", 2, 64, 4, 128, 0.1, 48, 1024),
        "rnn": Size("rnn", 1, 64, 1, 0, 0.1, 48, 1024),
    },
}  # fmt: skip


def now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def train_for(side: Side, seconds: float, device: torch.device) -> float:
    """Real target tokens a second."""
    started, tokens = now(device), 0
    while now(device) - started < seconds:
        for _ in range(8 if device.type == "cuda" else 1):
            tokens += side.step()
    return tokens / (now(device) - started)


def warm_up(kind: str, side: Side, seconds: float, device: torch.device, results: Results) -> None:
    """Train until everything is compiled, tuned and allocated: two windows in a row as fast as the best, to 10 %.

    It ends at the latest after eight times the seconds asked for; a fifth of those is a window.
    """
    started = last = now(device)
    steps = tokens = since = 0
    rates: list[float] = []
    while True:
        since += side.step()
        steps += 1
        moment = now(device)
        if steps > 1 and moment - last < seconds / 5:
            continue
        tokens += since
        rates.append(since / (moment - last))
        results.log(f"{kind} training, warm-up: {side.name} step {steps}, {tokens:,} target tokens, "
                    f"now {rates[-1]:,.0f} a second")  # fmt: skip
        last, since = moment, 0
        is_steady = len(rates) > 5 and min(rates[-2:]) >= 0.9 * max(rates)
        is_ready = is_steady and side.is_warm
        if moment - started >= seconds and (is_ready or moment - started >= 8 * seconds):
            return


def choose_batch(side: Side, sources: list[np.ndarray], device: torch.device) -> dict[int, float]:
    """Let a peer decode as many sentences at once as it does fastest; seconds of each size, the second time."""
    seconds = {}
    for per_batch in (128, 256, 512, 1024) if device.type == "cuda" else (32, 64, 128):
        side.per_batch = per_batch
        side.decode(sources)
        started = now(device)
        side.decode(sources)
        seconds[per_batch] = now(device) - started
    side.per_batch = min(seconds, key=seconds.__getitem__)
    return seconds


class Results:
    """What was measured so far; written whole after every figure."""

    def __init__(self, path: Path | None, sizes: str, minutes: float) -> None:
        self.path, self.minutes = path, minutes
        self.started = time.perf_counter()
        self.values: dict[str, Any] = {
            "hardware": describe_hardware(), "versions": describe_versions(), "sizes": sizes, "complete": False,
        }  # fmt: skip

    def is_late(self) -> bool:
        return time.perf_counter() - self.started > 60 * self.minutes

    def log(self, message: str) -> None:
        print(f"[{time.perf_counter() - self.started:6.1f} s] {message}", flush=True)

    def write(self) -> None:
        if self.path is not None:
            aside = self.path.with_name(self.path.name + ".tmp")
            aside.write_text(json.dumps(self.values, indent=1) + "\n")
            os.replace(aside, self.path)


def compare(rounds: list[dict[str, float]]) -> dict[str, Any]:
    """Medians of every side, and the median ratio of ours to each other with its range, over complete rounds."""
    names = list(rounds[0])
    complete = [entry for entry in rounds if entry.keys() == rounds[0].keys()]
    return {
        "rounds": rounds,
        "median": {name: statistics.median(entry[name] for entry in complete) for name in names},
        "ratio": {
            name: {
                "median": statistics.median(entry["etude"] / entry[name] for entry in complete),
                "low": min(entry["etude"] / entry[name] for entry in complete),
                "high": max(entry["etude"] / entry[name] for entry in complete),
            }
            for name in names
            if name != "etude"
        },
    }  # fmt: skip


def take_turns(
    name: str, part: str, unit: str, sides: list[Side], rounds: int, figure: Callable[[Side], float], results: Results
) -> dict[str, Any]:
    """Measure every side in every round; print and write each figure as soon as it is there."""
    entries: list[dict[str, float]] = []
    for number in range(1, rounds + 1):
        if entries and results.is_late():
            results.log(f"{name} {part}: {len(entries)} rounds of {rounds}, because the minutes are over")
            break
        entries.append({})
        for side in sides:
            entries[-1][side.name] = value = figure(side)
            results.values[name][part] = compare(entries)
            results.write()
            ratio = "" if side is sides[0] else f", ours is {entries[-1][sides[0].name] / value:.2f} x"
            results.log(f"{name} {part}, round {number} of {rounds}: {side.name} {value:,.0f} {unit}{ratio}")
    return compare(entries)


def show(title: str, unit: str, results: dict[str, Any]) -> None:
    print(f"\n{title}, {unit}")
    for name, value in results["median"].items():
        rounds = " ".join(f"{entry[name]:,.0f}" for entry in results["rounds"])
        ratio = results["ratio"].get(name)
        factor = (
            "" if ratio is None else f"  ours is {ratio['median']:.2f} x ({ratio['low']:.2f} - {ratio['high']:.2f})"
        )
        print(f"  {name:<18} {value:>10,.0f}{factor}   rounds: {rounds}", flush=True)


def build(
    corpus: Corpus, pairs: Pairs, size: Size, device: torch.device, peers: list[str], compiled: bool
) -> list[Side]:
    vocab = corpus.tokenizer.vocab
    sides: list[Side] = [Etude(corpus, size, device)]
    if "joeynmt" in peers:
        sides.append(Joey(pairs, size, vocab, device))
    if "loop" in peers and size.kind == "transformer":
        sides.append(Marian(pairs, size, vocab, device, compiled))
    return sides


def measure(
    corpus: Corpus, valid: Pairs, size: Size, device: torch.device, options: argparse.Namespace, results: Results
) -> None:
    results.values[size.kind] = {}
    sides = build(corpus, Pairs.from_corpus(corpus, size.context), size, device, options.peers, options.compile)
    for side in sides:
        if options.part != "decoding" or size.kind == "rnn":
            warm_up(size.kind, side, options.warm, device, results)
    if options.part != "decoding":
        training = take_turns(size.kind, "training", "target tokens a second", sides, options.rounds,
                              lambda side: train_for(side, options.seconds, device), results)  # fmt: skip
        show(f"{size.kind}: training", "target tokens a second", training)
    if options.part == "training":
        return
    ours = sides[0]
    assert isinstance(ours, Etude)
    for _ in range(options.learn):
        ours.step()
    results.log(f"{size.kind}: {options.learn} more steps of ours before decoding")
    if size.kind == "transformer":
        for side in sides[1:]:
            if isinstance(side, (Joey, Marian)):
                side.load(ours)
    sources = valid.sources[: options.sentences]
    written: dict[str, list[list[int]]] = {}

    def decode(side: Side) -> float:
        started = now(device)
        written[side.name] = side.decode(sources)
        return len(sources) / (now(device) - started)

    def decode_seconds(side: Side) -> float:
        return round(len(sources) / decode(side), 3)

    for side in sides:  # compiles, records, allocates
        if side is ours:
            seconds = {f"call {number}": decode_seconds(side) for number in (1, 2)}  # peers decode twice, too
            results.log(f"{size.kind} decoding, {side.name}: {seconds}")
            continue
        seconds = choose_batch(side, sources, device)
        summary = ", ".join(f"{count} at once {value:.2f} s" for count, value in seconds.items())
        results.log(f"{size.kind} decoding, {side.name}: {summary}")
    rounds = options.rounds if options.sentences > 32 else 1
    decoding = take_turns(size.kind, "decoding", "sentences a second", sides, rounds, decode, results)
    decoding["mean_length"] = {name: statistics.mean(map(len, texts)) for name, texts in written.items()}
    decoding["equal"] = {
        name: statistics.mean(a == b for a, b in zip(texts, written["etude"], strict=True))
        for name, texts in written.items()
    }
    results.values[size.kind]["decoding"] = decoding
    results.write()
    show(f"{size.kind}: beam search of {len(sources)} sentences", "sentences a second", decoding)
    print(f"  mean length {decoding['mean_length']}, equal to ours {decoding['equal']}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/tasks/multi30k_en_fr"))
    parser.add_argument("--only", choices=("transformer", "rnn"))
    parser.add_argument("--peers", nargs="*", default=["joeynmt", "loop"])
    parser.add_argument("--part", choices=("training", "decoding"), help="both unless given")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of training a side and round")
    parser.add_argument("--warm", type=float, default=10.0, help="seconds before the first round, at least")
    parser.add_argument("--learn", type=int, default=800, help="steps of ours before decoding")
    parser.add_argument("--minutes", type=float, default=8.0, help="after these every part has but one round")
    parser.add_argument("--sentences", type=int, default=1014)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    options.compile = device.type == "cuda"
    name = "tiny" if options.tiny else "small" if options.small or device.type == "cpu" else "gpu"
    results = Results(options.out, name, options.minutes)
    with tempfile.TemporaryDirectory() as folder:
        vocab = 2000 if options.tiny else 8000
        for part in ("train", "valid"):
            kind = f"bpe:{vocab}" if part == "train" else str(Path(folder) / "train")
            etude.prepare(options.data / f"{part}.jsonl.xz", out=Path(folder) / part, tokenizer=kind, pairs="en,fr",
                          valid=0.0)  # fmt: skip
        results.log(f"prepared {options.data.name}")
        corpus, held_out = (Corpus.open(Path(folder) / part) for part in ("train", "valid"))
        for kind, size in SIZES[name].items():
            if options.only in (None, kind):
                measure(corpus, Pairs.from_corpus(held_out, size.context), size, device, options, results)
    results.values["complete"] = True
    results.write()


if __name__ == "__main__":
    main()

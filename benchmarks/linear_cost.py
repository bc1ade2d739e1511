"""Does cost grow linearly? Ten times the corpus and ten times the steps: the same tokens a second, the same memory.

    python benchmarks/linear_cost.py [corpus] [--works gpt,bert] [--steps 60] [--factors]

From a prepared corpus (or, without one, from text that `etude world` writes) every tenth document goes into a corpus of
its own: every tenth, so that documents are as long in both. Then `etude pretrain` runs on both as it does for anyone:
from files mapped into memory, with its log, with an evaluation and a checkpoint at the end. Each run is a process of
its own. The small one runs before the large one and after it, so that a machine which slows down or speeds up in
between is seen; `--factors` also changes the corpus alone and the steps alone.

Tokens a second are those of the log, from the step START on: until then kernels compile and memory is touched first.
On a CPU there is also the rate by processor time, `tokens/core s`, which other work on the machine disturbs less.

Memory is what the run holds for itself from that step to its end (evaluation and checkpoint included): pages that no
file backs, of the process and of those that build its batches. That is what must not grow. Pages of files, libraries
and the corpus, which the system maps and takes back when anybody needs room, are told apart (`mapped`): those of
the corpus do grow with it, up to its size, and cost a machine with less memory nothing but reading. `growth` is how
much higher the process's own memory rose in the second half of these steps than in the first: a leak shows there. On a
GPU, `device` is the most that torch took from it in the whole run.

Exit code 1 where the large run's speed or memory differs by more than 3 % from the mean of the two small ones.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from etude.pretraining import pretrain as pretraining
from etude.runs.model_card import describe_hardware, describe_versions
from etude.text.checked_files import write_manifest
from etude.text.corpus.corpus import Corpus
from etude.text.corpus.manifest import FORMAT, VERSION
from etude.text.corpus.shard import Shard
from etude.text.corpus.split_writer import SplitWriter
from etude.text.prepare.prepare import prepare
from etude.text.tokenizer.tokenizer import TOKENIZER_FILE
from etude.train import malloc
from etude.world import World

TIMES = 10
ALLOWED = 0.03
LOG = 5  # steps between two lines of the log
START = 20  # the step at which the clock starts: recording of kernels is over by the fourth, first touches soon after
MEGABYTES = 12.0  # of invented text: about 3 million tokens, so that its tenth is more than one step in any case
SAMPLE = 0.02  # seconds between two looks at the memory: a step on a slow core is half a second of ups and downs
LOADERS = 50  # looks at this process for each at its loaders, whose pages have to be counted

COMPARED = ("tokens/s", "tokens/core s", "host", "device")
DECIDING = ("tokens/s", "host", "device")
UNITS = dict.fromkeys(("host", "growth", "mapped", "device"), " MiB")

SIZES: dict[str, dict[str, Any]] = {
    "cpu": {"model.layers": 2, "model.width": 128, "model.heads": 2, "model.context": 128, "train.batch_tokens": 1024},
    "cuda": {
        "model.layers": 12,
        "model.width": 768,
        "model.heads": 12,
        "model.context": 512,
        "train.batch_tokens": 32_768,
    },
}
WORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt": ("gpt2", {}),
    "bert": ("bert-base", {}),
}


# --- the corpora ------------------------------------------------------------------------------------


def invented(folder: Path, megabytes: float) -> Path:
    """A corpus of text about the built-in town."""
    World(0).write(folder / "world", megabytes, tasks=False)
    prepare(folder / "world" / "text.txt", folder / "large", tokenizer="wordpiece:4000")
    return folder / "large"


def thinned(whole: Path, out: Path) -> Path:
    """Every so many-th document of a corpus, as a corpus on disk; the same held-out part."""
    manifest = Corpus.open(whole).manifest
    parts: dict[str, Any] = dict(manifest["parts"])
    for name in [name for name in parts if parts[name]["tokens"]]:
        part = Corpus.open(whole, split=name)
        writer = SplitWriter(out / name, part.tokenizer.vocab, np.dtype("<u4"), part.tokenizer.word_level)
        for number in range(0, len(part.documents), TIMES if name == "train" else 1):
            document = one_document(part, number)
            writer.append(document, round(part.bytes * len(document.tokens) / part.total))
        parts[name] = writer.finish()
    (out / TOKENIZER_FILE).write_bytes((whole / TOKENIZER_FILE).read_bytes())
    kept = {"format": FORMAT, "version": VERSION, "tokenizer": manifest["tokenizer"], "parts": parts}
    write_manifest(out, kept)
    return out


def one_document(corpus: Corpus, number: int) -> Shard:
    start, stop = corpus.documents[number], corpus.documents[number + 1]
    sentences = corpus.sentences.slice(corpus.sentences.find(start), corpus.sentences.find(stop - 1) + 1) - start
    shard = Shard(
        corpus.tokens(start, stop).astype("<u4"),
        np.zeros(1, "<u4"),
        sentences.astype("<u4"),
        corpus.word_starts(start, stop).astype(np.uint8),
    )
    if corpus.tokenizer.word_level:
        words = corpus.surfaces(start, stop)
        sizes = np.array([len(word) for word in words], np.int64)
        shard.surfaces = np.frombuffer(b"".join(words), np.uint8)
        shard.letters = (np.cumsum(sizes) - sizes).astype("<u4")
    return shard


# --- one run, in a process of its own ---------------------------------------------------------------


class Look(NamedTuple):
    lines: int  # of the log so far
    processor: float  # seconds of all threads
    own: int  # bytes that no file backs
    loaders: int  # the same of processes that build batches
    mapped: int


class Watch(threading.Thread):
    """Looks at the memory of this process while a run goes on."""

    def __init__(self, log: Path) -> None:
        super().__init__(daemon=True)
        self.log, self.over = log, threading.Event()
        self.seen: list[Look] = []

    def run(self) -> None:
        lines = others = length = 0
        while not self.over.wait(SAMPLE):
            if len(self.seen) % LOADERS == 0:
                others = sum(fields(child / "smaps_rollup").get("Private_Dirty", 0) for child in loaders())
            own = fields(Path("/proc/self/status"))
            grown = self.log.stat().st_size if self.log.exists() else length
            if grown != length:  # read when there is something new: the log of a long run is longer
                lines, length = self.log.read_bytes().count(b"\n"), grown
            private = own["RssAnon"] + own["RssShmem"]
            self.seen.append(Look(lines, time.process_time(), private, others, own["RssFile"]))


def fields(path: Path) -> dict[str, int]:
    """Lines such as `RssAnon:   812 kB`, in bytes; nothing of a process that has gone."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {words[0][:-1]: int(words[1]) * 1024 for words in lines if len(words) == 3 and words[2] == "kB"}


def loaders() -> list[Path]:
    """Forked from this process, so with its command line; what the compiler starts has another."""
    found = []
    mine = Path("/proc/self/cmdline").read_bytes()
    for thread in Path("/proc/self/task").iterdir():
        try:
            children = [Path("/proc") / number for number in (thread / "children").read_text().split()]
            found += [child for child in children if (child / "cmdline").read_bytes() == mine]
        except OSError:
            continue  # has ended meanwhile
    return found


def one_run(work: str, corpus: Path, steps: int) -> dict[str, float]:
    cuda = torch.cuda.is_available()
    recipe, settings = WORKS[work]
    settings = SIZES["cuda" if cuda else "cpu"] | settings
    settings |= {"objective.length": settings["model.context"]} if work == "bert" else {}
    settings |= {"train.steps": steps, "train.log_every": LOG, "train.save_every": 0, "train.eval_every": 0}
    settings |= {"train.eval_tokens": 8192}  # of the evaluation at the end: there, and no longer than it must
    with tempfile.TemporaryDirectory() as folder:
        watch = Watch(Path(folder) / "run" / "metrics.jsonl")
        watch.start()
        run = pretraining.pretrain(recipe, corpus, Path(folder) / "run", quiet=True, overrides=settings)
        watch.over.set()
        watch.join()
        lines = run.metrics("train")
    start = next(line for line in lines if line["step"] >= START)
    tokens, seconds = (lines[-1][name] - start[name] for name in ("tokens", "seconds"))
    steady = [look for look in watch.seen if look.lines >= START // LOG]
    stepping = [look for look in steady if look.lines < steps // LOG] or steady[:1]
    half = max(1, len(stepping) // 2)
    first, second = (max(look.own for look in part) for part in (stepping[:half], stepping[-half:]))
    return {
        "tokens/s": tokens / seconds,
        "tokens/core s": 0 if cuda else tokens / max(1e-9, stepping[-1].processor - stepping[0].processor),
        "seconds": seconds,
        "host": max(look.own + look.loaders for look in steady) / 2**20,
        "growth": (second - first) / 2**20,
        "mapped": max(look.mapped for look in steady) / 2**20,
        "device": torch.cuda.max_memory_reserved() / 2**20 if cuda else 0,
    }


def measure(work: str, corpus: Path, steps: int) -> dict[str, float]:
    malloc.configure_mimalloc()  # as the command line does; the process below inherits it
    command = [sys.executable, str(Path(__file__).resolve()), str(corpus), "--one", work, "--steps", str(steps)]
    found = subprocess.run(command, stdout=subprocess.PIPE, env=os.environ, check=True)
    one: dict[str, float] = json.loads(found.stdout.splitlines()[-1])
    return one


# --- all of them ------------------------------------------------------------------------------------


def told(name: str, values: Iterable[float | str]) -> str:
    return f"{name:22}" + "".join(f"{one:>14}" if isinstance(one, str) else f"{one:14,.1f}" for one in values)


def compare(work: str, small: Path, large: Path, steps: int, factors: bool) -> bool:
    both = f"both x {TIMES}"
    plan = [("small", small, steps), (both, large, TIMES * steps), ("small again", small, steps)]
    if factors:
        plan += [(f"corpus x {TIMES}", large, steps), (f"steps x {TIMES}", small, TIMES * steps)]
        plan += [("small once more", small, steps)]
    found: dict[str, dict[str, float]] = {}
    for name, corpus, count in plan:
        found[name] = measure(work, corpus, count)
        if len(found) == 1:
            print("\n" + told(work, [one + UNITS.get(one, "") for one in found[name]]))
        print(told(name, found[name].values()), flush=True)
    base, good = [one for name, one in found.items() if name.startswith("small")], True
    for fact in COMPARED:
        values = [one[fact] for one in base]
        mean = sum(values) / len(values)
        if not mean:
            continue  # no device, or no processor time to speak of
        ratio, spread = found[both][fact] / mean, (max(values) - min(values)) / mean
        good &= abs(ratio - 1) <= ALLOWED or fact not in DECIDING
        print(f"  {fact}: {both} has {ratio:.1%} of what the small ones have; those differ by {spread:.1%}")
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="?", help="a prepared corpus; invented text without one")
    parser.add_argument("--works", default="gpt,bert")
    parser.add_argument("--steps", type=int, default=60, help="of the small run, above START")
    parser.add_argument("--factors", action="store_true", help="also the corpus alone and the steps alone")
    parser.add_argument("--megabytes", type=float, default=MEGABYTES, help="of invented text")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # this process is one run of this work
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(one_run(asked.one, Path(asked.corpus), asked.steps)))
        return
    if asked.steps < 2 * START:
        parser.error(f"--steps must be at least {2 * START}: the clock starts at step {START}")
    with tempfile.TemporaryDirectory() as folder:
        large = Path(asked.corpus) if asked.corpus else invented(Path(folder), asked.megabytes)
        small = thinned(large, Path(folder) / "small")
        totals = [Corpus.open(one).total for one in (small, large)]
        print(
            f"{describe_hardware()}, {describe_versions()}; "
            f"{asked.steps} steps on {totals[0]:,} tokens, and each x {TIMES}"
        )
        print(f"(the large corpus holds {totals[1]:,} tokens)", flush=True)
        good = [compare(work, small, large, asked.steps, asked.factors) for work in asked.works.split(",")]
    print(f"\n{'the same within' if all(good) else 'NOT the same within'} {ALLOWED:.0%}")
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()

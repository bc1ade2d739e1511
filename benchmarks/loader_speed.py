"""What building batches costs: tokens a second of one loader process, a recipe, on this machine's CPU. No GPU needed.

    python benchmarks/loader_speed.py                             # random words: sequences of full length
    python benchmarks/loader_speed.py --corpus FOLDER             # a prepared corpus: its natural lengths
    python benchmarks/loader_speed.py --corpus FOLDER --pool 4    # and through 4 processes, as for a GPU
    python benchmarks/loader_speed.py --only electra-128 --profile

A GPU is never starved if its own tokens a second are below these times `train.workers`. The last column is a hash of
everything in the first steps: a change that makes batches cheaper must leave it as it is.
"""

from __future__ import annotations

import argparse
import cProfile
import hashlib
import platform
import pstats
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from training_speed.workloads import random_corpus

from etude.nn.packed import Layout
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.text.corpus.corpus import Corpus
from etude.train import schedule
from etude.train.loader import Loader, Step

HASHED = 3  # steps whose content is told


@dataclass(frozen=True)
class Work:
    name: str
    recipe: str
    vocab: int
    length: int
    tokens: int  # of a step
    sentence: str | None = None  # the sentence task, where it is not the recipe's


WORKS = (
    Work("electra-128", "electra-small", 30_522, 128, 65_536),
    Work("bert-128", "bert-base", 30_522, 128, 32_768, "none"),
    Work("bert-512", "bert-base", 30_522, 512, 32_768, "none"),
    Work("bert-next-128", "bert-base", 30_522, 128, 32_768, "next"),
    Work("bert-next-512", "bert-base", 30_522, 512, 32_768, "next"),
    Work("albert-order-512", "albert-base", 30_000, 512, 32_768, "order"),
    Work("gpt2-1024", "gpt2", 50_257, 1024, 32_768),
)


def loader_of(work: Work, corpus: Corpus, workers: int = 0) -> Loader:
    """The loader that training has, with a model of one layer: batches do not depend on its depth."""
    settings: dict[str, Any] = {
        "model.vocab": corpus.tokenizer.vocab,
        "model.layers": 1,
        "objective.length": work.length,
        "train.batch_tokens": work.tokens,
        "train.steps": 10**6,
    }
    if work.sentence is not None:
        settings["objective.sentence"] = work.sentence
    recipe = Recipe.load(work.recipe, settings).resolve(vocab=corpus.tokenizer.vocab)
    _, objective = build_learner(recipe, corpus.tokenizer)
    rows, train = objective.rows(corpus, 0), recipe.train
    return Loader(
        objective,
        rows,
        seed=train.seed,
        batch_rows=lambda step: schedule.batch_rows(train, rows.row_tokens, step),
        rows_before=lambda step: schedule.rows_before(train, rows.row_tokens, step),
        micro_tokens=train.micro_tokens,
        workers=workers,
        processes=workers > 0,
    )


def content(value: Any) -> Iterator[bytes]:
    """Every array and number of a batch, in the order of its fields."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        array = value.numpy() if isinstance(value, torch.Tensor) else value
        # as whole numbers where they are: a narrower type of the same values is the same batch
        yield np.ascontiguousarray(array, np.int64 if array.dtype.kind in "iub" else None).tobytes()
    elif hasattr(value, "__dataclass_fields__"):
        skipped = {"cache"} if isinstance(value, Layout) else set()
        for entry in fields(value):
            if entry.name not in skipped:
                yield from content(getattr(value, entry.name))
    else:
        yield repr(value).encode()


def hash_of(steps: list[Step]) -> str:
    digest = hashlib.sha256()
    for step in steps:
        for batch in step.batches:
            for part in content(batch):
                digest.update(part)
    return digest.hexdigest()[:12]


def rate(loader: Loader, seconds: float) -> tuple[float, float]:
    """Tokens a second of one process and the milliseconds of a step, once pages and caches are warm.

    By the clock of the process, the system's part included: who else computes on the machine does not count.
    """
    loader.step(0)
    tokens, number, begun = 0, 1, time.process_time()
    while time.process_time() - begun < seconds or number < 4:
        tokens += loader.step(number).tokens
        number += 1
    spent = time.process_time() - begun
    return tokens / spent, 1000 * spent / (number - 1)


def pool_rate(loader: Loader, seconds: float) -> float:
    """Tokens a second as a consumer that does nothing else gets them from the processes."""
    steps = loader.steps(0, 10**6)
    for _ in range(2 * loader.workers):  # started, and every slot written once
        next(steps)
    tokens, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        tokens += next(steps).tokens
    found = tokens / (time.perf_counter() - begun)
    steps.close()
    return found


def profiled(loader: Loader) -> None:
    with cProfile.Profile() as profile:
        for number in range(10):
            loader.step(number)
    pstats.Stats(profile).sort_stats("tottime").print_stats(25)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="names, separated by commas")
    parser.add_argument("--corpus", help="a prepared corpus; random words in one long document unless given")
    parser.add_argument("--seconds", type=float, default=3.0, help="of measuring each")
    parser.add_argument("--pool", type=int, default=0, help="also through so many processes")
    parser.add_argument("--profile", action="store_true", help="print where the time of ten steps goes")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    given = Corpus.open(asked.corpus) if asked.corpus else None
    print(f"{platform.machine()}, numpy {np.__version__}, {'natural' if given else 'full'} lengths")
    print(f"{'work':18} {'tokens/s':>12} {'ms/step':>8} {'of a pool':>12}  content")
    for work in WORKS:
        if asked.only and work.name not in asked.only.split(","):
            continue
        if given is None and work.sentence in ("next", "order"):
            continue  # such a task needs several documents
        corpus = given or random_corpus(work.vocab, 8 * work.tokens)
        loader = loader_of(work, corpus)
        hashed = hash_of([loader.step(number) for number in range(HASHED)])
        found, spent = rate(loader, asked.seconds)
        pooled = (
            f"{pool_rate(loader_of(work, corpus, asked.pool), asked.seconds):12,.0f}" if asked.pool else f"{'-':>12}"
        )
        print(f"{work.name:18} {found:12,.0f} {spent:8.1f} {pooled}  {hashed}", flush=True)
        if asked.profile:
            profiled(loader)


if __name__ == "__main__":
    main()

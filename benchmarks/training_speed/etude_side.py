"""Our side of the benchmark of training speed: the loop of a recipe, its speed and where its time goes."""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.text.corpus.corpus import Corpus
from etude.train.loop import Loop
from training_speed.workloads import WARM, Work, random_corpus, timed


def etude_loop(
    work: Work, dropout: float, device: torch.device, precision: str, folder: Path, corpus: Corpus | None = None
) -> Loop:
    """Our loop on this work. Without a corpus, on sequences of full length; with one, on its natural lengths."""
    full, corpus = corpus is None, corpus or random_corpus(work.vocab, 40 * work.tokens)
    vocab = corpus.tokenizer.vocab
    settings: dict[str, Any] = {
        "model.vocab": vocab,
        "model.dropout": dropout,
        "model.embedding_dropout": dropout,
        "model.attention_dropout": dropout,
        "objective.length": work.length,
        "train.batch_tokens": work.tokens,
        "train.steps": 10**6,
        "train.minutes": None,
        "train.precision": precision,
        "train.device": device.type,
        "train.log_every": 10**6,
        "train.workers": None if device.type == "cuda" else 0,
    }
    if work.peer in ("bert", "albert"):  # what the peers train: the masked language model alone
        settings |= {"objective.sentence": "none", "model.pooler": False}
    if work.peer == "bert":  # and with its GELU, the exact one: the recipe has that of BERT's own code
        settings |= {"model.activation": "gelu"}
    if work.peer != "gpt2" and full:
        settings |= {"objective.short_rate": 0.0}
    if work.small:
        settings |= {"model.layers": 4, "model.width": 256, "model.heads": 4, "model.context": 128}
    recipe = Recipe.load(work.recipe, settings).resolve(vocab=vocab)
    model, objective = build_learner(recipe, corpus.tokenizer)
    return Loop(folder, model, objective, objective.rows(corpus, 0), recipe.train, total=10**6, device=device)


def etude_speed(
    work: Work,
    dropout: float,
    steps: int,
    device: torch.device,
    precision: str,
    corpus: Corpus | None = None,
    profile: bool = False,
) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        loop = etude_loop(work, dropout, device, precision, Path(folder), corpus)
        batches, waited = loop.loader.steps(0, 10**6), [0.0]

        def step() -> None:
            started = time.perf_counter()
            batch = next(batches)
            waited[0] += time.perf_counter() - started
            loop.advance(batch)

        timed(step, 1, device)  # compiles
        waited[0] = 0.0
        seconds, memory = timed(step, steps, device)
        per_token = loop.state.flops / loop.state.tokens
        if profile:
            print_profile(step)
    return {
        "tokens_per_second": work.tokens / seconds,
        "memory": memory,
        "flops_per_token": per_token,
        "waited": waited[0] / (steps + WARM) / seconds,  # the share of a step spent on waiting for the loader
    }


def print_profile(step: Callable[[], None]) -> None:
    """Where the time of three steps goes: by kernel, and where none was at work."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        for _ in range(3):
            step()
        torch.cuda.synchronize()
    kernels = sorted(
        (e.time_range.start, e.time_range.end, e.name[:60])
        for e in trace.events()
        if e.device_type.name == "CUDA" and not e.name.startswith("##")  # those are what a compiled graph did in all
    )
    taken, waited = defaultdict(list), defaultdict(list)
    last, before = kernels[0][0], ""
    for start, end, name in kernels:
        taken[name].append(max(0.0, end - max(start, last)))
        waited[f"{before} -> {name}"].append(max(0.0, start - last))
        last, before = max(last, end), name
    for title, times_of_name, most in (("kernels", taken, 45), ("nothing at work", waited, 15)):
        total = sum(sum(times) for times in times_of_name.values())
        print(f"{title}: {total / 3e3:.2f} ms a step, {sum(map(len, times_of_name.values())) / 3:.0f} times")
        for name, times in sorted(times_of_name.items(), key=lambda item: -sum(item[1]))[:most]:
            print(f"  {sum(times) / 3e3:8.3f} ms {len(times) / 3:6.1f} x  {name}")

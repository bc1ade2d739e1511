"""Host time of a sharded step: twelve layers of a tiny width on a CPU, where most of a step is Python and dispatch.

    python benchmarks/sharded_host.py                       # one process, FSDP2 by layer, FSDP2 of the whole model
    python benchmarks/sharded_host.py --profile 40          # and the functions that take most of a sharded step

A GPU waits where its host takes longer to launch a step than it takes to compute it. Here the products of a step are
too small to matter, so what differs between the sides is what FSDP2, its hooks and the optimiser ask of the host. Each
side is compiled and has a process of its own; times are CPU time, which other jobs disturb less than the clock.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from training_speed.workloads import random_corpus

from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.train.loop import Loop
from etude.train.parallel import connect

VOCAB, LENGTH, ROWS = 500, 32, 2
SIDES = ("plain", "layer", "model")  # the last two: train.gather of FSDP2 with one rank


def build_recipe(arguments: argparse.Namespace) -> Recipe:
    dropout = {"model.dropout": 0.0, "model.embedding_dropout": 0.0, "model.attention_dropout": 0.0}
    overrides = dropout | {
        "model.vocab": VOCAB, "model.layers": arguments.layers, "model.width": 32, "model.heads": 2,
        "model.context": LENGTH, "objective.length": LENGTH, "objective.row_tokens": LENGTH, "train.steps": 10**6,
        "train.batch_tokens": LENGTH * ROWS * arguments.micro_batches,
        "train.micro_tokens": LENGTH * ROWS if arguments.micro_batches > 1 else None,
        "train.precision": arguments.precision, "train.device": "cpu", "train.log_every": 10**6, "train.workers": 0,
        "train.compile": not arguments.eager, "train.recompute": arguments.recompute, "train.batch_ramp": None,
        "train.gather": "auto" if arguments.side == "plain" else arguments.side,
        "train.parallel": "auto" if arguments.side == "plain" else "fsdp",
        "train.optimizer": arguments.optimizer,
    }  # fmt: skip
    return Recipe.load(arguments.recipe, overrides).resolve(vocab=VOCAB)


def work(arguments: argparse.Namespace) -> None:
    """Take the steps of one side; print the milliseconds of each measurement."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, connect(False, alone=arguments.side != "plain") as ranks:
        recipe = build_recipe(arguments)
        corpus = random_corpus(VOCAB, 64 * LENGTH * ROWS)
        model, objective = build_learner(recipe, corpus.tokenizer)
        rows = objective.rows(corpus, 0)
        loop = Loop(
            Path(folder), model, objective, rows, recipe.train, total=10**6, device=torch.device("cpu"), ranks=ranks
        )
        assert loop.strategy.is_sharded == (arguments.side != "plain")
        batches = loop.loader.steps(0, 10**6)

        def take_steps(count: int) -> float:
            steps = [next(batches) for _ in range(count)]
            started = time.process_time()
            for step in steps:
                loop.advance(step)
            return 1e3 * (time.process_time() - started) / count

        take_steps(5)
        times = [take_steps(10) for _ in range(arguments.turns)]
        print(f"{arguments.side}: {statistics.median(times):.2f} ms a step ({min(times):.2f} to {max(times):.2f})")
        if arguments.profile and arguments.side != "plain":
            profile = cProfile.Profile()
            profile.enable()
            take_steps(20)
            profile.disable()
            pstats.Stats(profile).sort_stats("tottime").print_stats(arguments.profile)
            pstats.Stats(profile).sort_stats("cumtime").print_stats(2 * arguments.profile)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="gpt2")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--recompute", default="none")
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--profile", type=int, default=0, help="print so many functions")
    parser.add_argument("--side", choices=SIDES, help="measure in this process")
    arguments = parser.parse_args()
    if arguments.side:
        work(arguments)
        return
    variables = {
        "WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29577", "TORCHELASTIC_RUN_ID": "benchmark",
    }  # fmt: skip
    print(f"{arguments.recipe}, {arguments.layers} layers, torch {torch.__version__}", flush=True)
    for side in SIDES:
        command = [sys.executable, __file__, *sys.argv[1:], "--side", side]
        subprocess.run(command, env=os.environ | (variables if side != "plain" else {}), check=True)


if __name__ == "__main__":
    main()

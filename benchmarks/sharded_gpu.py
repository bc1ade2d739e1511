"""Sharded training on one card: what FSDP2 costs, whether plans hold, and a 2.7 B model beside a plain FSDP2 script.

    python benchmarks/sharded_gpu.py                        # one H200, under nine minutes
    python benchmarks/sharded_gpu.py --only overhead        # or: plans, large; --shapes bert-base gpt2
    python benchmarks/sharded_gpu.py --small                # on a CPU, at a tiny size: only that everything runs

overhead   BERT-base and GPT-2: FSDP2 with one rank against the plain path, two processes that take turns.
plans      four shapes: the peak and the time of a step that `etude check --nodes 1 --gpus 1` plans, and measured.
large      GPT-3 2.7 B with recompute: memory and tokens a second of Etude and of a plain FSDP2 script (`PlainModel`):
           torch's own layers, compiled block by block, fused AdamW, bf16, the same shapes and recomputation.

Every measurement is a process of its own. Memory is what torch's allocator held at most, once graphs are compiled.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from training_speed.workloads import random_corpus

from etude.pretraining.cluster_check import check_cluster
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.train.loop import Loop
from etude.train.parallel import connect

SMALL_MODEL = {"model.layers": 2, "model.width": 64, "model.heads": 2, "model.context": 64}


@dataclass(frozen=True)
class Shape:
    """A model with the tokens of a step, in so many micro-batches."""

    recipe: str
    vocab: int
    length: int
    rows: int  # of a micro-batch
    micro_batches: int = 1
    settings: dict[str, Any] = field(default_factory=dict)
    small: bool = False

    @property
    def tokens(self) -> int:
        return self.length * self.rows * self.micro_batches

    def overrides(self) -> dict[str, Any]:
        values = {
            "model.vocab": self.vocab, "train.batch_tokens": self.tokens, "train.steps": 10**6,
            "train.micro_tokens": None if self.micro_batches == 1 else self.length * self.rows,
            "train.precision": "float32" if self.small else "bf16", "train.device": "cpu" if self.small else "cuda",
            "train.log_every": 10**6, "train.batch_ramp": None, "train.workers": 0 if self.small else None,
        } | self.settings  # fmt: skip
        return values | (SMALL_MODEL | {"objective.length": 64, "objective.row_tokens": 64} if self.small else {})


BERT = {"objective.length": 512, "objective.sentence": "none", "model.pooler": False, "objective.short_rate": 0.0,
        "model.dropout": 0.0, "model.embedding_dropout": 0.0, "model.attention_dropout": 0.0}  # fmt: skip
GPT2 = {"objective.length": 1024, "model.dropout": 0.0, "model.embedding_dropout": 0.0, "model.attention_dropout": 0.0}
DENSE = {"model.window": None, "objective.length": 2048}
SHAPES = {
    "bert-base": Shape("bert-base", 30_522, 512, 64, settings=BERT),
    "gpt2": Shape("gpt2", 50_257, 1024, 32, settings=GPT2),
    "gpt3-small": Shape("gpt3-small", 50_257, 2048, 16, settings=DENSE),
    "gpt3-medium": Shape("gpt3-medium", 50_257, 2048, 8, 2, DENSE),
    "gpt3-xl": Shape("gpt3-xl", 50_257, 2048, 4, 4, DENSE | {"train.recompute": "attention"}),
    "gpt3-2.7b": Shape("gpt3-2.7b", 50_257, 2048, 8, 2, DENSE | {"train.recompute": "all"}),
}
OVERHEAD, PLANS, LARGE = ("bert-base", "gpt2"), ("gpt3-small", "gpt3-medium", "gpt3-xl", "gpt3-2.7b"), "gpt3-2.7b"


def shape_of(name: str, small: bool) -> Shape:
    shape = SHAPES[name]
    if not small:
        return shape
    return Shape(shape.recipe, 500, 64, 4, shape.micro_batches, dict(shape.settings), small=True)


# --- a plain FSDP2 script ------------------------------------------------------------------------------


class PlainBlock(nn.Module):
    """A pre-norm block of GPT-2 and GPT-3, dense, with torch's own attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        q, k, v = (
            part.view(rows, length, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        attention = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attention.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class PlainModel(nn.Module):
    """Tables, blocks that are computed again in the backward pass, and logits by the table of tokens."""

    def __init__(self, vocab: int, layers: int, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(PlainBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        from torch.utils.checkpoint import checkpoint

        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        logits = F.linear(self.norm(x)[:, :-1], self.tokens.weight)
        return F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())


def plain_step(shape: Shape, device: torch.device) -> Callable[[], None]:
    """Return a function that takes a step of the plain script."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    settings = Recipe.load(shape.recipe, shape.overrides()).resolve(vocab=shape.vocab).model.model_dump()
    model = PlainModel(shape.vocab, settings["layers"], settings["width"], settings["heads"], shape.length).to(device)
    dtype = torch.float32 if shape.small else torch.bfloat16
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for block in model.blocks:
        if not shape.small:
            block.compile()
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    generator = torch.Generator().manual_seed(0)

    def take_step() -> None:
        for _ in range(shape.micro_batches):
            tokens = torch.randint(shape.vocab, (shape.rows, shape.length), generator=generator)
            (model(tokens.to(device)) / shape.micro_batches).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return take_step


# --- a process that is measured -------------------------------------------------------------------------


def work(arguments: argparse.Namespace) -> None:
    """Take the steps of each line of the input, and answer with seconds a step and the peak of memory."""
    shape = shape_of(arguments.shape, arguments.small)
    device = torch.device("cpu" if arguments.small else "cuda")
    is_sharded = arguments.side != "single"
    with tempfile.TemporaryDirectory() as folder, connect(device.type == "cuda", alone=is_sharded) as ranks:
        if arguments.side == "plain":
            take_step = plain_step(shape, device)
        else:
            overrides = shape.overrides() | {"train.parallel": "fsdp" if is_sharded else "auto"}
            recipe = Recipe.load(shape.recipe, overrides).resolve(vocab=shape.vocab)
            corpus = random_corpus(shape.vocab, 8 * shape.tokens)
            model, objective = build_learner(recipe, corpus.tokenizer)
            rows = objective.rows(corpus, 0)
            loop = Loop(Path(folder), model, objective, rows, recipe.train, total=10**6, device=device, ranks=ranks)
            assert loop.strategy.is_sharded == is_sharded
            batches = loop.loader.steps(0, 10**6)

            def take_step() -> None:
                loop.advance(next(batches))

        def measure(steps: int) -> dict[str, float]:
            if device.type == "cuda":
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
            started = time.perf_counter()
            for _ in range(steps):
                take_step()
            if device.type == "cuda":
                torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
            return {"seconds": (time.perf_counter() - started) / steps, "peak": peak}

        measure(3 if arguments.small else 8)  # compiles, and records what is recorded
        print("ready", flush=True)
        for line in sys.stdin:
            print(json.dumps(profile(take_step) if line.strip() == "profile" else measure(int(line))), flush=True)


def profile(take_step: Callable[[], None], steps: int = 4) -> dict[str, Any]:
    """Return how many milliseconds of a step the card computes, of how many, in how many kernels and copies.

    And the longest pauses between two of them, with the one that each ends with.
    """
    if not torch.cuda.is_available():
        return {"busy": 0.0, "whole": 0.0, "kernels": 0.0, "pauses": []}
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(steps):
            take_step()
        torch.cuda.synchronize()
    events = [event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    spans = sorted((event.time_range.start, event.time_range.end, event.name) for event in events)
    busy, end, pauses = 0.0, spans[0][0], []
    for start, stop, name in spans:  # streams overlap
        pauses.append(((start - end) / 1e3, name[:60]))
        busy, end = busy + max(0.0, stop - max(start, end)), max(end, stop)
    return {
        "busy": busy / 1e3 / steps, "whole": (end - spans[0][0]) / 1e3 / steps, "kernels": len(events) / steps,
        "pauses": sorted(pauses, reverse=True)[: 3 * steps],
    }  # fmt: skip


class Side:
    """A process that is measured, seen from outside."""

    def __init__(self, shape: str, side: str, small: bool) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        variables = {
            "WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "benchmark",
        }  # fmt: skip
        command = [sys.executable, __file__, "--shape", shape, "--side", side, *(["--small"] if small else [])]
        self.name = f"{shape} ({side})"
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | variables
        )

    def wait(self) -> Side:
        if self._read() != "ready":
            raise SystemExit(f"{self.name} did not start")
        return self

    def measure(self, steps: int | Literal["profile"]) -> dict[str, float]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        values: dict[str, float] = json.loads(self._read())
        return values

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _read(self) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(("ready", "{")):
                return line.strip()
        raise SystemExit(f"{self.name} ended early, with {self.process.wait()}")


# --- what is measured -----------------------------------------------------------------------------------


def measure_overheads(names: list[str], small: bool) -> dict[str, dict[str, Any]]:
    """FSDP2 with one rank against the plain path for each shape, in turns."""
    sides = {name: [Side(name, side, small) for side in ("single", "fsdp")] for name in names}  # all compile at once
    for side in chain.from_iterable(sides.values()):
        side.wait()  # nothing is measured while another one compiles
    return {name: measure_overhead(name, pair, small) for name, pair in sides.items()}


def measure_overhead(name: str, sides: list[Side], small: bool) -> dict[str, Any]:
    steps, turns = (2, 2) if small else (20, 8)
    seconds: list[list[float]] = [[], []]
    for turn in range(turns):
        for index in (0, 1) if turn % 2 == 0 else (1, 0):
            seconds[index].append(sides[index].measure(steps)["seconds"])
    profiles = [side.measure("profile") for side in sides]
    for side in sides:
        side.close()
    ratios = np.array(seconds[0]) / np.array(seconds[1])
    tokens = shape_of(name, small).tokens
    result = {"plain": tokens / np.median(seconds[0]), "fsdp": tokens / np.median(seconds[1])}
    result["ratio"] = float(np.median(ratios))
    print(
        f"overhead {name}: plain {result['plain']:,.0f} tokens/s, FSDP2 with one rank {result['fsdp']:,.0f}: "
        f"{100 * result['ratio']:.1f} % of it (turns {' '.join(f'{ratio:.3f}' for ratio in ratios)}; goal 97 %)",
        flush=True,
    )
    for words, step in zip(("plain", "FSDP2"), profiles, strict=True):
        print(f"  {words}: computes for {step['busy']:.2f} of {step['whole']:.2f} ms, {step['kernels']:.0f} kernels")
        print(*(f"    paused for {pause:.2f} ms before {kernel}" for pause, kernel in step["pauses"]), sep="\n")
    return result


def compare_plan(name: str, small: bool) -> dict[str, Any]:
    """Peak and time of a step: foretold and measured."""
    shape = shape_of(name, small)
    check = check_cluster(
        shape.recipe, random_corpus(shape.vocab, 8 * shape.tokens), shape.overrides(), nodes=1, gpus=1, gpu="h200",
        fake=False,
    )  # fmt: skip
    policy = shape.settings.get("train.recompute", "none")
    plan = next(plan for plan in check.plans if plan.recompute == policy)
    side = Side(name, "fsdp", small).wait()
    measured = side.measure(2 if small else 8)
    side.close()
    planned_seconds = shape.tokens / plan.tokens_per_second
    peak = plan.memory.total / max(1, measured["peak"]) - 1
    seconds = planned_seconds / measured["seconds"] - 1
    print(
        f"plan {name}, recompute={policy}: peak {plan.memory.total / 1e9:.2f} GB planned, {measured['peak'] / 1e9:.2f} "
        f"measured ({100 * peak:+.1f} %, goal 10); step {1e3 * planned_seconds:.1f} ms planned, "
        f"{1e3 * measured['seconds']:.1f} measured ({100 * seconds:+.1f} %, goal 20); train.gather="
        f"{'model' if plan.gathers_model else 'layer'}; {plan.memory}",
        flush=True,
    )
    return measured | {"planned_peak": plan.memory.total, "planned_seconds": planned_seconds}


def compare_large(own: dict[str, Any] | None, small: bool) -> dict[str, Any]:
    """The largest shape beside a plain script."""
    steps, tokens = 2 if small else 8, shape_of(LARGE, small).tokens
    if own is None:
        side = Side(LARGE, "fsdp", small).wait()
        own = side.measure(steps)
        side.close()
    side = Side(LARGE, "plain", small).wait()
    plain = side.measure(steps)
    side.close()
    print(
        f"large {LARGE}, recompute=all: Etude {tokens / own['seconds']:,.0f} tokens/s, {own['peak'] / 1e9:.1f} GB; "
        f"plain FSDP2 script {tokens / plain['seconds']:,.0f} tokens/s, {plain['peak'] / 1e9:.1f} GB",
        flush=True,
    )
    return {"own": own, "plain": plain}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("overhead", "plans", "large"))
    parser.add_argument("--shapes", nargs="+", help="of overhead and plans: these alone")
    parser.add_argument("--small", action="store_true", help="tiny models on a CPU")
    parser.add_argument("--out", type=Path, help="a JSON file for the numbers")
    parser.add_argument("--shape", help=argparse.SUPPRESS)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        work(arguments)
        return
    started, small = time.perf_counter(), arguments.small
    device = "CPU" if small else torch.cuda.get_device_name()
    print(f"{device}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}", flush=True)
    results: dict[str, Any] = {}

    def is_selected(part: str) -> bool:
        return arguments.only in (None, part)

    def selected(names: tuple[str, ...]) -> list[str]:
        return [name for name in names if arguments.shapes is None or name in arguments.shapes]

    if is_selected("overhead"):
        results["overhead"] = measure_overheads(selected(OVERHEAD), small)
    if is_selected("plans"):
        results["plans"] = {name: compare_plan(name, small) for name in selected(PLANS)}
    if is_selected("large"):
        results["large"] = compare_large(results.get("plans", {}).get(LARGE), small)
    print(f"{time.perf_counter() - started:.0f} s", flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()

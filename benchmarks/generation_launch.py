"""How the kernels of a step of generation are best divided among programs: all of a grid, timed on a GPU.

    python benchmarks/generation_launch.py                              # GPT-2 small, 1 to 128 texts, three minutes
    python benchmarks/generation_launch.py --rows 128 --only products   # or: attention

products    the linear layers of nn/triton/few_rows_linear.py: today's division, the best of the grid, and torch's own
            product with the operations around it. Each layer has its own weights, as in a model: they come from memory.
attention   nn/triton/step_attention.py: today's block and warps, and the best, by the number of cached tokens.

Calls are recorded as a CUDA graph and replayed; medians of nine, in turns. Kernels are compiled by several processes
first.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from etude.nn.triton import few_rows_linear, step_attention
from etude.nn.triton.few_rows_linear import Launch

T = TypeVar("T")

LAYERS, WIDTH, HEADS, ROOM = 12, 768, 12, 512
PRODUCTS = {  # inputs, outputs, norm, activation, residual sum
    "queries, keys, values": (WIDTH, 3 * WIDTH, True, None, False),
    "attention's output": (WIDTH, WIDTH, False, None, True),
    "feed-forward, up": (WIDTH, 4 * WIDTH, True, "gelu_tanh", False),
    "feed-forward, down": (4 * WIDTH, WIDTH, False, None, True),
    "logits": (WIDTH, 50_304, False, None, False),
}
GRID = list(itertools.product((16, 32, 64, 128), (16, 32, 64, 128), (64, 128, 256), (4, 8), (3, 4)))
MAX_TILE = 64 * 128  # sums of a program, which lie in registers
ATTENTION_GRID = list(itertools.product((16, 32, 64, 128), (1, 2, 4, 8)))


def record(call: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """A graph of some calls, whose kernels are compiled first."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def time_graph(graph: torch.cuda.CUDAGraph, calls: int) -> float:
    """Microseconds of a call."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    stop.record()
    stop.synchronize()
    return 1e3 * start.elapsed_time(stop) / calls


def measure(graphs: dict[str, torch.cuda.CUDAGraph], calls: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(9):
        for name, graph in graphs.items():
            times[name].append(time_graph(graph, calls))
    return {name: statistics.median(values) for name, values in times.items()}


class Product:
    """A linear layer of all layers of the model, on some rows."""

    def __init__(self, name: str, rows: int, layers: int | None = None) -> None:
        inputs, outputs, has_norm, self.activation, adds = PRODUCTS[name]
        options = {"dtype": torch.bfloat16, "device": "cuda"}
        self.rows, self.inputs = rows, inputs
        layers = layers or (3 if name == "logits" else LAYERS)
        self.weights = [torch.randn(outputs, inputs, **options) / inputs**0.5 for _ in range(layers)]
        self.bias, self.gain = torch.randn(outputs, **options), torch.randn(inputs, **options)
        self.x = torch.randn(rows, inputs, **options)
        self.operand = torch.randn(rows, outputs, **options) if adds else None
        self.has_norm = has_norm and rows <= few_rows_linear.MAX_NORM_ROWS

    def multiply(self, weight: Tensor) -> Tensor:
        norm = ("layer", self.gain, self.gain, 1e-5) if self.has_norm else (None, None, None, 0.0)
        return few_rows_linear.multiply(self.x, weight, self.bias, *norm, self.activation, self.operand, None)

    def multiply_plainly(self, weight: Tensor) -> Tensor:
        x = F.layer_norm(self.x, (self.inputs,), self.gain, self.gain) if self.has_norm else self.x
        y = F.linear(x, weight, self.bias)
        y = y if self.activation is None else F.gelu(y, approximate="tanh")
        return y if self.operand is None else y + self.operand

    def with_launch(self, launch: Launch, call: Callable[[], T]) -> T:
        """What a call gives where products are divided in this way."""
        choose = few_rows_linear.choose_launch
        few_rows_linear.choose_launch = lambda *_: launch  # type: ignore[assignment]
        try:
            return call()
        finally:
            few_rows_linear.choose_launch = choose


def list_launches(rows: int) -> list[Launch]:
    memory = few_rows_linear._shared_memory(torch.device("cuda"))
    launches = [Launch(*values) for values in GRID]
    return [
        launch
        for launch in launches
        if launch.rows <= max(16, rows)
        and launch.rows >= min(rows, 64)
        and launch.rows * launch.columns <= MAX_TILE
        and launch.stages * launch.depth * (launch.rows + launch.columns) * 2 <= memory
    ]


@torch.inference_mode()
def compile_launch(name: str, rows: int, launch: Launch) -> str | None:
    """Compile a division into Triton's cache; returns what is wrong with it."""
    product = Product(name, rows, layers=1)
    weight = product.weights[0]
    try:
        result, expected = (
            product.with_launch(launch, lambda: product.multiply(weight)),
            product.multiply_plainly(weight),
        )
    except Exception as problem:
        return str(problem).splitlines()[0][:80]
    return "wrong results" if (result - expected).abs().max() > 0.1 * expected.abs().max() else None


def try_launches(name: str, rows: int, pool: ProcessPoolExecutor) -> None:
    launches = list_launches(rows)
    problems = list(pool.map(compile_launch, itertools.repeat(name), itertools.repeat(rows), launches))
    product = Product(name, rows)

    def ours() -> None:
        for weight in product.weights:
            product.multiply(weight)

    def theirs() -> None:
        for weight in product.weights:
            product.multiply_plainly(weight)

    graphs = {"today": record(ours), "torch": record(theirs)}
    for launch, problem in zip(launches, problems, strict=True):
        if problem is not None:
            print(f"  {tuple(launch)}: {problem}")
        else:
            graphs[str(tuple(launch))] = product.with_launch(launch, lambda: record(ours))
    times = measure(graphs, len(product.weights))
    best = sorted((each for each in times if each not in ("today", "torch")), key=times.__getitem__)[:3]
    memory = few_rows_linear._shared_memory(product.x.device)
    today = few_rows_linear.choose_launch(rows, product.inputs, len(product.bias), product.has_norm, memory)
    weight = product.weights[0]
    least = (weight.nbytes + product.x.nbytes + 2 * rows * len(weight)) / 4.8e6  # µs at the memory's speed
    print(
        f"{rows} rows, {name}: today {tuple(today)} {times['today']:.1f} µs, torch {times['torch']:.1f}, "
        f"memory {least:.1f}; best " + ", ".join(f"{each} {times[each]:.1f}" for each in best),
        flush=True,
    )


def try_attention(rows: int, place: int) -> None:
    size = WIDTH // HEADS
    options = {"dtype": torch.bfloat16, "device": "cuda"}
    new = [torch.randn(rows, HEADS, size, **options) for _ in range(3)]
    buffers = [[torch.randn(rows, ROOM, HEADS, size, **options) for _ in range(2)] for _ in range(LAYERS)]
    places = torch.full((rows,), place, dtype=torch.int64, device="cuda")

    def ours() -> None:
        for keys, values in buffers:
            step_attention.attend_step(*new, keys, values, places, None, None)

    few, many = step_attention.FEW, step_attention.MANY
    graphs = {"today": record(ours)}
    for choice in ATTENTION_GRID:
        step_attention.FEW = step_attention.MANY = choice
        try:
            graphs[str(choice)] = record(ours)
        finally:
            step_attention.FEW, step_attention.MANY = few, many
    times = measure(graphs, LAYERS)
    best = sorted((each for each in times if each != "today"), key=times.__getitem__)[:3]
    today = few if rows * HEADS <= step_attention.FEW_PROGRAMS else many
    least = 2 * 2 * rows * place * WIDTH / 4.8e6
    print(
        f"{rows} rows, attention to {place} tokens: today {today} {times['today']:.1f} µs, memory {least:.1f}; best "
        + ", ".join(f"{each} {times[each]:.1f}" for each in best),
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 128])
    parser.add_argument("--places", type=int, nargs="+", default=[60, 180])
    parser.add_argument("--only", choices=["products", "attention"])
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("A GPU is needed.")
    with torch.inference_mode(), ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        for rows in reversed(options.rows):
            if options.only != "products":
                for place in options.places:
                    try_attention(rows, place)
            if options.only != "attention":
                for name in PRODUCTS:
                    try_launches(name, rows, pool)


if __name__ == "__main__":
    main()

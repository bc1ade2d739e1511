"""Tokens drawn from a softmax: noise for every token, and in two steps with noise for blocks and for one block.

    python benchmarks/token_draws.py [--slots 1228] [--vocab 30522] [--rounds 7] [--threads 1]

ELECTRA draws a token for each masked place of a step (nn/draws.py). Both sides take turns in one process, over the same
logits; `product` is the product that gives the logits at a width of 64, for scale. CPU seconds on a CPU, so that a busy
machine does not count; on a GPU the time of its own clock, each side compiled.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from etude.chance import gumbel_at, place_of, random_bits
from etude.nn.draws import draw_tokens
from etude.nn.fusion import fuse
from etude.nn.precision import upcast

PART = 2**23  # numbers at once on a CPU


def draw_plainly(product: Tensor, bias: Tensor, keys: Tensor, vocab: int) -> Tensor:
    """The largest of all noisy logits."""
    places = place_of(torch.arange(vocab, device=product.device))
    if product.is_cuda:
        return _largest(product, bias, keys, places)
    rows = max(1, PART // vocab)
    parts = zip(product.split(rows), keys.split(rows), strict=True)
    return torch.cat([_largest(part, bias, key, places) for part, key in parts])


@fuse
def _largest(product: Tensor, bias: Tensor, keys: Tensor, places: Tensor) -> Tensor:
    return (upcast(product[:, : len(places)]) + bias + gumbel_at(keys[:, None], places)).argmax(-1)


def measure(work: Callable[[], Tensor], is_gpu: bool) -> float:
    """Seconds of one call."""
    if not is_gpu:
        start = time.process_time()
        work()
        return time.process_time() - start
    start_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start_event.record()
    for _ in range(20):
        work()
    end_event.record()
    torch.cuda.synchronize()
    return start_event.elapsed_time(end_event) / 20e3


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slots", type=int, default=1228, help="masked places: 15 % of 8,192 tokens")
    parser.add_argument("--vocab", type=int, default=30522)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    is_gpu = arguments.device.startswith("cuda")
    dtype, columns = (torch.bfloat16, -(-arguments.vocab // 64) * 64) if is_gpu else (torch.float32, arguments.vocab)
    states = torch.randn(arguments.slots, 64, device=arguments.device, dtype=dtype)
    table = torch.randn(columns, 64, device=arguments.device, dtype=dtype)
    product, bias = states @ table.t() / 4, torch.randn(arguments.vocab, device=arguments.device)
    keys = torch.from_numpy(random_bits(1, np.arange(arguments.slots)).view(np.int64)).to(arguments.device)
    sides: dict[str, Callable[[], Tensor]] = {
        "product": lambda: states @ table.t(),
        "every token": lambda: draw_plainly(product, bias, keys, arguments.vocab),
        "two steps": lambda: draw_tokens(product, bias, keys, arguments.vocab, 1.0),
    }
    for work in sides.values():
        work()  # compiles
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(arguments.rounds):
        for name, work in sides.items():
            times[name].append(measure(work, is_gpu))
    for name, values in times.items():
        print(f"{name:12} {1e3 * statistics.median(values):9.3f} ms  {' '.join(f'{1e3 * one:.3f}' for one in values)}")
    ratios = [plain / quick for plain, quick in zip(times["every token"], times["two steps"], strict=True)]
    print(f"{statistics.median(ratios):.1f} x ({min(ratios):.1f} to {max(ratios):.1f}), {torch.__version__}, "
          f"{arguments.slots} slots, {arguments.vocab} tokens, {arguments.device}")  # fmt: skip


if __name__ == "__main__":
    main()

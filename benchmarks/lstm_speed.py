"""A layer of LSTMs by its implementations: the plain scan, our kernels, and cuDNN without clips as a yardstick.

    python benchmarks/lstm_speed.py                                   # the biLM of 256 x 512 on a GPU, small on a CPU
    python benchmarks/lstm_speed.py --width 512 --cells 4096 --lanes 384 --length 20      # ELMo's size
    python benchmarks/lstm_speed.py --ragged                          # lengths from 1 on, as in fine-tuning
    TRITON_INTERPRET=1 python benchmarks/lstm_speed.py --lanes 3 --length 2 --rounds 1    # our kernels without a GPU

Forward and backward pass of one layer in one direction, from inputs to the gradients of all weights, by the clock of
the host: what a step waits for, launches included. All take turns, in another order every time, so that what else the
machine does meets all of them. The table has the median of the turns and their quartiles, and the ratio to the plain
scan, turn by turn. cuDNN cannot clip, so it computes less; where nothing is clipped it is what `path` chooses.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from etude.nn.lstm import LSTM, Path
from etude.nn.packed import Layout
from etude.runs.model_card import describe_hardware, describe_versions

CLIP = 3.0  # ELMo's


class Contender(NamedTuple):
    name: str
    path: Path
    clip: float | None


CONTENDERS = (
    Contender("plain scan", "scan", CLIP),
    Contender("kernels", "fused", CLIP),
    Contender("torch's own, no clips", "torch", None),
)


class Work(NamedTuple):
    """What every contender does in a call."""

    width: int
    cells: int
    lengths: list[int]
    device: torch.device
    is_half: bool

    def make_call(self, contender: Contender) -> Callable[[], list[Tensor]]:
        """Return a function that passes forward and backward, and gives back outputs and gradients."""
        torch.manual_seed(0)
        layer = LSTM(
            self.width, self.cells, projection=self.width if self.width < self.cells else None,
            cell_clip=contender.clip, projection_clip=contender.clip,
        ).to(self.device)  # fmt: skip
        bounds = np.concatenate([[0], np.cumsum(self.lengths)])
        layout = Layout.from_bounds(bounds, max(self.lengths)).to(self.device)
        x = torch.randn(layout.total, self.width, device=self.device, requires_grad=True)
        grad = torch.randn(layout.total, self.width, device=self.device)

        def call() -> list[Tensor]:
            with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.is_half):
                outputs, _ = layer(x, layout, path=contender.path)
            return [outputs, *torch.autograd.grad(outputs, [x, *layer.parameters()], grad.to(outputs.dtype))]

        return call

    def seconds(self, call: Callable[[], list[Tensor]], calls: int) -> float:
        self.wait()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        self.wait()
        return (time.perf_counter() - start) / calls

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def peak_megabytes(self, call: Callable[[], list[Tensor]]) -> float:
        """Return the most memory of a call beyond what was there before it; 0 on a CPU, where nobody counts it."""
        if self.device.type != "cuda":
            return 0.0
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        call()
        return (torch.cuda.max_memory_allocated(self.device) - before) / 1e6


def compare(work: Work, contenders: tuple[Contender, ...], rounds: int, calls: int) -> None:
    functions = [work.make_call(contender) for contender in contenders]
    results = [function() for function in functions]  # compiles, and warms up
    for contender, result in zip(contenders, results, strict=True):
        pairs = zip(result, results[0], strict=True)
        error = max(float((left - right).detach().norm() / right.detach().norm()) for left, right in pairs)
        if contender.clip == CLIP and error > (0.02 if work.is_half else 1e-4):
            raise SystemExit(f"{contender.name}: off by {error:.1e} from the plain scan")
    memory = [work.peak_megabytes(function) for function in functions]
    seconds = np.empty((rounds, len(contenders)))
    for turn in range(rounds):
        for number in np.random.default_rng(turn).permutation(len(contenders)):
            seconds[turn, number] = work.seconds(functions[number], calls)
    tokens = sum(work.lengths)
    print(f"\n{'bf16' if work.is_half else 'float32'}: {len(work.lengths)} sequences, {tokens} tokens")
    print(f"{'':24}{'ms a call':>10}  {'quartiles':>19}{'tokens/s':>12}{'times plain':>13}{'MB':>9}")
    for number, contender in enumerate(contenders):
        low, middle, high = np.percentile(seconds[:, number], [25, 50, 75])
        ratio = np.median(seconds[:, 0] / seconds[:, number])
        print(
            f"{contender.name:24}{1e3 * middle:10.2f}  {1e3 * low:8.2f} … {1e3 * high:8.2f}{tokens / middle:12,.0f}"
            f"{ratio:13.2f}{memory[number]:9.0f}",
            flush=True,
        )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, help="256 on a GPU, 32 on a CPU unless given")
    parser.add_argument("--cells", type=int, help="512 on a GPU, 64 on a CPU unless given")
    parser.add_argument("--lanes", type=int, help="sequences: 1024 on a GPU, 16 on a CPU unless given")
    parser.add_argument("--length", type=int, help="tokens of each: 32 on a GPU, 8 on a CPU unless given")
    parser.add_argument("--ragged", action="store_true", help="lengths from 1 to --length")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--calls", type=int, default=3, help="of a turn")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    is_gpu = device.type == "cuda"
    print(describe_hardware(), describe_versions(), sep="\n")
    lanes, length = arguments.lanes or (1024 if is_gpu else 16), arguments.length or (32 if is_gpu else 8)
    lengths = np.random.default_rng(0).integers(1, length + 1, lanes).tolist() if arguments.ragged else [length] * lanes
    runs_kernels = is_gpu or os.environ.get("TRITON_INTERPRET") == "1"
    if not runs_kernels:
        print("no GPU: our kernels are left out (TRITON_INTERPRET=1 interprets them)")
    contenders = tuple(contender for contender in CONTENDERS if runs_kernels or contender.path != "fused")
    for is_half in (True, False) if is_gpu else (False,):
        sizes = arguments.width or (256 if is_gpu else 32), arguments.cells or (512 if is_gpu else 64)
        compare(Work(*sizes, lengths, device, is_half), contenders, arguments.rounds, arguments.calls)


if __name__ == "__main__":
    main()

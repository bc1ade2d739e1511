"""A step of AdamW over GPT-2's 124 million float32 parameters on a GPU: our kernel against torch's fused one.

    python benchmarks/adam_step.py [--json out.json]

Milliseconds a step, and TB/s of the traffic that a step cannot do without (28 bytes a parameter: p, g, m, v read, p,
m, v written); with and without the division of gradients by a number on the device, which is how
clipping rides along. `host` is the time until the call returns: what a small model waits for. Then our kernel in
chunks and warps of other sizes, and how far the two are apart after ten steps.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from tiled_attention import milliseconds
from torch import nn

from etude.train import adam_kernel, optimizers

LAYERS, WIDTH, VOCAB, CONTEXT = 12, 768, 50257, 1024
VARIANTS = [(512, 2), (512, 4), (1024, 2), (1024, 4), (1024, 8), (2048, 4), (2048, 8), (4096, 8), (4096, 16)]


def shapes() -> list[tuple[int, ...]]:
    block = [(WIDTH,), (WIDTH,), (3 * WIDTH, WIDTH), (3 * WIDTH,), (WIDTH, WIDTH), (WIDTH,)]
    block += [(WIDTH,), (WIDTH,), (4 * WIDTH, WIDTH), (4 * WIDTH,), (WIDTH, 4 * WIDTH), (WIDTH,)]
    return [(VOCAB, WIDTH), (CONTEXT, WIDTH), *block * LAYERS, (WIDTH,), (WIDTH,)]


class Side:
    """Parameters with gradients, and an optimiser over them."""

    def __init__(self, own: bool) -> None:
        generator = torch.Generator("cuda").manual_seed(0)
        self.learnt = [nn.Parameter(torch.randn(s, device="cuda", generator=generator) * 0.02) for s in shapes()]
        for parameter in self.learnt:
            parameter.grad = torch.randn(parameter.shape, device="cuda", generator=generator) * 1e-3
        groups: list[dict[str, Any]] = [
            {"params": [p for p in self.learnt if p.dim() > 1], "weight_decay": 0.1},
            {"params": [p for p in self.learnt if p.dim() == 1], "weight_decay": 0.0},
        ]
        kind = optimizers.AdamW if own else torch.optim.AdamW
        self.optimizer = kind(groups, lr=6e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)

    def measure(self, scaled: bool) -> dict[str, float]:
        scale = torch.ones((), device="cuda") if scaled else None  # torch writes what it divides: not by a real number
        self.optimizer.grad_scale = scale  # type: ignore[attr-defined]
        taken = milliseconds(self.optimizer.step)
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(5):  # few enough not to fill the queue
            self.optimizer.step()
        host = (time.perf_counter() - begun) / 5 * 1e3
        torch.cuda.synchronize()
        return {"ms": taken, "host": host}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="also write the rows")
    asked = parser.parse_args()
    sides = {"torch": Side(False), "ours": Side(True)}
    count = sum(parameter.numel() for parameter in sides["ours"].learnt)
    for _ in range(10):
        for side in sides.values():
            side.optimizer.step()
    pairs = zip(sides["ours"].learnt, sides["torch"].learnt, strict=True)
    apart = max(float((a - b).abs().max()) for a, b in pairs)
    print(f"{count:,} parameters; after 10 steps the two are at most {apart:.1e} apart")
    rows: list[dict[str, Any]] = []

    def show(name: str, scaled: bool, found: dict[str, float], **more: int) -> None:
        rows.append({"step": name, "scaled": scaled, **more, **found, "TB/s": 28e-9 * count / found["ms"]})
        size = f"{more['block']:5} x {more['warps']:2}" if more else ""
        print(
            f"{name:6} {'divided' if scaled else '':8} {size:11} {found['ms']:7.3f} ms {rows[-1]['TB/s']:6.2f} TB/s "
            f"{found['host']:7.3f} ms host",
            flush=True,
        )

    for scaled in (False, True):
        for name, side in sides.items():
            show(name, scaled, side.measure(scaled))
    for block, warps in VARIANTS:
        adam_kernel.BLOCK, adam_kernel.WARPS = block, warps
        show("ours", True, sides["ours"].measure(True), block=block, warps=warps)
    if asked.json:
        report = {"torch": torch.__version__, "device": torch.cuda.get_device_name(), "parameters": count, "rows": rows}
        Path(asked.json).write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()

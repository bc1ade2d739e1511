"""Loss and gradient of a softmax over a vocabulary on one GPU: our kernel, the compiler's form, and memory's own time.

    python benchmarks/loss_kernel.py [--rows 16384] [--vocab 50257] [--json out.json]

Milliseconds in bf16. `ours` is nn/triton/cross_entropy.py, `compiled` the formula as torch compiles it; `copied` is
the time of reading and writing as many numbers once. Errors are those of the loss and of its derivative against the
formula in float64, over the first rows.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from tiled_attention import milliseconds
from torch import Tensor

from etude.nn.losses import IGNORE, _losses_and_grad
from etude.nn.triton.cross_entropy import loss_and_grad_

COLUMNS = 64  # as nn/losses.py pads them
SHOWN = 64  # rows that are computed in float64, too


def inputs(rows: int, vocab: int, device: str) -> tuple[Tensor, Tensor]:
    """(C, V') logits, (C,) targets of which every ninth is unused."""
    torch.manual_seed(0)
    logits = torch.randn(rows, vocab + -vocab % COLUMNS, device=device, dtype=torch.bfloat16)
    targets = torch.randint(0, vocab, (rows,), device=device)
    targets[::9] = IGNORE
    return logits, targets


def errors(logits: Tensor, targets: Tensor, vocab: int) -> tuple[float, float]:
    wanted, slope = _losses_and_grad(logits.double(), None, targets, vocab, True)
    found = logits.clone()
    losses = loss_and_grad_(found, targets, vocab)
    assert slope is not None
    return float((losses.double().sum() - wanted.sum()).abs() / wanted.sum()), float(
        (found.double() - slope).abs().max()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=16_384)
    parser.add_argument("--vocab", type=int, default=50_257)
    parser.add_argument("--json", help="also write the row")
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("there is no GPU here")
    logits, targets = inputs(asked.rows, asked.vocab, "cuda")
    off = errors(logits[:SHOWN], targets[:SHOWN], asked.vocab)
    other = torch.empty_like(logits)
    compiled = torch.compile(_losses_and_grad, dynamic=False)
    row = {
        "ours": milliseconds(loss_and_grad_, other.copy_(logits), targets, asked.vocab),
        "compiled": milliseconds(compiled, logits, None, targets, asked.vocab, True),
        "copied": milliseconds(other.copy_, logits),
        "errors": off,
    }
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {asked.rows} x {asked.vocab}: {row}")
    if asked.json:
        Path(asked.json).write_text(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()

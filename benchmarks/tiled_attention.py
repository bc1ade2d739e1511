"""Attention kernels beside each other on one GPU: ours (nn/triton/tiled_attention.py) at several tiles, flash, cuDNN.

    python benchmarks/tiled_attention.py [--search] [--json out.json]

Milliseconds of one layer, forward and backward, BERT-base's and GPT-2's shapes (12 heads of 64, 32,768 tokens a batch),
from queries, keys and values as the projection leaves them to a gradient that lies the same way; and the largest
difference from a float64 computation, as a share of the largest value, beside flash attention's own. With --search
every tile of a list is timed for each of the three kernels; the fastest are what nn/triton/tiled_attention.py names.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from etude.nn.attention.dispatch import attend_reference
from etude.nn.packed import Layout

HEADS, SIZE, TOKENS = 12, 64, 32_768
# rows, columns, warps, stages, stages of masked loops, registers (0: as many as the compiler likes), held in registers
TILES = {
    "FORWARD": [(64, 64, 4, 3, 1, 128), (64, 64, 4, 3, 1, 0), (64, 64, 4, 3, 3, 128), (64, 64, 4, 4, 1, 128),
                (64, 64, 4, 2, 1, 128), (64, 32, 4, 3, 1, 96), (64, 128, 4, 2, 1, 168), (128, 64, 8, 3, 1, 128),
                (128, 128, 8, 3, 1, 0)],
    "QUERY_GRAD": [(64, 32, 4, 3, 3, 0), (64, 32, 4, 3, 1, 0), (64, 32, 4, 4, 3, 0), (64, 64, 4, 3, 3, 0),
                 (64, 64, 4, 3, 1, 128), (64, 64, 4, 2, 3, 0), (128, 64, 8, 3, 1, 128), (128, 32, 8, 3, 3, 0)],
    "KEY_GRAD": [(32, 64, 4, 3, 1, 128), (32, 64, 4, 3, 1, 0), (32, 64, 4, 3, 3, 0), (32, 64, 4, 4, 1, 0),
               (64, 64, 4, 3, 1, 168), (64, 64, 4, 2, 1, 0), (32, 128, 8, 3, 1, 128), (32, 64, 4, 3, 1, 168, True)],
}  # fmt: skip


def cases() -> dict[str, tuple[list[int], int, bool]]:
    """Lengths, the bound on them, and whether causal."""
    chance, mixed = np.random.default_rng(0), []
    while sum(mixed) < TOKENS:
        mixed.append(min(int(chance.integers(128, 513)), TOKENS - sum(mixed)))
    return {
        "512": ([512] * 64 + [0] * 32, 512, False),
        "1024 causal": ([1024] * 32, 1024, True),
        "mixed 512": (mixed, 512, False),
        "mixed 512 causal": (mixed, 512, True),
    }


def milliseconds(function: Callable[..., Any], *inputs: Any, times: int = 20) -> float:
    for _ in range(3):
        function(*inputs)
    begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begun.record()  # type: ignore[no-untyped-call]
    for _ in range(times):
        function(*inputs)
    ended.record()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    return float(begun.elapsed_time(ended)) / times


def inputs(lengths: list[int], device: str = "cuda") -> tuple[Tensor, Tensor, Layout]:
    torch.manual_seed(0)
    layout = Layout.from_bounds(np.concatenate([[0], np.cumsum(lengths)]), max(lengths)).to(device)
    qkv = torch.randn(layout.total, 3, HEADS, SIZE, device=device, dtype=torch.bfloat16)
    return qkv, torch.randn(layout.total, HEADS, SIZE, device=device, dtype=torch.bfloat16), layout


def flash(qkv: Tensor, grad: Tensor, layout: Layout, longest: int, causal: bool) -> tuple[Tensor, Tensor]:
    query, key, value = qkv.unbind(1)
    bounds, aten = layout.bounds, torch.ops.aten
    out, sums, seed, offset, _ = aten._flash_attention_forward(
        query, key, value, bounds, bounds, longest, longest, 0.0, causal, False
    )
    parts = aten._flash_attention_backward(
        grad, query, key, value, out, sums, bounds, bounds, longest, longest, 0.0, causal, seed, offset
    )
    return out, torch.stack(parts, 1)


def cudnn(qkv: Tensor, grad: Tensor, length: int, causal: bool) -> tuple[Tensor, Tensor]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    qkv = qkv.detach().requires_grad_()
    query, key, value = (part.view(-1, length, HEADS, SIZE).transpose(1, 2) for part in qkv.unbind(1))
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
        out = mixed.transpose(1, 2).reshape(-1, HEADS, SIZE)
        (back,) = torch.autograd.grad(out, qkv, grad)
    return out, back


def ours(qkv: Tensor, grad: Tensor, layout: Layout, longest: int, causal: bool) -> tuple[Tensor, Tensor]:
    from etude.nn.triton.tiled_attention import attend_tiled, attend_tiled_backward

    out, sums = attend_tiled(qkv, layout.bounds, layout.bounds, longest, causal, 0.0)
    return out, attend_tiled_backward(grad, qkv, out, sums, layout.bounds, layout.bounds, longest, causal, 0.0)


def truth(qkv: Tensor, grad: Tensor, layout: Layout, causal: bool) -> tuple[Tensor, Tensor]:
    exact = qkv.double().requires_grad_()
    out = attend_reference(*exact.unbind(1), layout, causal=causal)[0]
    return out.detach(), torch.autograd.grad(out, exact, grad.double())[0]


def error(found: tuple[Tensor, Tensor], exact: tuple[Tensor, Tensor]) -> float:
    return max(float((a.double() - b).abs().max() / b.abs().max()) for a, b in zip(found, exact, strict=True))


def search(name: str) -> list[dict[str, Any]]:
    """Every tile of one kernel, the others left alone; a tile that cannot be compiled is left out."""
    from etude.nn.triton import tiled_attention

    rows = []
    kept = cut(name, ())
    for tile in TILES[name]:
        cut(name, tile)
        row: dict[str, Any] = {"kernel": name, "tile": tile}
        for case, (lengths, longest, causal) in cases().items():
            qkv, grad, layout = inputs(lengths)
            try:
                out, sums = tiled_attention.attend_tiled(qkv, layout.bounds, layout.bounds, longest, causal, 0.0)
                if name == "FORWARD":
                    row[case] = milliseconds(
                        tiled_attention.attend_tiled, qkv, layout.bounds, layout.bounds, longest, causal, 0.0
                    )
                else:
                    row[case] = milliseconds(
                        tiled_attention.attend_tiled_backward,
                        grad,
                        qkv,
                        out,
                        sums,
                        layout.bounds,
                        layout.bounds,
                        longest,
                        causal,
                        0.0,
                    )
            except Exception as problem:  # of the compiler: too many registers, too much shared memory
                row[case] = float("nan")
                row["problem"] = repr(problem)[:80]
        rows.append(row)
    vars(tiled_attention).update(kept)
    return rows


def cut(name: str, tile: tuple[int, ...]) -> dict[str, Any]:
    """How a kernel was cut, causal or not; then it is cut so, if anything is given."""
    from etude.nn.triton import tiled_attention

    before = {one: value for one, value in vars(tiled_attention).items() if one in (name, f"{name}_CAUSAL")}
    if tile:
        vars(tiled_attention).update(dict.fromkeys(before, tiled_attention.Tiles(*tile)))
    return before


def compile_ahead(task: tuple[str, tuple[int, ...]]) -> None:
    """One tile into Triton's cache, in a process of its own: compiling is the slow part."""
    cut(*task)
    for causal in (False, True):
        qkv, grad, layout = inputs([256])
        with contextlib.suppress(Exception):  # told by the search itself
            ours(qkv, grad, layout, 512, causal)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--search", action="store_true", help="time every tile of each kernel")
    parser.add_argument("--processes", type=int, default=8, help="that compile ahead of the search")
    parser.add_argument("--json", help="also write the rows")
    asked = parser.parse_args()
    found: dict[str, Any] = {"torch": torch.__version__, "search": [], "beside": []}
    if asked.search:
        tasks = [(name, tile) for name, tiles in TILES.items() for tile in tiles]
        with multiprocessing.get_context("spawn").Pool(asked.processes) as pool:
            pool.map(compile_ahead, tasks, chunksize=1)
        for name in TILES:
            for row in search(name):
                found["search"].append(row)
                times = "  ".join(f"{case} {row[case]:.3f}" for case in cases())
                print(f"{name:9} {row['tile']!s:26} {times} {row.get('problem', '')}", flush=True)
    print(f"{'case':18} {'ours':>7} {'flash':>7} {'cuDNN':>7}   error: ours, flash")
    for case, (lengths, longest, causal) in cases().items():
        qkv, grad, layout = inputs(lengths)
        row = {"case": case, "ours": milliseconds(ours, qkv, grad, layout, longest, causal)}
        row["flash"] = milliseconds(flash, qkv, grad, layout, longest, causal)
        row["cudnn"] = float("nan")
        if len(set(lengths) - {0}) == 1:
            row["cudnn"] = milliseconds(cudnn, qkv, grad, longest, causal)
        few, few_grad, few_layout = inputs([length for length in lengths if length][:6])
        exact = truth(few, few_grad, few_layout, causal)
        errors = [error(side(few, few_grad, few_layout, longest, causal), exact) for side in (ours, flash)]
        again = [ours(qkv, grad, layout, longest, causal) for _ in range(2)]
        row["repeats"] = bool(all(torch.equal(a, b) for a, b in zip(*again, strict=True)))
        row["errors"] = errors
        found["beside"].append(row)
        print(
            f"{case:18} {row['ours']:7.3f} {row['flash']:7.3f} {row['cudnn']:7.3f}   {errors[0]:.1e} {errors[1]:.1e}"
            f"  repeats to the bit: {row['repeats']}",
            flush=True,
        )
    if asked.json:
        Path(asked.json).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

"""Three attention paths, one meaning: the proof on a GPU, and what each path costs.

    python benchmarks/attention_gpu.py [--device cuda] [--json out.json]

For causal, full and banded attention over several layouts it compares every fast path with the reference, which
runs in float64 on the same (rounded) inputs: outputs, and gradients of queries, keys and values. A path in
bfloat16 passes when its error is at most twice that of the plain formula in bfloat16 (which rounds the
weights too), a float32 path when it is below 1e-5, both relative to the largest value. It then times forward and
backward. Exit code 1 where a path fails. Without a CUDA device the variable-length path is skipped, and said so.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from etude.nn.attention.dispatch import attend, choose_path
from etude.nn.packed import Layout

Row = dict[str, Any]
MASKS: dict[str, tuple[bool, int | None]] = {
    "full": (False, None),
    "causal": (True, None),
    "full band 32": (False, 32),
    "causal band 32": (True, 32),
}

PATHS = [("grouped", torch.float32), ("grouped", torch.bfloat16), ("varlen", torch.bfloat16)]


def layouts(large: bool) -> dict[str, np.ndarray]:
    """Lengths of the sequences of a batch; with empty and one-token ones among them."""
    draw = np.random.default_rng(0)
    scale = 8 if large else 1
    return {
        "equal 128": np.full(32 * scale, 128),
        "mixed 1-128": np.r_[0, 1, draw.integers(1, 129, 64 * scale - 2), 0],
        "mixed 1-512": np.r_[draw.integers(1, 513, 16 * scale), 1, 0, 0],
        **({"equal 1024": np.full(32, 1024)} if large else {}),
    }


def layout_of(lengths: np.ndarray, device: str) -> Layout:
    return Layout.from_bounds(np.concatenate([[0], np.cumsum(lengths)]), int(lengths.max())).to(device)


def outcome(parts: Tensor, slope: Tensor, layout: Layout, causal: bool, window: int | None, path: str) -> list[Tensor]:
    """The output and the gradient of the projection, in float64."""
    leaf = parts.detach().clone().requires_grad_()
    query, key, value = leaf.unbind(1)
    out = attend(query, key, value, layout, causal=causal, window=window, path=path)
    (gradient,) = torch.autograd.grad(out, leaf, slope.to(out.dtype))
    return [out.detach().double(), *gradient.double().unbind(1)]


def errors(found: list[Tensor], expected: list[Tensor]) -> list[float]:
    return [float((one - other).abs().max() / other.abs().max()) for one, other in zip(found, expected, strict=True)]


def seconds(work: Callable[[], object], device: str) -> float:
    """The best of several, each long enough to time."""
    best = float("inf")
    for _ in range(2):
        work()
    for _ in range(5 if device == "cuda" else 2):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(3):
            work()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - start) / 3)
    return best


def timed(parts: Tensor, layout: Layout, causal: bool, window: int | None, path: str, dropout: float = 0.0) -> float:
    leaf = parts.detach().clone().requires_grad_()
    slope = torch.ones_like(leaf[:, 0])

    def step() -> None:
        query, key, value = leaf.unbind(1)
        out = attend(query, key, value, layout, causal=causal, window=window, path=path, dropout=dropout)
        torch.autograd.grad(out, leaf, slope)

    return 1e3 * seconds(step, parts.device.type)


def prove(device: str, heads: int, size: int) -> tuple[list[Row], bool]:
    rows: list[Row] = []
    for shape, lengths in layouts(large=False).items():
        layout = layout_of(lengths, device)
        generator = torch.Generator().manual_seed(1)
        exact = torch.randn(layout.total, 3, heads, size, generator=generator).to(device)
        slope = torch.randn(layout.total, heads, size, generator=generator).to(device)
        for mask, (causal, window) in MASKS.items():
            for path, dtype in PATHS if device == "cuda" else PATHS[:1]:  # bfloat16 is emulated on many a CPU
                if path == "varlen" and choose_path(device, dtype, size, window=window) != "varlen":
                    rows.append(
                        {"layout": shape, "mask": mask, "path": path, "dtype": "bfloat16", "verdict": "skipped"}
                    )
                    continue
                rounded, slope_rounded = exact.to(dtype), slope.to(dtype)
                expected = outcome(rounded.double(), slope_rounded.double(), layout, causal, window, "reference")
                found = errors(outcome(rounded, slope_rounded, layout, causal, window, path), expected)
                limit = [1e-5] * 4
                if dtype == torch.bfloat16:
                    plain = outcome(rounded, slope_rounded, layout, causal, window, "reference")
                    limit = [2 * error + 1e-5 for error in errors(plain, expected)]
                passed = all(error <= bound for error, bound in zip(found, limit, strict=True))
                names = ("out", "query", "key", "value")
                rows.append(
                    {"layout": shape, "mask": mask, "path": path, "dtype": str(dtype).removeprefix("torch.")}
                    | {f"error_{name}": error for name, error in zip(names, found, strict=True)}
                    | {f"limit_{name}": bound for name, bound in zip(names, limit, strict=True)}
                    | {"verdict": "equal" if passed else "DIFFERS"}
                )
    return rows, all(row["verdict"] != "DIFFERS" for row in rows)


def repeats(device: str, heads: int, size: int) -> dict[str, bool]:
    """Whether gradients come out the same bit for bit under torch's deterministic mode."""
    layout = layout_of(layouts(large=device == "cuda")["mixed 1-512"], device)
    parts = torch.randn(layout.total, 3, heads, size, device=device)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    found = {}
    for path, dtype in (("grouped", torch.float32), ("varlen", torch.bfloat16)):
        if path == "varlen" and choose_path(device, dtype, size) != "varlen":
            continue
        given = parts.to(dtype)
        first = outcome(given, given[:, 0], layout, True, None, path)
        found[path] = all(
            torch.equal(one, other)
            for _ in range(3)
            for one, other in zip(first, outcome(given, given[:, 0], layout, True, None, path), strict=True)
        )
    torch.use_deterministic_algorithms(before)
    return found


def compare(device: str, heads: int, size: int) -> list[Row]:
    """Milliseconds of forward and backward; the reference only where it is not absurdly slow."""
    rows: list[Row] = []
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    for shape, lengths in layouts(large=device == "cuda").items():
        layout = layout_of(lengths, device)
        parts = torch.randn(layout.total, 3, heads, size, device=device).to(dtype)
        for mask, (causal, window) in MASKS.items():
            row: Row = {"layout": shape, "tokens": layout.total, "mask": mask}
            if choose_path(device, dtype, size, window=window) == "varlen":
                row["varlen"] = timed(parts, layout, causal, window, "varlen")
            row["grouped"] = timed(parts, layout, causal, window, "grouped")
            row["grouped, dropout"] = timed(parts, layout, causal, window, "grouped", dropout=0.1)
            if layout.total <= 8192 and mask == "full":
                row["reference"] = timed(parts, layout, causal, window, "reference")
            rows.append(row)
    return rows


def table(rows: list[Row], columns: list[str]) -> None:
    def cell(value: object) -> str:
        return f"{value:.3g}" if isinstance(value, float) else "-" if value is None else str(value)

    lines = [columns, *([cell(row.get(column)) for column in columns] for row in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    for line in lines:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
    print()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--size", type=int, default=64, help="width of a head")
    parser.add_argument("--json", type=Path, help="write everything here as well")
    options = parser.parse_args()
    device, heads, size = options.device, options.heads, options.size
    torch.backends.cuda.matmul.allow_tf32 = False  # float32 means float32 in a proof
    name = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"{name}; torch {torch.__version__}; {heads} heads of {size}; {time.strftime('%Y-%m-%d')}\n")
    if device == "cpu":
        print("No CUDA device: the variable-length path is skipped here; grouped and reference are compared.\n")
    proof, passed = prove(device, heads, size)
    table(proof, ["layout", "mask", "path", "dtype", "error_out", "error_query", "error_key", "error_value", "verdict"])
    same = repeats(device, heads, size)
    for path, equal in same.items():
        print(f"{path}: gradients {'repeat bit for bit' if equal else 'DIFFER'} in deterministic mode")
    print("\nMilliseconds, forward and backward:")
    times = compare(device, heads, size)
    table(times, ["layout", "tokens", "mask", "varlen", "grouped", "grouped, dropout", "reference"])
    passed = passed and all(same.values())
    print("All paths agree with the reference." if passed else "A PATH DIFFERS from the reference: see above.")
    if options.json:
        found = {"device": name, "torch": torch.__version__, "proof": proof, "repeats": same, "times": times}
        options.json.write_text(json.dumps(found, indent=1))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())

"""What the device could do: dense matrix products, measured here and now.

The share of peak in a progress line is FLOPs counted by the objective, divided by time and by the rate of the best
large matrix product this device reaches in this precision. It is measured, not looked up: a table knows neither this
clock nor this number of threads. The published figures below stand here to check a measurement against: an H200
reaches about 80 % of its own.
"""

from __future__ import annotations

import time
import warnings
from functools import cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from etude.train.cpu_state import onednn_enabled

Precision = Literal["float32", "bf16"]

SECONDS = 0.3  # for a measurement, once the device is awake
LARGEST = 8192  # a side of the largest product: beyond it a GPU is no faster, and three of them must fit beside a model

# Dense bf16 FLOP/s (tensor cores, no sparsity) from the vendors' data sheets; a key's words stand in the device's name.
PUBLISHED_BF16 = {
    "H200": 989.5e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989.5e12,  # SXM
    "A100": 312e12,
    "A10G": 70e12,
    "A10": 125e12,
    "A40": 149.7e12,
    "RTX A6000": 154.8e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "RTX 4090": 165.2e12,
    "RTX 3090": 71e12,
}


def published_peak(name: str) -> float | None:
    """The data sheet's dense bf16 FLOP/s of a GPU by torch's name for it; None where it is not in the table."""
    words = set(name.replace("-", " ").split())
    return next((peak for key, peak in PUBLISHED_BF16.items() if set(key.split()) <= words), None)


def measure_peak(device: torch.device | str, precision: Precision) -> float:
    """FLOP/s of the best dense product found within SECONDS; measured once a process, device and setting."""
    return _measure(torch.device(device), precision, torch.get_num_threads(), torch.get_float32_matmul_precision())


@cache
def _measure(device: torch.device, precision: Precision, threads: int, matmul: str) -> float:
    """`threads` and `matmul` are not read, but change the answer: so it is kept under them."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    best, size = 0.0, 1024 if device.type == "cuda" else 128
    left, right, out = _square(size, device, dtype)
    _timed(left, right, out)  # the first product starts libraries, which can take longer than the measurement
    deadline = time.perf_counter() + SECONDS
    while True:
        last = _timed(left, right, out)
        best = max(best, 2.0 * size**3 / last)
        now = time.perf_counter()
        if now + last > deadline:
            return best
        # twice the size takes about eight times as long; twice that, so that it can also be repeated
        if size < LARGEST and now + 16 * last < deadline:
            size *= 2
            left, right, out = _square(size, device, dtype)
            _timed(left, right, out)  # chooses a kernel, fills caches


def _square(size: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    # random, because products of zeros draw less power and let a GPU clock higher than training ever will
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return left, right, torch.empty_like(left)


def _timed(left: Tensor, right: Tensor, out: Tensor) -> float:
    if left.device.type == "cuda":
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        torch.mm(left, right, out=out)
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3
    started = time.perf_counter()
    torch.mm(left, right, out=out)
    return time.perf_counter() - started


@cache
def is_bf16_faster_on_cpu() -> bool:
    """Whether training gains from bf16 on this CPU, by trying: chips with AMX or bf16 products do, others lose much.

    A linear layer under autocast, forward and backward, with all the casts of a real one. A quarter must be gained:
    norms, softmax and the optimiser stay in float32 and dilute it.
    """
    with onednn_enabled(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says once that a chip has no bf16; that is what is being asked
        for width in (
            32,
            64,
            128,
            256,
        ):  # upwards: a chip without it can be 400 times slower, found out in milliseconds
            plain = reduced = float("inf")
            for _ in range(4):  # in turn, and the best of each: a busy machine disturbs both
                plain, reduced = min(plain, _layer(width, bf16=False)), min(reduced, _layer(width, bf16=True))
            if reduced > 4 * plain:  # casts alone cost less than that, even in small layers
                return False
    return reduced * 1.25 < plain


def _layer(width: int, bf16: bool) -> float:
    """Seconds of the second of two passes; the first one starts libraries."""
    states = torch.randn(width, width, requires_grad=True)
    weight = torch.randn(4 * width, width, requires_grad=True)
    for _ in range(2):
        started = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            out = F.linear(states, weight)
        torch.autograd.grad(out.sum(), [states, weight])
    return time.perf_counter() - started


def resolve_precision(precision: Literal["auto", "float32", "bf16"], device: torch.device | str) -> Precision:
    """What `train.precision=auto` means on a device."""
    if precision != "auto":
        return precision
    device = torch.device(device)
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    return "bf16" if device.type == "cpu" and is_bf16_faster_on_cpu() else "float32"

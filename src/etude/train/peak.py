"""Peak speed of a device: dense matrix products, measured on the spot.

The share of peak in a progress line is FLOPs counted by the objective, divided by time and by the speed of the fastest
large matrix product this device reaches in this precision. It is measured, not looked up: a table knows neither the
clock nor the number of threads. The published figures below serve to check a measurement: an H200 reaches about 80 % of
its own.
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
from etude.train.device import parse_device

Precision = Literal["float32", "bf16"]

SECONDS = 0.3  # of a measurement, after warming up
# A CPU that others use, too: threads of a small product wait for each other for longer than it takes, and what was
# measured is the waiting. So products of this size are timed at least so often, however late it is.
BUSY_CPU_SIZE, BUSY_CPU_REPEATS = 1024, 3
MAX_SIZE = 8192  # of a square matrix: beyond it a GPU is no faster, and three of them must fit beside a model

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
    """Look up the data sheet's dense bf16 FLOP/s of a GPU by torch's name for it; None where it is not in the table."""
    words = set(name.replace("-", " ").split())
    return next((peak for key, peak in PUBLISHED_BF16.items() if set(key.split()) <= words), None)


def measure_peak(device: torch.device | str, precision: Precision) -> float:
    """Return the FLOP/s of the fastest dense product within SECONDS; measured once a process, device and setting."""
    return _measure(torch.device(device), precision, torch.get_num_threads(), torch.get_float32_matmul_precision())


@cache
def _measure(device: torch.device, precision: Precision, threads: int, matmul: str) -> float:
    """Measure; `threads` and `matmul` are not read, but change the result, so they are part of the cache's key."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    best, size = 0.0, 1024 if device.type == "cuda" else 128
    left, right, out = _make_matrices(size, device, dtype)
    _time_product(left, right, out)  # the first product loads libraries, which can take longer than the measurement
    deadline = time.perf_counter() + SECONDS
    while True:
        seconds = _time_product(left, right, out)
        best = max(best, 2.0 * size**3 / seconds)
        now = time.perf_counter()
        if now + seconds > deadline:
            break
        # twice the size takes about eight times as long; twice that, so that it can also be repeated
        if size < MAX_SIZE and now + 16 * seconds < deadline:
            size *= 2
            left, right, out = _make_matrices(size, device, dtype)
            _time_product(left, right, out)  # chooses a kernel, fills caches
    if device.type == "cpu" and precision == "float32" and size < BUSY_CPU_SIZE:
        matrices = _make_matrices(BUSY_CPU_SIZE, device, dtype)
        seconds = min(_time_product(*matrices) for _ in range(BUSY_CPU_REPEATS))
        best = max(best, 2.0 * BUSY_CPU_SIZE**3 / seconds)
    return best


def _make_matrices(size: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    # random, because products of zeros draw less power and let a GPU clock higher than training ever will
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return left, right, torch.empty_like(left)


def _time_product(left: Tensor, right: Tensor, out: Tensor) -> float:
    if left.device.type == "cuda":
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        stream = torch.cuda.current_stream(left.device)  # the current device may be another GPU
        start.record(stream)
        torch.mm(left, right, out=out)
        end.record(stream)
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3
    started = time.perf_counter()
    torch.mm(left, right, out=out)
    return time.perf_counter() - started


_measured_by_parent: bool | None = None


def take_measurement(is_bf16_faster: bool) -> None:
    """Take a parent's measurement of this CPU: its children would disturb each other's."""
    global _measured_by_parent
    _measured_by_parent = is_bf16_faster


@cache
def is_bf16_faster_on_cpu() -> bool:
    """Whether training is faster in bf16 on this CPU, measured: chips with AMX or bf16 products are, others far slower.

    Times a linear layer under autocast, forward and backward, with all its casts. It must be faster by a quarter:
    norms, softmax and the optimiser stay in float32 and dilute the gain.
    """
    if _measured_by_parent is not None:
        return _measured_by_parent
    with onednn_enabled(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns once that a chip has no bf16, which is what we find out here
        # from small to large: a chip without bf16 can be 400 times slower, which shows in milliseconds
        for width in (32, 64, 128, 256):
            float32 = bf16 = float("inf")
            for _ in range(4):  # in turn, and the best of each: a busy machine disturbs both
                float32, bf16 = min(float32, _time_layer(width, bf16=False)), min(bf16, _time_layer(width, bf16=True))
            if bf16 > 4 * float32:  # casts alone cost less than that, even in small layers
                return False
    return bf16 * 1.25 < float32


def _time_layer(width: int, bf16: bool) -> float:
    """Return the seconds of the second of two passes; the first one loads libraries."""
    states = torch.randn(width, width, requires_grad=True)
    weight = torch.randn(4 * width, width, requires_grad=True)
    for _ in range(2):
        started = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            out = F.linear(states, weight)
        torch.autograd.grad(out.sum(), [states, weight])
    return time.perf_counter() - started


def resolve_precision(precision: Literal["auto", "float32", "bf16"], device: torch.device | str) -> Precision:
    """Return the precision that `train.precision` means on a device: "auto" is bf16 where that is faster."""
    if precision != "auto":
        return precision
    device = parse_device(device)
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    return "bf16" if device.type == "cpu" and is_bf16_faster_on_cpu() else "float32"

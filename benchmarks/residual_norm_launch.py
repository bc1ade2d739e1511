"""How many rows a program of the residual norm's kernels should compute at a time, by width and number of rows.

    python benchmarks/residual_norm_launch.py                    # on a GPU; about a minute
    python benchmarks/residual_norm_launch.py --widths 64 256 --counts 16384

Every division of nn/triton/residual_norm.py is timed in bf16, in the post-LN order with dropout, as BERT and ELECTRA
train: the one that is in use, the one for wide rows, and the fastest. Launches are recorded (CUDA graphs), so that the
host's part is not measured; several sets of tensors take turns, so that a cache does not hold them all. `bytes` is the
time that the traffic alone takes at 4 TB/s. Beside them the attention of ELECTRA-small, whose kernels have the same
names in a profile. Kernels are compiled by several processes first.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch
import triton

from etude.nn.triton import short_attention
from etude.nn.triton.dropout import STEPS
from etude.nn.triton.residual_norm import WIDE, Launch, _backward, _forward, choose_launch, split_width

DROPS = round(0.1 * STEPS)
BYTES_PER_SECOND = 4e12
SETS, LAUNCHES = 4, 12


def forward_launches(width: int) -> list[Launch]:
    """Rows and warps of forward programs: 8 to 32 elements a thread."""
    wanted = [WIDE, choose_launch(width)]
    for elements, warps in ((1024, 2), (1024, 4), (2048, 4), (2048, 8), (4096, 4), (4096, 8)):
        wanted.append(WIDE._replace(rows=max(1, elements // width), warps=warps))
    unique = {(launch.rows, launch.warps): launch for launch in wanted if launch.rows & (launch.rows - 1) == 0}
    return list(unique.values())


def backward_launches(width: int) -> list[Launch]:
    """Rows, warps and stages of backward programs, and how many there are."""
    wanted = [WIDE, choose_launch(width)]
    sizes = ((512, 1), (512, 2), (1024, 2), (1024, 4), (2048, 4), (2048, 8), (4096, 8))
    for (elements, warps), stages in itertools.product(sizes, (2, 4)):
        rows = max(1, elements // width)
        wanted.append(Launch(4, 4, rows, warps, stages, 528))
    unique = {launch[2:]: launch for launch in wanted if launch.back_rows & (launch.back_rows - 1) == 0}
    # the number of programs is a constant of the kernel too: only for some
    for launch in list(unique.values()):
        if launch.back_stages == 4 and launch.back_rows * width in (1024, 2048):
            unique |= {(*launch[2:5], count): launch._replace(programs=count) for count in (264, 1056)}
    return list(unique.values())


def tensors(count: int, width: int) -> dict[str, torch.Tensor]:
    rows = {
        name: torch.randn(count, width, device="cuda", dtype=torch.bfloat16)
        for name in ("residual", "branch", "grad_total", "grad_normed")
    }
    rows |= {name: torch.empty_like(rows["residual"]) for name in ("total", "normed", "out", "grad_branch")}
    rows |= {name: torch.rand(width, device="cuda") + 0.5 for name in ("weight", "bias", "old_weight", "old_bias")}
    rows |= {name: torch.rand(count, device="cuda") for name in ("means", "scales")}
    return rows | {"seed": torch.tensor([7], device="cuda"), "sums": torch.empty(1056 * 3 * width, device="cuda")}


def run_forward(x: dict[str, torch.Tensor], launch: Launch) -> None:
    count, width = x["residual"].shape
    _forward[(triton.cdiv(count, launch.rows),)](
        x["residual"], x["old_weight"], x["old_bias"], x["branch"], x["weight"], x["bias"], x["seed"], x["total"],
        x["normed"], x["means"], x["scales"], count, 1e-12, *(split_width(width) or ()), launch.rows, True, DROPS,
        True, False, num_warps=launch.warps,
    )  # fmt: skip


def run_backward(x: dict[str, torch.Tensor], launch: Launch) -> None:
    count, width = x["residual"].shape
    _backward[(launch.programs,)](
        x["grad_total"], x["grad_normed"], x["total"], x["means"], x["scales"], x["weight"], x["seed"], x["out"],
        x["grad_branch"], x["sums"], count, *(split_width(width) or ()), launch.back_rows, launch.programs,
        launch.back_stages, True, False, DROPS, True, True, False, num_warps=launch.back_warps,
    )  # fmt: skip


def compile_share(widths: list[int], share: int, shares: int) -> int:
    """Compile every `shares`-th kernel, into Triton's cache on disk."""
    jobs = [(width, launch, run) for width in widths for run, launch in kernels(width)]
    for width, launch, run in jobs[share::shares]:
        run(tensors(64, width), launch)
    torch.cuda.synchronize()
    return len(jobs[share::shares])


def kernels(width: int) -> Iterator[tuple[Callable[[dict[str, torch.Tensor], Launch], None], Launch]]:
    yield from ((run_forward, launch) for launch in forward_launches(width))
    yield from ((run_backward, launch) for launch in backward_launches(width))


def microseconds(launches: list[Callable[[], None]]) -> float:
    """Return the GPU's time of a launch: the best of three replays of all of them, recorded."""
    launches[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in launches:
            launch()
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    best = float("inf")
    for _ in range(4):  # the first warms up
        start.record()
        graph.replay()
        stop.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(stop))
    return 1e3 * best / len(launches)


def time_kernel(run: Callable[..., None], sets: list[dict[str, torch.Tensor]], launch: Launch) -> float:
    def on(x: dict[str, torch.Tensor]) -> Callable[[], None]:
        return lambda: run(x, launch)

    return microseconds([on(sets[number % len(sets)]) for number in range(LAUNCHES)])


def check(width: int) -> None:
    """Every division must give the same rows, to a rounding of bf16, and the same sums."""
    x = tensors(1001, width)
    run_forward(x, WIDE)
    expected = x["total"].clone(), x["normed"].clone()
    for launch in forward_launches(width):
        run_forward(x, launch)
        torch.testing.assert_close((x["total"], x["normed"]), expected, rtol=2e-2, atol=2e-2)
    results = []
    for launch in backward_launches(width):
        run_backward(x, launch)
        sums = x["sums"][: launch.programs * 3 * width].view(launch.programs, 3, width).sum(0)
        results.append((x["out"].float().clone(), x["grad_branch"].float().clone(), sums))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=3e-2, atol=3e-2)


def compare(width: int, count: int) -> None:
    sets = [tensors(count, width) for _ in range(SETS if count * width < 2**25 else 2)]
    for name, run, launches, passes in (
        ("forward", run_forward, forward_launches(width), 4),
        ("backward", run_backward, backward_launches(width), 5),
    ):
        part = slice(0, 2) if name == "forward" else slice(2, 6)
        times = {launch[part]: time_kernel(run, sets, launch) for launch in launches}
        best = sorted(times, key=lambda key: times[key])[:4]
        used = choose_launch(width)[part]
        print(
            f"{width:5} x {count:6} {name:8} bytes {passes * 2e6 * width * count / BYTES_PER_SECOND:6.1f} us  wide "
            f"{times[WIDE[part]]:6.1f}  used {used} {times[used]:6.1f}  best "
            + "  ".join(f"{key} {times[key]:.1f}" for key in best),
            flush=True,
        )


def time_attention(heads: int, sequences: int = 128, length: int = 128, size: int = 64) -> None:
    """The attention of a layer of ELECTRA-small (4 heads) or of its generator (1)."""
    tokens = sequences * length
    qkv = torch.randn(tokens, 3, heads, size, device="cuda", dtype=torch.bfloat16)
    grad = torch.randn(tokens, heads, size, device="cuda", dtype=torch.bfloat16)
    bounds = torch.arange(0, tokens + 1, length, device="cuda", dtype=torch.int32)
    out, grad_qkv, seed = torch.empty_like(grad), torch.empty_like(qkv), torch.tensor([7], device="cuda")
    shape, grid = short_attention._shape(qkv, length), (sequences, heads)
    for warps, drops in itertools.product((4, 8), (0, DROPS)):

        def forward(warps: int = warps, drops: int = drops) -> None:
            short_attention._forward[grid](
                qkv, bounds, seed, qkv, qkv, out, size**-0.5, **shape, causal=False, drops=drops, rotates=False,
                num_warps=warps,
            )  # fmt: skip

        def backward(warps: int = warps, drops: int = drops) -> None:
            short_attention._backward[grid](
                grad, qkv, bounds, seed, qkv, qkv, grad_qkv, size**-0.5, **shape, causal=False, drops=drops,
                rotates=False, num_warps=warps,
            )  # fmt: skip

        print(
            f"attention, {heads} heads, {warps} warps, {'with' if drops else 'without'} dropout: forward "
            f"{microseconds([forward] * LAUNCHES):.1f} us, backward {microseconds([backward] * LAUNCHES):.1f} us",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128, 256, 512, 768])
    parser.add_argument("--counts", type=int, nargs="+", default=[8192, 16384, 32768, 131072])
    parser.add_argument("--processes", type=int, default=12, help="that compile")
    arguments = parser.parse_args()
    started = time.perf_counter()
    shares = range(arguments.processes)
    with ProcessPoolExecutor(arguments.processes, mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(compile_share, arguments.widths, share, arguments.processes) for share in shares]
        compiled = sum(job.result() for job in jobs)
    print(f"{torch.cuda.get_device_name()}: {compiled} kernels compiled in {time.perf_counter() - started:.0f} s")
    for heads in (4, 1):
        time_attention(heads)
    # 16,384 x 256 first: ELECTRA-small
    for count, width in sorted(itertools.product(arguments.counts, arguments.widths), key=lambda x: x != (16384, 256)):
        compare(width, count)
    for width in arguments.widths:
        check(width)
    print(f"all divisions agree; {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()

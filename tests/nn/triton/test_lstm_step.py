"""The LSTM whose steps are few Triton kernels, against the plain scan: on a GPU by name, elsewhere interpreted."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from etude.nn import lstm
from etude.nn.fusion import disable_fusion
from etude.nn.lstm import LSTM, LSTMState
from etude.nn.lstm import Path as Implementation
from etude.nn.triton import availability
from tests.nn.test_lstm import make_layout
from tests.nn.triton.launches import Watched, compile_launches

LENGTHS = [3, 7, 1, 0, 5, 7, 2]  # ties, a single token, an empty sequence in the middle
PATHS: tuple[Implementation, Implementation] = ("scan", "fused")
ROUNDING = {"atol": 1e-5, "rtol": 1e-5}  # of float32


def test_in_the_interpreter(in_the_interpreter: Callable[[str], None]) -> None:
    in_the_interpreter(__file__)


def build(size: int, projection: int | None, cell_clip: float | None, projection_clip: float | None) -> LSTM:
    """With weights so large that states reach a clip of 0.3 or so."""
    torch.manual_seed(0)
    layer = LSTM(6, size, projection=projection, cell_clip=cell_clip, projection_clip=projection_clip)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter) * 2 * parameter.shape[-1] ** -0.5)
    return layer


def results(
    layer: LSTM, lengths: list[int], path: Implementation | None, reverse: bool, device: str = "cpu"
) -> list[Tensor]:
    """Outputs, last states, and the gradients of inputs, initial states and all weights."""
    layer, layout = layer.to(device), make_layout(lengths).to(device)
    dtype, draw = layer.input.weight.dtype, torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw).to(device, dtype)

    x = normal(layout.total, layer.inputs).requires_grad_()
    # every other column of a wider tensor: a state need not be contiguous
    carry = LSTMState(*(normal(len(lengths), 2 * width)[:, ::2] for width in (layer.width, layer.cells)))
    carry = LSTMState(*(0.3 * item for item in carry))
    carry = LSTMState(*(item.detach().requires_grad_() for item in carry))
    outputs, final = layer(x, layout, carry, reverse, path)
    weights = normal(layout.total, layer.width), normal(*final.hidden.shape), normal(*final.cell.shape)
    total = sum((left * right).sum() for left, right in zip((outputs, *final), weights, strict=True))
    assert isinstance(total, Tensor)
    return [outputs, *final, *torch.autograd.grad(total, [x, *carry, *layer.parameters()])]


def check_equal(left: list[Tensor], right: list[Tensor]) -> None:
    for actual, expected in zip(left, right, strict=True):
        assert actual.dtype == expected.dtype
        scale = max(1.0, float(expected.detach().abs().max()))
        torch.testing.assert_close(actual / scale, expected / scale, **ROUNDING)


def check_near(actual: list[Tensor], rough: list[Tensor], exact: list[Tensor], factor: float = 1.5) -> None:
    """Within the error that the plain scan has in the same precision itself, or so much more."""
    for left, plain, right in zip(actual, rough, exact, strict=True):
        assert left.dtype == plain.dtype
        error, plain_error = (left.float() - right).norm(), (plain.float() - right).norm()
        assert error <= factor * plain_error + 1e-6 * right.norm()


CASES = {
    "projection and clips": (20, 12, 0.5, 0.3),
    "projection, clipped cells": (20, 12, 0.5, None),
    "projection, clipped states": (20, 12, None, 0.3),
    "projection": (20, 12, None, None),
    "clipped cells": (20, None, 0.5, None),
    "neither": (20, None, None, None),
    "several tiles": (140, 130, 0.5, 0.3),
}


BOTH_WAYS = [*((case, False) for case in CASES), ("projection and clips", True)]


@pytest.mark.interpreted
@pytest.mark.parametrize(("case", "reverse"), BOTH_WAYS)
def test_equals_the_plain_scan(case: str, reverse: bool) -> None:
    size, projection, cell_clip, projection_clip = CASES[case]
    layer = build(size, projection, cell_clip, projection_clip)
    plain = results(layer, LENGTHS, "scan", reverse)
    for clip, states in ((cell_clip, plain[2]), (layer.projection_clip, plain[0])):
        share = 0.0 if clip is None else float((states.abs() >= clip).float().mean())
        assert clip is None or 0.05 < share < 0.95, "the test must reach both sides of the clip"
    check_equal(results(layer, LENGTHS, "fused", reverse), plain)


@pytest.mark.interpreted
@pytest.mark.parametrize("lengths", [[4, 4, 4], [1], [0, 0, 2], [2] * 40])
def test_other_shapes_of_a_batch(lengths: list[int]) -> None:
    """Equal lengths, one token, hardly any, and more rows than a program has."""
    layer = build(20, 12, 0.5, 0.3)
    check_equal(results(layer, lengths, "fused", False), results(layer, lengths, "scan", False))


# a GPU rounds to the nearest number of bf16; the interpreter cuts digits off, and errs twice as much
HALF = [(torch.float16, 1.5), (torch.bfloat16, 3.0)]


@pytest.mark.interpreted
@pytest.mark.parametrize(("dtype", "factor"), HALF)
@pytest.mark.parametrize("case", ["projection and clips", "clipped cells", "projection"])
def test_products_of_less_precision(case: str, dtype: torch.dtype, factor: float) -> None:
    layer = build(*CASES[case])
    exact = results(layer, LENGTHS, "scan", False)
    with torch.autocast("cpu", dtype=dtype):
        rough, actual = (results(layer, LENGTHS, path, False) for path in PATHS)
    check_near(actual, rough, exact, factor)
    assert actual[1].dtype == actual[2].dtype == torch.float32  # what is carried on


@pytest.mark.interpreted
@pytest.mark.parametrize(("dtype", "factor"), HALF)
def test_weights_of_less_precision(dtype: torch.dtype, factor: float) -> None:
    layer = build(20, 12, 0.5, 0.3).to(dtype)
    rough, actual = (results(layer, LENGTHS, path, False) for path in PATHS)
    check_near(actual, rough, results(layer.float(), LENGTHS, "scan", False), factor)


def check_nan(device: str) -> None:
    layer, layout = build(20, 12, 0.5, 0.3).to(device), make_layout([3, 2]).to(device)
    x = torch.randn(5, 6, device=device)
    x[3] = torch.nan  # the first token of the second sequence
    outputs, final = layer(x, layout, path="fused")
    assert outputs[:3].isfinite().all() and outputs[3:].isnan().all()
    assert final.cell[0].isfinite().all() and final.cell[1].isnan().all()


@pytest.mark.interpreted
def test_no_clip_hides_what_is_no_number() -> None:
    check_nan("cpu")


@pytest.mark.gpu
def test_no_clip_hides_what_is_no_number_on_a_gpu() -> None:
    """The interpreter's minimum and maximum would pass it on, those of a GPU would not."""
    check_nan("cuda")


class Launches(TorchDispatchMode):
    """Counts kernels, torch's and ours; views launch none."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aliases = [result.alias_info for result in func._schema.returns]
        self.count += not any(alias is not None and not alias.is_write for alias in aliases)
        return func(*args, **(kwargs or {}))

    def watch(self, kernel: Any) -> Any:
        def launch(grid: tuple[int, int], *args: Any, **options: Any) -> None:
            count = self.count + 1
            kernel[grid](*args, **options)
            self.count = count  # without the copies that the interpreter makes

        return Watched(launch)


@pytest.mark.interpreted
@pytest.mark.parametrize(("projection", "launches"), [(12, 8), (None, 4)])
def test_a_token_is_few_launches(projection: int | None, launches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways together, as the difference of sequences of three and of four tokens."""
    from etude.nn.triton import lstm_step

    layer, counts = build(20, projection, 0.5, 0.3), []
    counter = Launches()
    for name in ("_forward_step", "_clip_hidden", "_add_hidden_grads", "_backward_step"):
        monkeypatch.setattr(lstm_step, name, counter.watch(getattr(lstm_step, name)))
    for length in (3, 4):
        x, layout = torch.randn(2 * length, 6), make_layout([length, length])
        with torch.autocast("cpu", dtype=torch.float16), counter:
            before = counter.count
            outputs, _ = layer(x, layout, path="fused")
            torch.autograd.grad(outputs.sum(), list(layer.parameters()))
            counts.append(counter.count - before)
    assert counts[1] - counts[0] == launches


@pytest.mark.interpreted
def test_as_much_is_stored_as_by_the_plain_scan_or_less() -> None:
    layer, stored = build(20, 12, 0.5, 0.3), {}
    for path in PATHS:
        sizes: dict[int, int] = {}

        def pack(tensor: Tensor, sizes: dict[int, int] = sizes) -> Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            kept = layer(torch.randn(25, 6), make_layout(LENGTHS), path=path)
        stored[path] = sum(sizes.values())
        del kept
    assert 0 < stored["fused"] <= stored["scan"]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("projection", [256, None])
def test_kernels_compile_for_a_gpu_without_one(
    projection: int | None, compiled_kernels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Down to the machine code of a Hopper GPU, from the launches of a whole scan: the interpreter knows no types."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("runs without the interpreter")
    from etude.nn.triton import lstm_step

    names = ["_forward_step", "_backward_step", *(["_clip_hidden", "_add_hidden_grads"] if projection else [])]
    variants = compile_launches(lstm_step, names, monkeypatch, compiled_kernels)
    layer, layout = build(512, projection, 3.0, 3.0), make_layout([3, 2])
    for is_half in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_half):
            outputs, _ = layer(torch.randn(5, 6), layout, path="fused")
        torch.autograd.grad(outputs.sum(), list(layer.parameters()))
    # one for float32 and one for bf16: neither the number of rows nor where they begin makes another one
    assert {name: len(hashes) for name, hashes in variants.items()} == dict.fromkeys(names, 2)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_a_gpu_that_has_to_clip_runs_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("runs without the interpreter")
    gpu, cpu, single = torch.device("cuda", 0), torch.device("cpu"), torch.float32
    monkeypatch.setitem(availability._CAPABILITIES, 0, (9, 0))
    assert lstm.choose_path(gpu, single, has_clip=True) == "fused"
    assert lstm.choose_path(gpu, torch.bfloat16, has_clip=True) == "fused"
    with disable_fusion():  # labelled examples are trained on uncompiled
        assert lstm.choose_path(gpu, single, has_clip=True) == "fused"
    assert lstm.choose_path(gpu, single, has_clip=False) == "torch"
    assert lstm.choose_path(gpu, torch.float64, has_clip=True) == "scan"
    assert lstm.choose_path(cpu, single, has_clip=True) == lstm.choose_path(cpu, single, has_clip=False) == "scan"
    monkeypatch.setitem(availability._CAPABILITIES, 0, (7, 0))
    assert lstm.choose_path(gpu, single, has_clip=True) == "scan"
    monkeypatch.setitem(availability._CAPABILITIES, 0, (9, 0))
    monkeypatch.setitem(availability._MODULES, "lstm_step", None)
    assert lstm.choose_path(gpu, single, has_clip=True) == "scan"
    with pytest.raises(ValueError, match="needs Triton"):
        build(20, 12, 0.5, 0.3)(torch.randn(5, 6), make_layout([5]), path="fused")


def test_kernels_compute_nothing_in_float64() -> None:
    with pytest.raises(ValueError, match=r"not torch\.float64: use path 'scan'"):
        build(20, 12, 0.5, 0.3).double()(torch.randn(5, 6).double(), make_layout([5]), path="fused")


@pytest.mark.gpu
@pytest.mark.parametrize(("case", "reverse"), BOTH_WAYS)
def test_equals_the_plain_scan_on_a_gpu(case: str, reverse: bool) -> None:
    torch.set_float32_matmul_precision("highest")  # whatever ran before in this process
    layer = build(*CASES[case]).cuda()
    plain = results(layer, LENGTHS, "scan", reverse, "cuda")
    check_equal(results(layer, LENGTHS, "fused", reverse, "cuda"), plain)


@pytest.mark.gpu
def test_the_size_of_a_bilm_on_a_gpu() -> None:
    """In float32 and in bf16, ragged, by the path that is chosen; the same to the bit again.

    Among millions of cells some are so near to a clip that rounding decides whether they pass a gradient, in every
    implementation. So gradients have to be as near to those in float64 as the plain scan's are.
    """
    torch.set_float32_matmul_precision("highest")
    layer, lengths = build(512, 256, 0.5, 0.3), [32] * 500 + list(range(40))
    assert lstm.choose_path(torch.device("cuda", 0), torch.float32, has_clip=True) == "fused"
    exact = results(layer.double(), lengths, "scan", False, "cuda")
    plain, actual = (results(layer.float(), lengths, path, False, "cuda") for path in ("scan", None))
    check_equal(actual[:3], plain[:3])
    check_near(actual, plain, exact, factor=3.0)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        plain, actual, repeated = (results(layer, lengths, path, False, "cuda") for path in ("scan", None, None))
    check_near(actual, plain, exact)
    assert all(torch.equal(left, right) for left, right in zip(actual, repeated, strict=True))


@pytest.mark.gpu
def test_steps_are_recorded_on_a_gpu() -> None:
    """Nothing waits for the host: a pass can be recorded as a CUDA graph and gives the same."""
    layer, layout = build(64, 32, 0.5, 0.3).cuda(), make_layout([8] * 30 + [5, 0]).to("cuda")
    x = torch.randn(layout.total, 6, device="cuda", requires_grad=True)

    def take_step() -> list[Tensor]:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            outputs, _ = layer(x, layout)
        return [outputs.detach(), *torch.autograd.grad(outputs.float().square().sum(), [x, *layer.parameters()])]

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        expected = take_step()  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        recorded = take_step()
    graph.replay()
    torch.cuda.synchronize()
    for left, right in zip(recorded, expected, strict=True):
        torch.testing.assert_close(left, right)

"""The CRF whose recursions are Triton kernels, against the plain one: on a GPU by name, elsewhere interpreted."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.nn import crf as plain
from etude.nn.crf import CRF, MOST_TAGS
from etude.nn.packed import Layout
from tests.nn.test_crf import make_layout, random_allowed
from tests.nn.triton.launches import compile_launches

LENGTHS = [3, 4, 1, 0, 4]  # ties, a single token, an empty sequence in the middle


def test_in_the_interpreter(in_the_interpreter: Callable[[str], None]) -> None:
    in_the_interpreter(__file__)


def example(tags: int, limited: bool, device: str = "cpu", lengths: list[int] = LENGTHS) -> tuple[CRF, Tensor, Layout]:
    torch.manual_seed(tags)
    crf = CRF(tags, random_allowed(tags, 1) if limited else None, constrain_training=limited)
    for parameter in crf.parameters():
        torch.nn.init.normal_(parameter, std=1.5)
    emissions = torch.randn(sum(lengths), tags) * 2
    layout = make_layout(lengths)
    return crf.to(device), emissions.to(device), layout.to(torch.device(device))


def compute(crf: CRF, emissions: Tensor, layout: Layout) -> dict[str, Tensor]:
    """All that a CRF says of sequences, and the gradients of two of them."""
    emissions = emissions.clone().requires_grad_()
    chosen = torch.arange(len(emissions), device=emissions.device) * 7 % crf.tags
    inputs = {"emissions": emissions, **dict(crf.named_parameters())}
    results = {
        "likelihood": crf.log_likelihood(emissions, chosen, layout),
        "partition": crf.log_partition(emissions, layout),
        "marginals": crf.marginals(emissions, layout),
        "path": crf.decode(emissions, layout),
    }
    for name in ("likelihood", "marginals"):
        target = (
            results[name] * torch.linspace(-1, 2, results[name].numel(), device=emissions.device).view_as(results[name])
        ).sum()
        grads = torch.autograd.grad(target, list(inputs.values()), retain_graph=True, allow_unused=True)
        results |= {f"{name} by {key}": grad for key, grad in zip(inputs, grads, strict=True) if grad is not None}
    return {name: value.detach() for name, value in results.items()}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], close: float) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name].cpu(), value.cpu(), rtol=close, atol=close, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.interpreted
@pytest.mark.parametrize("tags, limited", [(1, False), (5, True), (17, False)])
def test_the_kernels_are_the_steps(tags: int, limited: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    crf, emissions, layout = example(tags, limited)
    expected = compute(crf, emissions, layout)
    calls: list[str] = []

    def find(given: Tensor) -> Any:
        from etude.nn.triton import crf as kernels

        calls.append("asked")
        return kernels

    monkeypatch.setattr(plain, "_find_kernels", find)
    assert_same(compute(crf, emissions, layout), expected, 2e-5)
    assert calls


@pytest.mark.interpreted
def test_a_long_sequence_stays_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Normalised at every token: after 40 tokens of large scores nothing has been lost."""
    from etude.nn.triton import crf as kernels

    crf, emissions, layout = example(5, limited=False, lengths=[40])
    expected = compute(crf.double(), 10 * emissions.double(), layout)
    monkeypatch.setattr(plain, "_find_kernels", lambda given: kernels)
    found = compute(crf.float(), 10 * emissions, layout)
    assert torch.equal(found["path"], expected["path"])
    torch.testing.assert_close(found["partition"].double(), expected["partition"], rtol=1e-5, atol=0)
    torch.testing.assert_close(found["marginals"].double(), expected["marginals"], rtol=0, atol=1e-4)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_kernels_compile_for_a_gpu_without_one(compiled_kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One variant each for few tags and for the most, both ways: neither sequences nor tags within 16 make another."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("runs without the interpreter")
    from etude.nn.triton import crf as kernels

    variants = compile_launches(kernels, ["_forward", "_backward", "_decode"], monkeypatch, compiled_kernels)
    monkeypatch.setattr(plain, "_find_kernels", lambda given: kernels)
    for tags in (9, 13, MOST_TAGS - 1):
        compute(*example(tags, limited=False))
    assert {name: len(found) for name, found in variants.items()} == {"_forward": 4, "_backward": 4, "_decode": 2}


def test_kernels_are_for_a_gpu_and_few_tags() -> None:
    """No answer for a CPU; on a GPU neither for float64 nor for more tags than fit."""

    class Emissions:
        is_cuda, dtype, shape = True, torch.float32, (3, MOST_TAGS + 1)

    assert plain._find_kernels(torch.zeros(3, 4)) is None
    assert plain._find_kernels(Emissions()) is None
    Emissions.shape, Emissions.dtype = (3, 4), torch.float64
    assert plain._find_kernels(Emissions()) is None


@pytest.mark.gpu
@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("tags", [1, 5, 16, 17, 33, MOST_TAGS])
def test_a_gpu_says_what_a_cpu_says(tags: int, limited: bool) -> None:
    lengths = [*LENGTHS, 120, 64, 33, 0]
    expected = compute(*example(tags, limited, lengths=lengths))
    given = example(tags, limited, "cuda", lengths)
    assert plain._find_kernels(given[1]) is not None
    assert_same(compute(*given), expected, 1e-3)
    first, second = compute(*given), compute(*given)
    assert all(torch.equal(first[name], second[name]) for name in first if "marginals" not in name)

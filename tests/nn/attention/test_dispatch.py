"""Three attention paths, one meaning."""

from __future__ import annotations

import inspect
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from etude.errors import UserError
from etude.nn.attention import dispatch as attention
from etude.nn.attention.dispatch import attend, attend_reference, attend_varlen, choose_path, varlen_arguments
from etude.nn.packed import Layout
from etude.nn.triton import availability

LENGTHS = st.lists(st.integers(0, 33), min_size=1, max_size=12)  # with empty and one-token sequences
WINDOWS = st.sampled_from([None, 1, 2, 5, 40])


def make_layout(lengths: list[int], longest: int = 64) -> Layout:
    return Layout.from_bounds(np.concatenate([[0], np.cumsum(lengths)]), longest)


def parts_of(layout: Layout, heads: int = 2, size: int = 4, seed: int = 0) -> Tensor:
    """Queries, keys and values as one projection gives them, (N, 3, H, d)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(layout.total, 3, heads, size, generator=generator, dtype=torch.float64)


def reference_loops(parts: Tensor, layout: Layout, causal: bool, window: int | None) -> Tensor:
    """Attention from its definition, one number at a time: independent of every path."""
    tokens, _, heads, size = parts.shape
    out = torch.zeros(tokens, heads, size, dtype=parts.dtype)
    for start, stop in zip(layout.host[:-1], layout.host[1:], strict=True):
        for query in range(start, stop):
            seen = [
                key
                for key in range(start, stop)
                if (not causal or key <= query) and (window is None or abs(query - key) <= window)
            ]
            for head in range(heads):
                scores = [float(parts[query, 0, head] @ parts[key, 1, head]) / math.sqrt(size) for key in seen]
                weights = [math.exp(score) for score in scores]
                for key, weight in zip(seen, weights, strict=True):
                    out[query, head] += weight / sum(weights) * parts[key, 2, head]
    return out


@pytest.mark.parametrize("path", ["grouped", "reference"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 2])
def test_a_path_is_the_definition(path: str, causal: bool, window: int | None) -> None:
    layout = make_layout([5, 0, 1, 9, 5, 0])
    parts = parts_of(layout)
    result = attend(*parts.unbind(1), layout, causal=causal, window=window, path=path)
    torch.testing.assert_close(result, reference_loops(parts, layout, causal, window), rtol=1e-9, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(LENGTHS, st.booleans(), WINDOWS, st.integers(0, 99))
def test_grouped_is_reference_forward_and_backward(
    lengths: list[int], causal: bool, window: int | None, seed: int
) -> None:
    layout = make_layout(lengths)
    parts = parts_of(layout, seed=seed).requires_grad_()
    grad_out = parts_of(layout, seed=seed + 1)[:, 0]
    result, expected = (
        attend(*parts.unbind(1), layout, causal=causal, window=window, path=path) for path in ("grouped", "reference")
    )
    torch.testing.assert_close(result, expected, rtol=1e-9, atol=1e-11)
    gradients = [torch.autograd.grad((out * grad_out).sum(), parts)[0] for out in (result, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-11)


def test_grouped_is_reference_in_float32() -> None:
    layout = make_layout([64, 3, 64, 17, 40, 1])
    parts = parts_of(layout, heads=4, size=16).float()
    for causal in (False, True):
        result, expected = (
            attend(*parts.unbind(1), layout, causal=causal, path=path) for path in ("grouped", "reference")
        )
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("path", ["grouped", "reference"])
@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (False, 2), (True, 2)])
@pytest.mark.parametrize("lengths", [[6, 6, 6], [6, 0, 3, 9, 1, 6]])
def test_no_leak(path: str, causal: bool, window: int | None, lengths: list[int]) -> None:
    """Moving one token moves exactly the outputs of those that may see it, and no other bit."""
    layout = make_layout(lengths)
    parts = parts_of(layout)
    before = attend(*parts.unbind(1), layout, causal=causal, window=window, path=path)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    for token in range(layout.total):
        moved = parts.clone()
        moved[token, 1:] += 1.0  # its key and its value, not its query
        after = attend(*moved.unbind(1), layout, causal=causal, window=window, path=path)
        changed = (after != before).any(dim=(1, 2)).numpy()
        query = np.arange(layout.total)
        sees = (owner == owner[token]) & ((query >= token) | (not causal))
        sees &= True if window is None else np.abs(query - token) <= window
        np.testing.assert_array_equal(changed, sees)


def test_an_outsider_of_any_size_does_not_leak() -> None:
    """A mask that only adds a large number would let a huge score through."""
    layout = make_layout([4, 7, 2])
    parts = parts_of(layout).float()
    before = attend(*parts.unbind(1), layout, causal=False, path="grouped")
    parts[layout.host[1] : layout.host[2], 1:] *= 1e6
    after = attend(*parts.unbind(1), layout, causal=False, path="grouped")
    outside = np.r_[0:4, 11:13]
    assert torch.equal(before[outside], after[outside])


def test_a_query_that_sees_nothing_gives_zeros_and_finite_gradients() -> None:
    layout = make_layout([3, 2])
    parts = parts_of(layout).requires_grad_()
    out, weights = attend_reference(
        *parts.unbind(1), layout, allowed=lambda query, key: (query != key) & (query > 0), weights=True
    )
    assert torch.equal(out[[0, 3]], torch.zeros_like(out[[0, 3]]))
    assert weights is not None
    assert [tuple(fraction.shape) for fraction in weights] == [(2, 3, 3), (2, 2, 2)]
    torch.testing.assert_close(weights[0].sum(-1), torch.tensor([[0.0, 1.0, 1.0]] * 2, dtype=torch.float64))
    out.square().sum().backward()
    assert parts.grad is not None
    assert torch.isfinite(parts.grad).all()


def test_an_allowed_function_restricts_causality() -> None:
    layout = make_layout([6])
    parts = parts_of(layout)
    strict, weights = attend_reference(
        *parts.unbind(1), layout, causal=True, allowed=lambda query, key: key >= query - 1, weights=True
    )
    banded, _ = attend_reference(*parts.unbind(1), layout, causal=True, window=1)
    torch.testing.assert_close(strict, banded)
    assert weights is not None
    assert torch.equal(weights[0] > 0, torch.ones(6, 6).tril().triu(-1).bool().expand(2, 6, 6))


def test_a_batch_of_no_tokens() -> None:
    layout = make_layout([0, 0])
    parts = parts_of(layout)
    for path in ("grouped", "reference"):
        assert attend(*parts.unbind(1), layout, causal=True, path=path).shape == (0, 2, 4)


def test_padding_behind_the_last_bound_is_refused() -> None:
    layout = make_layout([3])
    parts = torch.zeros(4, 3, 1, 8)
    with pytest.raises(ValueError, match="4 tokens, but the layout ends at 3"):
        attend(*parts.unbind(1), layout, causal=False)


@pytest.mark.parametrize("path", ["grouped", "reference"])
@pytest.mark.parametrize("lengths", [[40, 40, 40, 40], [40, 13, 25, 40, 39]])
def test_dropout_keeps_the_mean_and_the_mask(path: str, lengths: list[int]) -> None:
    layout = make_layout(lengths)
    parts = torch.ones(layout.total, 3, 8, 16)  # every value is 1: a row of weights sums to 1 on average
    torch.manual_seed(3)
    out = attend(*parts.unbind(1), layout, causal=False, dropout=0.25, path=path)[..., 0]
    deviation = math.sqrt(0.25 / 0.75 / 40)  # of one row of 40 equal weights
    assert abs(float(out.mean()) - 1) < 4 * deviation / math.sqrt(out.numel())
    assert 0.8 * deviation < float(out.std()) < 1.4 * deviation


def test_dropout_gradients_use_the_same_mask() -> None:
    layout = make_layout([4, 4, 3])
    parts = parts_of(layout, heads=1).requires_grad_()

    def drawn(parts: Tensor) -> Tensor:
        torch.manual_seed(7)
        return attend(*parts.unbind(1), layout, causal=True, dropout=0.3, path="grouped")

    assert torch.autograd.gradcheck(drawn, (parts,))


def test_the_same_seed_drops_the_same() -> None:
    layout = make_layout([9, 4])
    parts = parts_of(layout).float()
    outs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outs.append(attend(*parts.unbind(1), layout, causal=False, dropout=0.5))
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])


class Recorder:
    """Stands in for torch's function and keeps what it was called with."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def older(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seq_q: Tensor,
        cu_seq_k: Tensor,
        max_q: int,
        max_k: int,
        is_causal: bool = False,
        return_aux: Any = None,
    ) -> Tensor:
        self.calls.append({"bounds": (cu_seq_q, cu_seq_k), "longest": (max_q, max_k), "is_causal": is_causal})
        return value

    def newer(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seq_q: Tensor,
        cu_seq_k: Tensor | None,
        max_q: int,
        max_k: int,
        *,
        return_aux: Any = None,
        scale: float | None = None,
        window_size: tuple[int, int] = (-1, -1),
        enable_gqa: bool = False,
    ) -> Tensor:
        self.calls.append({"bounds": (cu_seq_q, cu_seq_k), "longest": (max_q, max_k), "window_size": window_size})
        return value


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Recorder:
    recorder = Recorder()
    function = getattr(recorder, request.param)
    names = frozenset(inspect.signature(function).parameters)
    monkeypatch.setattr(attention, "_VARLEN", [attention._Varlen(function, names)])
    return recorder


@pytest.mark.parametrize("recorder", ["newer"], indirect=True)
def test_the_newer_signature_gets_windows(recorder: Recorder) -> None:
    layout = make_layout([3, 0, 2], longest=9)
    parts = parts_of(layout)
    for causal, window in ((False, None), (True, None), (False, 4), (True, 4)):
        attend(*parts.unbind(1), layout, causal=causal, window=window, path="varlen")
    assert [call["window_size"] for call in recorder.calls] == [(-1, -1), (-1, 0), (4, 4), (4, 0)]
    assert all(call["bounds"] == (layout.bounds, layout.bounds) for call in recorder.calls)
    assert all(call["longest"] == (9, 9) for call in recorder.calls)


@pytest.mark.parametrize("recorder", ["older"], indirect=True)
def test_the_older_signature_gets_is_causal_and_no_window(recorder: Recorder) -> None:
    layout = make_layout([3, 2])
    parts = parts_of(layout)
    for causal in (False, True):
        attend(*parts.unbind(1), layout, causal=causal, path="varlen")
    assert [call["is_causal"] for call in recorder.calls] == [False, True]
    with pytest.raises(UserError, match="no windows in varlen attention"):
        attend_varlen(*parts.unbind(1), layout, causal=True, window=2)


def test_a_version_with_both_arguments_gets_one() -> None:
    assert varlen_arguments(frozenset({"is_causal", "window_size"}), True, None) == {"window_size": (-1, 0)}


def test_dropout_calls_the_kernel_that_supports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's varlen function has none; the kernel below it is asked, with bounds, rate and the mask's meaning."""
    layout, seen = make_layout([3, 2], longest=9), []

    def flash(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **ends: int) -> tuple[Tensor, None]:
        seen.append((rest, ends))
        return value, None

    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", flash)
    monkeypatch.setattr(attention, "_VARLEN", [attention._Varlen(lambda: None, frozenset({"window_size"}))])
    for causal, window in ((False, None), (True, None), (True, 4)):
        attend(*parts_of(layout).unbind(1), layout, causal=causal, window=window, dropout=0.1, path="varlen")
    assert [rest[2:] for rest, _ in seen] == [(9, 9, 0.1, causal, False) for causal in (False, True, False)]
    assert [(e["window_size_left"], e["window_size_right"]) for _, e in seen] == [(-1, -1), (-1, 0), (4, 0)]


@pytest.mark.parametrize("causal", [False, True])
def test_equal_lengths_are_already_dense(causal: bool) -> None:
    layout = make_layout([5, 5, 5], longest=5)
    assert layout.equal
    assert not make_layout([5, 5, 4], longest=5).equal
    assert not make_layout([5, 5, 0], longest=5).equal
    parts = parts_of(layout)
    result = attend(*parts.unbind(1), layout, causal=causal)
    expected = attend(*parts.unbind(1), layout, causal=causal, path="reference")
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)


def test_equal_lengths_stay_within_a_graph() -> None:
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(attend, backend=counter, fullgraph=True)
    layout = make_layout([5, 5, 5], longest=5)
    compiled(*parts_of(layout).unbind(1), layout, causal=True)
    assert counter.frame_count == 1
    torch._dynamo.reset()


def test_an_unknown_path_is_named() -> None:
    layout = make_layout([3, 2])
    with pytest.raises(UserError, match="unknown attention path 'flash'"):
        attend(*parts_of(layout).unbind(1), layout, causal=True, path="flash")


def test_the_choice_of_path(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_path("cpu", torch.float32, 64) == "grouped"
    assert choose_path("cpu", torch.bfloat16, 64) == "grouped"
    monkeypatch.setattr(availability, "supports_flash", lambda index: True)
    monkeypatch.setattr(attention, "_VARLEN", [attention._Varlen(lambda: None, frozenset({"window_size"}))])
    assert choose_path("cuda", torch.bfloat16, 64) == "varlen"
    assert choose_path("cuda", torch.float16, 64, window=128) == "varlen"
    assert choose_path("cuda", torch.float32, 64) == "grouped"
    assert choose_path("cuda", torch.bfloat16, 64, equal=True) == "grouped"  # as it lies
    assert choose_path("cuda", torch.bfloat16, 64, equal=True, window=8) == "varlen"
    assert choose_path("cuda", torch.bfloat16, 60) == "grouped"  # flash kernels want multiples of 8
    assert choose_path("cuda", torch.bfloat16, 512) == "grouped"
    monkeypatch.setattr(attention, "_VARLEN", [attention._Varlen(lambda: None, frozenset({"is_causal"}))])
    assert choose_path("cuda", torch.bfloat16, 64) == "varlen"
    assert choose_path("cuda", torch.bfloat16, 64, window=128) == "grouped"
    monkeypatch.setattr(attention, "_VARLEN", [attention._Varlen(None, frozenset())])
    assert choose_path("cuda", torch.bfloat16, 64) == "grouped"
    monkeypatch.setattr(attention, "_VARLEN", [attention._Varlen(lambda: None, frozenset({"window_size"}))])
    monkeypatch.setattr(availability, "supports_flash", lambda index: False)
    assert choose_path("cuda", torch.bfloat16, 64) == "grouped"


def test_a_torch_without_varlen_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_VARLEN", [attention._Varlen(None, frozenset())])
    layout = make_layout([3, 2])
    with pytest.raises(UserError, match="has no varlen attention: set path to 'grouped'"):
        attend(*parts_of(layout).unbind(1), layout, causal=True, path="varlen")


@pytest.mark.gpu
@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (False, 2), (True, 2)])
def test_varlen_does_not_leak_on_a_gpu(causal: bool, window: int | None) -> None:
    lengths = [6, 0, 3, 9, 1, 6]
    layout = make_layout(lengths).to("cuda")
    parts = parts_of(layout, size=64).bfloat16().cuda()
    before = attend(*parts.unbind(1), layout, causal=causal, window=window, path="varlen")
    owner, query = np.repeat(np.arange(len(lengths)), lengths), np.arange(layout.total)
    for token in range(layout.total):
        moved = parts.clone()
        moved[token, 1:] += 1.0
        after = attend(*moved.unbind(1), layout, causal=causal, window=window, path="varlen")
        sees = (owner == owner[token]) & ((query >= token) | (not causal))
        sees &= True if window is None else np.abs(query - token) <= window
        np.testing.assert_array_equal((after != before).any(dim=2).any(dim=1).cpu().numpy(), sees)


@pytest.mark.gpu
@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (False, 16), (True, 16)])
def test_varlen_is_reference_on_a_gpu(causal: bool, window: int | None) -> None:
    layout = make_layout([64, 3, 0, 17, 40, 1]).to("cuda")
    parts = parts_of(layout, heads=4, size=64).cuda()
    half = parts.bfloat16()
    assert choose_path("cuda", half.dtype, 64, window=window) == "varlen"
    result = attend(*half.unbind(1), layout, causal=causal, window=window)
    expected = attend(*half.double().unbind(1), layout, causal=causal, window=window, path="reference")
    torch.testing.assert_close(result.double(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
def test_dropout_on_a_gpu_keeps_the_mean_and_repeats(causal: bool) -> None:
    layout = make_layout([64, 3, 0, 17, 40, 1]).to("cuda")
    half = parts_of(layout, heads=4, size=64).bfloat16().cuda().requires_grad_()
    plain = attend(*half.unbind(1), layout, causal=causal)

    def dropped(seed: int) -> tuple[Tensor, Tensor]:
        torch.manual_seed(seed)
        out = attend(*half.unbind(1), layout, causal=causal, dropout=0.2)
        return out.detach().double(), torch.autograd.grad(out.sum(), half)[0]

    first, repeated, right = dropped(1), dropped(1), dropped(2)
    assert torch.equal(first[0], repeated[0])
    assert torch.equal(first[1], repeated[1])
    assert not torch.equal(first[0], right[0])
    mean = torch.stack([dropped(seed)[0] for seed in range(400)]).mean(0)
    torch.testing.assert_close(mean, plain.detach().double(), rtol=0.1, atol=0.1)


def test_a_compiled_model_keeps_one_graph_over_varlen(monkeypatch: pytest.MonkeyPatch) -> None:
    """No graph breaks, and no new graph for other lengths: bounds are data, not shapes."""
    stand_in = attention._Varlen(
        lambda query, key, value, *rest, window_size: query * 0 + value, frozenset({"window_size"})
    )
    monkeypatch.setattr(attention, "_VARLEN", [stand_in])
    counter = torch._dynamo.testing.CompileCounter()
    torch._dynamo.reset()
    compiled = torch.compile(attend, backend=counter, fullgraph=True)
    for lengths in ([5, 0, 9, 3], [9, 3, 5, 0], [1, 7, 7, 2]):
        layout = make_layout(lengths)
        compiled(*parts_of(layout).unbind(1), layout, causal=True, path="varlen")
    assert counter.frame_count == 1
    torch._dynamo.reset()


def test_a_compiled_model_steps_out_for_the_grouped_path() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(attend, backend="eager")
    for lengths in ([5, 0, 9, 3], [4, 4]):
        layout = make_layout(lengths)
        parts = parts_of(layout)
        result = compiled(*parts.unbind(1), layout, causal=True)
        assert torch.equal(result, attend(*parts.unbind(1), layout, causal=True))
    torch._dynamo.reset()


def test_the_compiler_is_not_imported_without_need() -> None:
    """Importing it takes as long as torch itself."""
    code = """
import sys, torch
from etude.nn.attention.dispatch import attend
from etude.nn.packed import pack
attend(*torch.zeros(3, 3, 1, 8).unbind(1), pack([[1, 2], [3]]).layout, causal=True)
sys.exit('torch._dynamo' in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

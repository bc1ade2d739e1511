"""Dense attention by plain products: against float64, and no less exact in bf16 than torch's fused form."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from etude.nn.attention import dense
from etude.nn.attention.dense import attend_dense

pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bfloat16 says so, and goes on

S, H, L, D = 3, 2, 24, 16
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def random_qkv(spread: float = 1.0, mean: float = 0.0, dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    """Queries, keys, values and the slope of the result, laid out as one projection leaves them."""
    generator = torch.Generator().manual_seed(0)
    parts = torch.randn(4, S, L, H, D, generator=generator)
    parts[0] *= spread
    parts[2:] += mean
    return [part.transpose(1, 2) for part in parts.to(dtype)]


def ragged(dtype: torch.dtype, causal: bool = False) -> Tensor:
    """Sequences of 24, 9 and 1 tokens, as nn/attention/grouped.py says it."""
    place = torch.arange(L)
    allowed = (place < torch.tensor([24, 9, 1])[:, None])[:, None, None, :]
    if causal:
        allowed = allowed & (place <= place[:, None])
    return torch.zeros(allowed.shape, dtype=dtype).masked_fill(~allowed, torch.finfo(dtype).min / 2)


def results(attend: Attend, parts: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The result and the gradients of queries, keys and values, in float64."""
    leaves = [part.detach().to(dtype).requires_grad_() for part in parts[:3]]
    out = attend(*leaves)
    result = [out, *torch.autograd.grad(out, leaves, parts[3].to(dtype))]
    assert all(item.dtype == dtype for item in result)
    return [item.detach().double() for item in result]


def reference_results(parts: list[Tensor], mask: Tensor | None, factors: Tensor | None = None) -> list[Tensor]:
    """In float64; `factors` multiply the weights, as dropout does."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.transpose(2, 3) / D**0.5
        weights = (scores if mask is None else scores + mask.double()).softmax(-1)
        return (weights if factors is None else weights * factors) @ value

    return results(attend, parts, torch.float64)


def errors(result: list[Tensor], exact: list[Tensor]) -> list[float]:
    return [float((left - right).norm() / right.norm()) for left, right in zip(result, exact, strict=True)]


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("spread, mean", [(1.0, 0.0), (6.0, 0.0), (1.0, 1.0)])
@pytest.mark.parametrize("masked", ["no", "causal", "ragged"])
def test_in_bf16_it_is_as_exact_as_torch_s(spread: float, mean: float, masked: str, autocast: bool) -> None:
    """Large scores, and slopes with a common part: there bf16 within would be several times as far off."""
    parts = random_qkv(spread, mean)
    mask = ragged(torch.bfloat16) if masked == "ragged" else None
    causal = masked == "causal"
    low = torch.full((L, L), -1e9).triu(1) if causal else mask
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        result = results(lambda q, k, v: attend_dense(q, k, v, mask, causal, 0.0), parts, torch.bfloat16)
    expected = results(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal), parts, torch.bfloat16
    )
    exact = reference_results(parts, low)
    for actual, right in zip(errors(result, exact), errors(expected, exact), strict=True):
        assert actual < 1.3 * right + 2**-10, "within a rounding of each other"
        assert actual < 0.01


@pytest.mark.parametrize("dtype, close", [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 0.006)])
@pytest.mark.parametrize("masked", ["no", "causal", "ragged", "causal ragged"])
@pytest.mark.parametrize("autocast", [False, True])
def test_dropped_weights_are_those_of_the_mask(dtype: torch.dtype, close: float, masked: str, autocast: bool) -> None:
    parts = random_qkv()
    causal = "causal" in masked
    mask = ragged(dtype, causal) if "ragged" in masked else None
    low = torch.full((L, L), -1e9).triu(1) if masked == "causal" else mask
    torch.manual_seed(1)
    keep_mask, scale = dense.draw_keep_mask((S * H, L, L), 0.25)
    assert not keep_mask.all()
    torch.manual_seed(1)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast and dtype == torch.bfloat16):
        result = results(lambda q, k, v: attend_dense(q, k, v, mask, causal, 0.25), parts, dtype)
    exact = reference_results(parts, low, keep_mask.view(S, H, L, L).double() * scale)
    assert max(errors(result, exact)) < close


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_masked_keys_have_no_influence(dropout: float) -> None:
    """A weight of exactly 0 in bf16, and no gradient towards a hidden key or value."""
    parts = random_qkv()
    mask = ragged(torch.bfloat16)
    _, _, key, value = results(lambda q, k, v: attend_dense(q, k, v, mask, False, dropout), parts, torch.bfloat16)
    for sequence, length in ((1, 9), (2, 1)):
        assert not key[sequence, :, length:].any()
        assert not value[sequence, :, length:].any()
    assert value[1, :, :9].any()


def test_saved_tensors_are_in_half_precision() -> None:
    """Weights in bf16, one a pair: float32 ones would be twice the memory."""
    keep_mask: list[Tensor] = []

    def keep(one: Tensor) -> Tensor:
        keep_mask.append(one)
        return one

    query, key, value, _ = random_qkv()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one):
        attend_dense(query.requires_grad_(), key, value, None, False, 0.0)
    assert {one.dtype for one in keep_mask} == {torch.bfloat16}
    assert sum(one.numel() for one in keep_mask) == 3 * S * H * L * D + S * H * L * L


def test_torch_gelu_runs_without_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value, _ = random_qkv()
    monkeypatch.setattr(dense._MatmulAttention, "apply", None)
    with torch.no_grad():
        attend_dense(query.requires_grad_(), key, value, None, False, 0.0)
    attend_dense(query.detach(), key, value, None, True, 0.0)
    query, key, value = (part.detach().float().requires_grad_() for part in (query, key, value))
    attend_dense(query, key, value, None, False, 0.0).sum().backward()
    with pytest.raises(TypeError):
        attend_dense(query.bfloat16(), key.bfloat16(), value.bfloat16(), None, False, 0.0)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_twice_the_same_bits(dropout: float) -> None:
    repeated = []
    for _ in range(2):
        torch.manual_seed(3)
        repeated.append(
            results(lambda q, k, v: attend_dense(q, k, v, None, True, dropout), random_qkv(), torch.bfloat16)
        )
    assert all(torch.equal(left, right) for left, right in zip(*repeated, strict=True))


def test_float32_products_are_unchanged_afterwards() -> None:
    """Scores may be multiplied as bf16, which they were; nobody else's products are."""
    said = torch.backends.mkldnn.matmul
    before = said.fp32_precision
    inside = []
    original = dense._scaled_matmul

    def watch(left: Tensor, right: Tensor, factor: float, out: Tensor | None = None) -> Tensor:
        inside.append((left.dtype, said.fp32_precision))
        return original(left, right, factor, out)

    query, key, _value, _ = random_qkv()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense, "_scaled_matmul", watch)
        for dtype in (torch.bfloat16, torch.float32):
            results(lambda q, k, v: attend_dense(q, k, v, None, False, 0.1), random_qkv(), dtype)
        patch.setattr(dense, "_scaled_matmul", None)
        with pytest.raises(TypeError):
            dense._scaled_matmul_float32(query[0], key[0], 1.0)
    assert said.fp32_precision == before
    wide = [precision for dtype, precision in inside if dtype == torch.float32]
    assert wide[:2] == ["bf16", "bf16"]
    assert set(wide[2:]) == {before}
    assert {precision for dtype, precision in inside if dtype == torch.bfloat16} == {before}

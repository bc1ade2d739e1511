"""Our Triton kernels against the plain formulas: on a GPU by name, elsewhere in Triton's interpreter if it is there."""

from __future__ import annotations

import copy
import importlib.util
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from etude.models.transformer import Settings, Transformer
from etude.nn import attention, card, losses, pointwise, residual
from etude.nn.attention import attend, attend_packed
from etude.nn.packed import Layout, pack

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
needs_kernels = pytest.mark.skipif(not INTERPRETED, reason="runs inside test_in_the_interpreter")


def test_in_the_interpreter(in_the_interpreter: Callable[[str], None]) -> None:
    in_the_interpreter(__file__)


def layout_of(lengths: list[int], longest: int) -> Layout:
    return Layout.of(np.concatenate([[0], np.cumsum(lengths)]), longest)


def attention_of(qkv: Tensor, layout: Layout, causal: bool, path: str, slope: Tensor) -> tuple[Tensor, Tensor]:
    out = attend(*qkv.unbind(1), layout, causal=causal, path=path)
    return out.detach(), torch.autograd.grad(out, qkv, slope)[0]


@needs_kernels
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [16, 24])  # a power of two, and not one
def test_short_sequences(causal: bool, size: int) -> None:
    torch.manual_seed(1)
    layout = layout_of([5, 0, 16, 1, 9, 0], 16)
    qkv = torch.randn(layout.total, 3, 2, size, requires_grad=True)
    slope = torch.randn(layout.total, 2, size)
    ours, theirs = (attention_of(qkv, layout, causal, path, slope) for path in ("short", "reference"))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@needs_kernels
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [16, 24])
@pytest.mark.parametrize("tiles", [(32, 16), (16, 32), (16, 16)])
def test_tiles(causal: bool, size: int, tiles: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths at, before and behind the edges of tiles; empty sequences; fewer tokens than the bound."""
    from etude.nn import tiled_attention

    for kernel in ("FORWARD", "BY_QUERY", "BY_KEY"):
        monkeypatch.setattr(tiled_attention, kernel, (*tiles, 4, 2))
    torch.manual_seed(1)
    layout = layout_of([16, 1, 0, 33, 64, 31, 0], 64)
    qkv = torch.randn(layout.total, 3, 2, size, requires_grad=True)
    slope = torch.randn(layout.total, 2, size)
    ours, theirs = (attention_of(qkv, layout, causal, path, slope) for path in ("tiled", "reference"))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-6)


@needs_kernels
@pytest.mark.parametrize("tanh", [False, True])
def test_a_gelu_and_the_gradient_of_its_bias(tanh: bool) -> None:
    from etude.nn.gelu_kernel import COLUMNS, ROWS, TILES, gelu_biased

    torch.manual_seed(1)
    count, width = ROWS * TILES + 3, COLUMNS + 40  # more than one program both ways, the last of them not full
    x = torch.cat([torch.randn(count, width - 40), torch.linspace(-12, 12, 40 * count).view(count, 40)], 1)
    bias, slope = torch.randn(width, requires_grad=True), torch.randn(count, width)
    x.requires_grad_()
    exact = x.detach().double().requires_grad_()
    ours = gelu_biased(x, bias, tanh)
    theirs = torch.nn.functional.gelu(exact, approximate="tanh" if tanh else "none")
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-6, atol=1e-6)
    by_x, by_bias = torch.autograd.grad(ours, (x, bias), slope)
    (exactly,) = torch.autograd.grad(theirs, exact, slope.double())
    torch.testing.assert_close(by_x.double(), exactly, rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(by_bias.double(), exactly.sum(0), rtol=1e-5, atol=1e-4)


def fed(x: Tensor, up: torch.nn.Linear, down: torch.nn.Linear, tanh: bool, slope: Tensor) -> list[Tensor]:
    """What a feed-forward branch gives, and its gradients: of x, and of what it learns."""
    out = pointwise.fed_forward(x, up, down, pointwise.gelu_tanh if tanh else pointwise.gelu, down.bias)
    learnt = [weight for layer in (up, down) for weight in layer.parameters()]
    return [out.detach(), *torch.autograd.grad(out, [x, *learnt], slope)]


def fed_exactly(x: Tensor, up: torch.nn.Linear, down: torch.nn.Linear, tanh: bool, slope: Tensor) -> list[Tensor]:
    """The same in float64, by formulas that are nobody's kernels."""
    x, slope = x.detach().double().requires_grad_(), slope.double()
    up, down = (copy.deepcopy(layer).double() for layer in (up, down))
    raised = x @ up.weight.t() + up.bias
    if tanh:
        below = 0.5 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (raised + 0.044715 * raised**3)))
    else:
        below = 0.5 * (1 + torch.erf(raised / 2**0.5))
    out = (raised * below) @ down.weight.t() + (0 if down.bias is None else down.bias)
    learnt = [weight for layer in (up, down) for weight in layer.parameters()]
    return [out.detach(), *torch.autograd.grad(out, [x, *learnt], slope)]


@needs_kernels
@pytest.mark.parametrize("tanh", [False, True])
@pytest.mark.parametrize("tokens", [1, 16, 71, 80])  # tiles of 16 rows: a part of one; one; groups of 2, the last less
@pytest.mark.parametrize("bias", [False, True])
def test_a_gelu_s_slope_within_the_product(
    tokens: int, tanh: bool, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32: the interpreter multiplies the bits of bf16 as if they were whole numbers."""
    from etude.nn import lowered_kernel

    for name, value in {"ROWS": 16, "COLUMNS": 32, "DEPTH": 16, "GROUP": 2}.items():
        monkeypatch.setattr(lowered_kernel, name, value)
    monkeypatch.setattr(pointwise, "own_lowered", lambda *_: lowered_kernel)
    calls: list[bool] = []
    back = lowered_kernel.gelu_lowered_backward

    def counted(grad: Tensor, raised: Tensor, weight: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
        calls.append(tanh)
        return back(grad, raised, weight, tanh)

    monkeypatch.setattr(lowered_kernel, "gelu_lowered_backward", counted)
    torch.manual_seed(1)
    up, down = torch.nn.Linear(24, 96), torch.nn.Linear(96, 48, bias=bias)
    x, slope = torch.randn(tokens, 24, requires_grad=True), torch.randn(tokens, 48)
    with torch.no_grad():
        up.weight.mul_(4)  # into both tails
    ours, again = (fed(x, up, down, tanh, slope) for _ in range(2))
    assert calls == [tanh, tanh]
    for one, same, other in zip(ours, again, fed_exactly(x, up, down, tanh, slope), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=2e-5)
        assert torch.equal(one, same)


@needs_kernels
def test_what_does_not_fit_the_tiles_goes_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    from etude.nn import lowered_kernel

    monkeypatch.setattr(pointwise, "own_lowered", lambda *_: lowered_kernel)
    monkeypatch.setattr(lowered_kernel, "gelu_lowered", None)  # cannot be called
    torch.manual_seed(1)
    for tokens, inner, width, bias in [(5, 96, 64, True), (5, 128, 48, True), (5, 128, 64, False), (0, 128, 64, True)]:
        up, down = torch.nn.Linear(24, inner, bias=bias), torch.nn.Linear(inner, width)
        x = torch.randn(tokens, 24)
        expected = down(torch.nn.functional.gelu(up(x)))
        torch.testing.assert_close(pointwise.fed_forward(x, up, down, pointwise.gelu, down.bias), expected)
    assert lowered_kernel.fits(768, 3072) and not lowered_kernel.fits(768, 3000)


@needs_kernels
@pytest.mark.parametrize("path", attention.OWN)
@pytest.mark.parametrize("causal", [False, True])
def test_dropout_is_that_of_its_gradient(path: str, causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a reference with the mask that was drawn, read off from values that are the keys' unit vectors."""
    from etude.nn import tiled_attention
    from etude.nn.short_attention import attend_short

    for kernel, tiles in (("FORWARD", (16, 32)), ("BY_QUERY", (32, 16)), ("BY_KEY", (16, 16))):
        monkeypatch.setattr(tiled_attention, kernel, (*tiles, 4, 2))
    bounds, seed = torch.tensor([0, 40, 49], dtype=torch.int32), torch.tensor([5])

    def ours(qkv: Tensor, seed: Tensor = seed) -> Tensor:
        if path == "short":
            return attend_short(qkv, bounds, seed, 64, causal, 0.3)
        return tiled_attention.attend_tiled(qkv, bounds, seed, 64, causal, 0.3)[0]

    torch.manual_seed(1)
    qkv, slope = torch.randn(49, 3, 2, 64, requires_grad=True), torch.randn(49, 2, 64)
    layout = layout_of([40, 9], 64)
    spread = qkv.detach().clone()
    place = torch.cat([torch.arange(40), torch.arange(9)])
    spread[:, 2] = torch.eye(64)[place][:, None, :]
    weights = attend(*spread.unbind(1), layout, causal=causal, path="reference")  # (N, H, keys of the sequence)
    stays = ours(spread) / weights.clamp(min=1e-12)
    drawn = stays[weights > 0]
    share = float((drawn > 0.5).double().mean())
    assert ((drawn - 1 / 0.7).abs().min(drawn.abs()) < 1e-4).all() and 0.63 < share < 0.77

    query, key, value = qkv.unbind(1)
    parts = []
    for start, stop in ((0, 40), (40, 49)):
        scores = torch.einsum("ihd,jhd->hij", query[start:stop], key[start:stop]) / 8
        if causal:
            scores = scores.masked_fill(torch.ones(stop - start, stop - start).triu(1).bool(), -torch.inf)
        mask = (stays[start:stop, :, : stop - start].transpose(0, 1) > 0.5) / 0.7
        parts.append(torch.einsum("hij,jhd->ihd", scores.softmax(-1) * mask, value[start:stop]))
    theirs, mixed = torch.cat(parts), ours(qkv)
    torch.testing.assert_close(mixed, theirs, rtol=1e-4, atol=1e-5)
    found, wanted = (torch.autograd.grad(one, qkv, slope)[0] for one in (mixed, theirs))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert torch.equal(mixed, ours(qkv)) and not torch.equal(mixed, ours(qkv, seed + 1))


@needs_kernels
def test_drops_of_rows_columns_and_programs_do_not_go_together() -> None:
    """Over many keys: the rate within each row and column, and how often neighbours and other keys agree."""
    from drawn_masks import drawn_masks

    stays = drawn_masks(programs=24, size=128, rate=0.1, seed=3)
    gone = (stays == 0).double()
    assert abs(float(gone.mean()) - 0.1) < 0.002
    for axis in (1, 2):  # 24 rows or columns of the same place, 3,072 draws: a deviation is 0.0054
        assert float((gone.mean((0, axis)) - 0.1).abs().max()) < 0.024
    pairs = [(gone[:, 1:], gone[:, :-1]), (gone[:, :, 1:], gone[:, :, :-1]), (gone[1:], gone[:-1])]
    for one, other in [*pairs, (gone[:, 64:], gone[:, :64])]:
        assert abs(float((one * other).mean()) - 0.01) < 0.0015
    mirrored = gone * gone.mT * (1 - torch.eye(128))
    assert abs(float(mirrored.sum()) / (24 * 128 * 127) - 0.01) < 0.0015
    # of four corners of a rectangle none is settled by the others
    corners = [gone[:, a : -8 + a or None, b : -8 + b or None] for a in (0, 8) for b in (0, 8)]
    assert abs(float((corners[0] * corners[1] * corners[2] * corners[3]).mean()) - 1e-4) < 1e-4


@pytest.mark.parametrize(("longest", "dropout"), [(512, 0.0), (512, 0.1), (128, 0.1)])
def test_a_compiled_model_is_one_graph_that_writes_nothing_it_was_given(
    longest: int, dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a Hopper card, without one. A lookup that the compiler cannot follow breaks the graph at every layer;
    a kernel that seems to write its bounds forbids recording. Either makes a step ten times as slow."""
    if INTERPRETED or importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed: graphs with our kernels are not checked here")
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import default_partition
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    class Hopper:
        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", 90, 32)

        def get_current_device(self) -> int:
            return 0

    class Traced(Exception):
        pass

    driver.set_active(Hopper())
    device = torch.device("cuda", 0)
    monkeypatch.setitem(card._CARDS, 0, (9, 0))
    attention.look_up_kernels(device)
    choose, choose_gelu, choose_lowered = attention.own_path, pointwise.own_gelu, pointwise.own_lowered
    monkeypatch.setattr(attention, "own_path", lambda _, *rest: choose(device, *rest))
    monkeypatch.setattr(pointwise, "own_gelu", lambda _, *rest: choose_gelu(device, *rest))
    monkeypatch.setattr(pointwise, "own_lowered", lambda _, *rest: choose_lowered(device, *rest))
    choose_norms = residual.own_norms
    monkeypatch.setattr(residual, "own_norms", lambda _, *rest: choose_norms(device, *rest))
    found: list[list[str]] = []

    def note(graph: torch.fx.GraphModule, inputs: object) -> object:
        found.append([str(node.target) for node in graph.graph.nodes])

        def stop(*_: object) -> None:
            raise Traced

        return make_boxed_func(stop)

    both: list[str] = []  # forward and backward, before they are parted

    def part(graph: torch.fx.GraphModule, inputs: object, **rest: Any) -> object:
        both.extend(str(node.target) for node in graph.graph.nodes)
        return default_partition(graph, inputs, **rest)

    torch._dynamo.reset()
    model = Transformer(
        Settings(
            layers=3,
            width=128,
            heads=2,
            vocab=50,
            context=512,
            dropout=dropout,
            attention_dropout=dropout,
            activation="gelu_tanh",
        )
    )
    backend = aot_autograd(fw_compiler=note, bw_compiler=note, partition_fn=part)
    model.compile(fullgraph=True, dynamic=False, backend=backend)
    with pytest.raises(Traced), torch.autocast("cpu", torch.bfloat16):
        model(pack([[1] * longest, [2] * 100, []], longest=longest), only=torch.tensor([1, 5, 200]))
    kernels = [name for name in found[0] if "triton_kernel" in name]
    assert kernels == ["triton_kernel_wrapper_functional"] * 12  # attention, activation and both sums of each layer
    # the product before a GELU's derivative is in its kernel: of the eight of a layer's backward pass seven are left
    assert both.count("etude.gelu_lowered_backward.default") == 3
    assert both.count("aten.mm.default") == 3 * 7
    assert not any("copy_" in name for name in found[0])  # what is written is given back by a copy


@needs_kernels
@pytest.mark.parametrize("post", [False, True])
@pytest.mark.parametrize("renew", [False, True])
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_residual_sum_and_its_norm(
    post: bool, renew: bool, alone: bool, dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    from etude.nn import norm_kernel

    monkeypatch.setattr(norm_kernel, "PROGRAMS", 3)  # 13 rows: unequal shares, and a last block that is not full
    assert norm_kernel.pieces(48) == (32, 16)
    sum_and_norm("cpu", (13, 48), post, renew, alone, dropout)


@pytest.mark.gpu
@pytest.mark.parametrize("post", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_residual_sum_and_its_norm_on_a_gpu(post: bool, dropout: float) -> None:
    sum_and_norm("cuda", (1001, 768), post, renew=post, alone=False, dropout=dropout)


def sum_and_norm(device: str, rows: tuple[int, int], post: bool, renew: bool, alone: bool, dropout: float) -> None:
    """Against float64. With `post` the gradient that comes for the sum counts as one of the norm."""
    from etude.nn.norm_kernel import add_norm

    torch.manual_seed(1)
    width, epsilon = rows[1], 1e-5
    old = (torch.rand(width, device=device) + 0.5, torch.randn(width, device=device)) if renew else (None, None)
    given = [torch.randn(shape, device=device) for shape in (rows, rows, (width,), (width,), (width,))]
    by_total, by_normed = torch.randn(rows, device=device), torch.randn(rows, device=device)
    x, branch, bias, weight, shift = ours = [one.clone().requires_grad_() for one in given]
    seed = torch.tensor([7], device=device) if dropout else None
    total, normed, *_ = add_norm(x, *old, branch, bias, weight, shift, seed, dropout, epsilon, post)
    # which elements stay is read off a branch of ones on a stream of zeros
    nothing, everything = torch.zeros(rows, device=device), torch.ones(rows, device=device)
    stays = add_norm(nothing, None, None, everything, None, given[3], given[4], seed, dropout, epsilon, post)[
        0
    ].double()
    assert abs(float((stays > 0).double().mean()) - (1 - dropout)) < 0.06
    torch.testing.assert_close(
        stays[stays > 0], torch.full_like(stays[stays > 0], 1 / (1 - dropout)), rtol=1e-6, atol=0
    )

    exact = [one.double().requires_grad_() for one in given]
    if renew:
        begun = F.layer_norm(given[0].double(), (width,), *(one.double() for one in old), epsilon)
        exact[0] = begun.requires_grad_()
    summed = exact[0] + (exact[1] + exact[2] - exact[2].detach()) * stays  # the branch has its bias already
    theirs = F.layer_norm(summed, (width,), exact[3], exact[4], epsilon)
    torch.testing.assert_close((total.double(), normed.double()), (summed, theirs), rtol=1e-5, atol=2e-5)

    outputs, slopes = ([normed], [by_normed]) if alone else ([total, normed], [by_total, by_normed])
    found = torch.autograd.grad(outputs, ours, slopes)
    if post:
        wanted = torch.autograd.grad(theirs, exact, sum(one.double() for one in slopes))
    else:
        wanted = torch.autograd.grad([summed, theirs][alone:], exact, [one.double() for one in slopes])
    for one, other in zip(found, wanted, strict=True):
        assert float((one.double() - other).abs().max() / other.abs().max()) < 2e-5


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_rows_of_two_powers_of_two() -> None:
    from etude.nn.norm_kernel import pieces

    found = {width: pieces(width) for width in (768, 1024, 256, 384, 32, 640, 700, 31, 16)}
    assert found[768] == (512, 256) and found[1024] == (512, 512) and found[256] == (128, 128)
    assert found[384] == (256, 128) and found[32] == (16, 16) and found[640] == (512, 128)
    assert found[700] is None and found[31] is None and found[16] is None


@needs_kernels
def test_the_softmax_of_a_vocabulary() -> None:
    from etude.nn.softmax_kernel import surprise_and_slope_

    torch.manual_seed(1)
    logits, targets = torch.randn(7, 3008) * 3, torch.randint(0, 3000, (7,))
    targets[[0, 4]] = losses.IGNORE
    total, slope = losses._surprise_and_slope(logits, None, targets, 3000, True)
    found = surprise_and_slope_(logits, targets, 3000)
    torch.testing.assert_close(found.sum(), total, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits, slope, rtol=1e-5, atol=1e-6)


@needs_kernels
@pytest.mark.parametrize("kind", ["skip-gram", "CBOW", "sub-words"])
def test_one_program_learns_one_word_after_another(kind: str) -> None:
    """The tables that the plain loop leaves, but for its table of the sigmoid: a thousandth of the largest change."""
    from etude import chance
    from etude.nn.kernels import windows_plain as plain
    from etude.nn.kernels import windows_triton as ours
    from etude.nn.kernels.tables import NO_PATHS, Subwords, noise_table, whole_words

    draw, vocab, count = np.random.default_rng(0), 50, 60
    noise = noise_table(draw.integers(1, 50, vocab) ** 0.75)
    words, place, reach = draw.integers(0, vocab, count), np.arange(count), draw.integers(1, 6, count)
    low = np.maximum(place - reach, 0).astype(np.int32)
    high = np.minimum(place + reach + 1, count).astype(np.int32)
    keys = chance.bits(np.full(count, 123456789, np.uint64), place)
    spelled = whole_words(vocab)
    if kind == "sub-words":
        rows = [np.r_[word, vocab + draw.integers(0, 30, draw.integers(0, 20))] for word in range(vocab)]
        bounds = np.concatenate([[0], np.cumsum([len(one) for one in rows])])
        growth = [(np.unique(one, return_counts=True)[1] ** 2).sum() / len(one) for one in rows]
        spelled = Subwords(bounds, np.concatenate(rows).astype(np.int32), np.array(growth, np.float32))
    before = [draw.normal(0, 0.3, (size, 20)).astype(np.float32) for size in (vocab + 30, vocab)]
    inputs, outputs = (table.copy() for table in before)
    shared = (words, low, high, keys, 0, count, inputs, outputs, spelled, noise, NO_PATHS, 5, 0.05)
    loss = plain.cbow(*shared, False) if kind == "CBOW" else plain.skip_gram(*shared)
    tables = [torch.from_numpy(table.copy()) for table in before]
    arrays = (words, low, high, keys.view(np.int64))
    draws = [torch.from_numpy(one.astype(np.int64)) for one in (noise.accept, noise.alias)]
    given = (*(torch.from_numpy(one) for one in arrays), *tables, *draws)
    if kind == "CBOW":
        found = ours.cbow(*given, 5, False, 5, 0.05, 1)
    else:
        parts = tuple(torch.from_numpy(one) for one in spelled) if kind == "sub-words" else None
        found = ours.skip_gram(*given, parts, 5, 0.05, 1)
    assert float(found) == pytest.approx(loss, rel=1e-3)
    for start, one, other in zip(before, (inputs, outputs), tables, strict=True):
        assert np.abs(one - other.numpy()).max() < 3e-3 * np.abs(one - start).max()


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("longest", [128, 40])
def test_short_sequences_on_a_gpu(causal: bool, longest: int) -> None:
    draw = np.random.default_rng(0)
    layout = layout_of([*draw.integers(0, longest + 1, 40), longest, 1], longest).to("cuda")
    torch.manual_seed(1)
    qkv = torch.randn(layout.total, 3, 4, 64, device="cuda").bfloat16().requires_grad_()
    slope = torch.randn(layout.total, 4, 64, device="cuda").bfloat16()
    ours = attention_of(qkv, layout, causal, "short", slope)
    wide = qkv.detach().double().requires_grad_()
    theirs = attention_of(wide, layout, causal, "reference", slope.double())
    for one, other in zip(ours, theirs, strict=True):
        assert float((one.double() - other).abs().max() / other.abs().max()) < 1e-2


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
def test_tiles_on_a_gpu(causal: bool) -> None:
    draw = np.random.default_rng(0)
    layout = layout_of([*draw.integers(0, 1025, 12), 1024, 1, 0], 1024).to("cuda")
    torch.manual_seed(1)
    qkv = torch.randn(layout.total, 3, 4, 64, device="cuda").bfloat16().requires_grad_()
    slope = torch.randn(layout.total, 4, 64, device="cuda").bfloat16()
    ours, again = (attention_of(qkv, layout, causal, "tiled", slope) for _ in range(2))
    wide = qkv.detach().double().requires_grad_()
    theirs = attention_of(wide, layout, causal, "reference", slope.double())
    for one, same, other in zip(ours, again, theirs, strict=True):
        assert float((one.double() - other).abs().max() / other.abs().max()) < 1e-2
        assert torch.equal(one, same)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_a_gelu_on_a_gpu(name: pointwise.Activation) -> None:
    """Value and gradients in bf16, against float64, and the same to the bit again."""
    torch.manual_seed(1)
    projection = torch.nn.Linear(32, 640, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(301, 32, device="cuda", dtype=torch.bfloat16)
    slope = torch.randn(301, 640, device="cuda", dtype=torch.bfloat16)

    def results(x: Tensor, projection: torch.nn.Linear) -> list[Tensor]:
        out = pointwise.activated(x, projection, pointwise.ACTIVATIONS[name])
        return [
            out.detach().double(),
            *torch.autograd.grad(out, [projection.weight, projection.bias], slope.to(out.dtype)),
        ]

    assert pointwise.own_gelu(x.device, x.dtype) is not None
    ours, again = (results(x, projection) for _ in range(2))
    theirs = results(x.double(), projection.double())
    for one, same, other in zip(ours, again, theirs, strict=True):
        assert torch.equal(one, same)
        assert float((one.double() - other).abs().max() / other.abs().max()) < 2e-2


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["eager", "compiled", "recorded"])
@pytest.mark.parametrize("tanh", [False, True])
def test_a_gelu_s_slope_within_the_product_on_a_gpu(tanh: bool, way: str) -> None:
    """In bf16 from float32 masters, against float64; the same to the bit again, compiled, and from a recording."""
    torch.manual_seed(1)
    up, down = (torch.nn.Linear(*shape, device="cuda") for shape in ((192, 640), (640, 192)))
    x = torch.randn(1100, 192, device="cuda", requires_grad=True)  # 9 tiles of rows: a group of 8, and a part of one
    slope = torch.randn(1100, 192, device="cuda", dtype=torch.bfloat16)
    if pointwise.own_lowered(x.device, torch.bfloat16) is None:
        pytest.skip("the kernel needs a Hopper card")
    compiled = torch.compile(pointwise.fed_forward, fullgraph=True, dynamic=False)

    def results(through: Any = pointwise.fed_forward) -> list[Tensor]:
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):  # a recording must not meet older copies
            out = through(x, up, down, pointwise.gelu_tanh if tanh else pointwise.gelu, down.bias)
        return [out.detach(), *torch.autograd.grad(out, [x, *up.parameters(), *down.parameters()], slope)]

    if way == "eager":
        ours, again = results(), results()
    elif way == "compiled":
        ours, again = results(compiled), results(compiled)
    else:
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            results()
        torch.cuda.current_stream().wait_stream(aside)
        recording = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recording):
            ours = results()
        with torch.no_grad():
            x.copy_(torch.randn_like(x))  # numbers that were not there when it was recorded
        recording.replay()
        again = results()
    for one, same, other in zip(ours, again, fed_exactly(x, up, down, tanh, slope), strict=True):
        assert torch.equal(one, same)
        assert float((one.double() - other).abs().max() / other.abs().max()) < 2e-2


@pytest.mark.gpu
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_a_compiled_model_on_a_gpu(placement: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All our kernels at work: gradients in bf16 are those in float32, and the same to the bit again."""
    attention.look_up_kernels(torch.device("cuda", 0))
    torch.manual_seed(1)
    settings = Settings(layers=3, width=384, heads=6, vocab=50, context=512, norm=placement, direction="both")
    model = Transformer(settings).cuda()
    compiled = torch.compile(model, fullgraph=True, dynamic=False)
    draw = np.random.default_rng(0)
    packed = pack([draw.integers(0, 50, length).tolist() for length in (300, 512, 7, 201)]).to("cuda")
    only = torch.tensor([3, 1, 700, 1019, 820, 299], device="cuda")
    slope = torch.randn(6, 384, device="cuda")
    ran: list[bool] = []
    choose = residual.own_norms

    def noted(*values: Any) -> Any:
        ran.append(choose(*values) is not None)
        return choose(*values)

    monkeypatch.setattr(residual, "own_norms", noted)

    def results(through: Any, half: bool) -> list[Tensor]:
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            last = through(packed, only=only).last
        return [last.detach().float(), *torch.autograd.grad((last.float() * slope).sum(), list(model.parameters()))]

    names = ["states", *(name for name, _ in model.named_parameters())]
    plain = results(model, False)
    ours, again = results(compiled, True), results(compiled, True)
    assert ran[0] is False and ran[1] is True
    for name, one, same, other in zip(names, ours, again, plain, strict=True):
        # a table's gradient is added up by whoever comes first, unless train.deterministic is set
        assert torch.equal(one, same) or name.startswith("embedding."), name
        assert float((one - other).norm() / other.norm()) < 3e-2, name


@pytest.mark.gpu
@pytest.mark.parametrize("path", attention.OWN)
def test_dropout_on_a_gpu_keeps_the_mean(path: str) -> None:
    layout = layout_of([64, 3, 0, 17, 40, 1], 64).to("cuda")
    torch.manual_seed(1)
    qkv = torch.randn(layout.total, 3, 4, 64, device="cuda").bfloat16()
    query, key, value = qkv.unbind(1)
    plain = attend(query, key, value, layout, causal=False, path="reference")
    drawn = [attend_packed(qkv, layout, causal=False, dropout=0.2, path=path).double() for _ in range(400)]
    torch.testing.assert_close(torch.stack(drawn).mean(0), plain.double(), rtol=0.1, atol=0.1)

"""Whole models with all our kernels, and the kernels that have no file of their own here; on a GPU by name."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from etude.models.transformer import Settings, Transformer
from etude.nn import block, feedforward, losses, residual
from etude.nn.attention import dispatch as attention
from etude.nn.packed import pack
from etude.nn.triton import availability


def test_in_the_interpreter(in_the_interpreter: Callable[[str], None]) -> None:
    in_the_interpreter(__file__)


BERT: dict[str, Any] = {"activation": "gelu_tanh"}
MODERN: dict[str, Any] = {"activation": "gelu", "gated": True, "bias": False, "positions": "rotary"}


@pytest.mark.parametrize(
    ("longest", "dropout", "axes"), [(512, 0.0, BERT), (512, 0.1, BERT), (128, 0.1, BERT), (128, 0.0, MODERN)]
)
def test_a_compiled_model_is_one_graph_that_writes_nothing_it_was_given(
    longest: int, dropout: float, axes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a Hopper GPU, without one. A lookup that the compiler cannot follow breaks the graph at every layer;
    a kernel that seems to write its bounds forbids recording. Either makes a step ten times as slow."""
    if os.environ.get("TRITON_INTERPRET") == "1" or importlib.util.find_spec("triton") is None:
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
    for index in (0, None):  # that of the device, and of tensors on a CPU in its place
        monkeypatch.setitem(availability._CAPABILITIES, index, (9, 0))
    attention.load_kernels(device)
    choose, choose_gelu, choose_lowered = (
        attention.choose_kernel_path,
        feedforward.gelu_kernels,
        feedforward.gelu_linear_kernels,
    )
    monkeypatch.setattr(attention, "choose_kernel_path", lambda _, *rest: choose(device, *rest))
    monkeypatch.setattr(feedforward, "gelu_kernels", lambda _, *rest: choose_gelu(device, *rest))
    monkeypatch.setattr(feedforward, "gelu_linear_kernels", lambda _, *rest: choose_lowered(device, *rest))
    choose_gated = feedforward.gated_kernels
    monkeypatch.setattr(feedforward, "gated_kernels", lambda _, *rest: choose_gated(device, *rest))
    choose_norms = residual.residual_norm_kernels
    monkeypatch.setattr(residual, "residual_norm_kernels", lambda _, *rest: choose_norms(device, *rest))
    monkeypatch.setattr(block, "supports_packed", lambda qkv: availability.supports_half_kernels(device, qkv.dtype))
    result: list[list[str]] = []

    def note(graph: torch.fx.GraphModule, inputs: object) -> object:
        result.append([str(node.target) for node in graph.graph.nodes])

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
            layers=2,
            width=128,
            heads=2,
            vocab=50,
            context=512,
            dropout=dropout,
            attention_dropout=dropout,
            **axes,
        )
    )
    backend = aot_autograd(fw_compiler=note, bw_compiler=note, partition_fn=part)
    model.compile(fullgraph=True, dynamic=False, backend=backend)
    with pytest.raises(Traced), torch.autocast("cpu", torch.bfloat16):
        model(pack([[1] * longest, [2] * 100, []], longest=longest), only=torch.tensor([1, 5, 200]))
    actual = [name for name in result[0] if "triton_kernel" in name or "attend_tiled" in name]
    if axes is MODERN:
        # attention, which rotates, the gate and both sums of each layer; cosines are computed once, outside the graph
        assert len(actual) == 2 * 4 and result[0].count("etude.compute_rotation.default") == 1
        assert sum("triton_kernel" in name for name in both) == 2 * 2 * 4
        assert both.count("aten.mm.default") == 2 * 3 * 4  # gate and up are one product of the four
        assert not any("cos" in name or "copy_" in name for name in both if "_to_copy" not in name)
        return
    assert len(actual) == 2 * 4  # attention, activation and both sums of each layer
    # the product before a GELU's derivative is in its kernel: of the eight of a layer's backward pass seven are left
    assert both.count("etude.gelu_linear_backward.default") == 2
    assert both.count("aten.mm.default") == 2 * 7
    assert not any("copy_" in name for name in result[0])  # what is written is given back by a copy


@pytest.mark.gpu
@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("longest", [512, 128])
@pytest.mark.parametrize("axes", [{}, MODERN, MODERN | {"norm_kind": "rms"}], ids=["bert", "modern", "modern-rms"])
def test_a_compiled_model_on_a_gpu(placement: Any, longest: int, axes: dict[str, Any]) -> None:
    """All our kernels at work: gradients in bf16 are those in float32, and the same to the bit again."""
    from torch._inductor.compile_fx import compile_fx

    attention.load_kernels(torch.device("cuda", 0))
    torch._dynamo.reset()  # twelve models of one code are more than it compiles
    torch.manual_seed(1)
    settings = Settings(layers=3, width=384, heads=6, vocab=50, context=512, norm=placement, direction="both", **axes)
    model = Transformer(settings).cuda()
    operators: list[str] = []  # a patched function that takes notes would itself be compiled, with its notes

    def note(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        operators.extend(str(node.target) for node in graph.graph.nodes)
        return compile_fx(graph, inputs)

    compiled = torch.compile(model, fullgraph=True, dynamic=False, backend=note)
    draw = np.random.default_rng(0)
    lengths = [min(longest, length) for length in (300, 512, 7, 201, 512)]
    packed = pack([draw.integers(0, 50, length).tolist() for length in lengths]).to("cuda")
    only = torch.tensor([3, 1, 300, packed.layout.total - 1, 261, 127], device="cuda")
    grad_out = torch.randn(6, 384, device="cuda")

    def results(through: Any, half: bool) -> list[Tensor]:
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            last = through(packed, only=only).last
        return [last.detach().float(), *torch.autograd.grad((last.float() * grad_out).sum(), list(model.parameters()))]

    names = ["states", *(name for name, _ in model.named_parameters())]
    plain = results(model, False)
    actual, repeated = results(compiled, True), results(compiled, True)
    assert sum("add_norm" in name for name in operators) == 2 * settings.layers, operators
    for name, left, repeat, right in zip(names, actual, repeated, plain, strict=True):
        # a table's gradient is added up by whoever comes first, unless train.deterministic is set
        assert torch.equal(left, repeat) or name.startswith("embedding."), name
        assert float((left - right).norm() / right.norm()) < 3e-2, name


@pytest.mark.interpreted
@pytest.mark.parametrize("vocab, columns", [(100, 128), (128, 128), (300, 320), (256, 320), (130, 448)])
def test_the_softmax_of_a_vocabulary(vocab: int, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In tiles of 128: less than one, exactly one, several with and without a rest, and columns that mean nothing."""
    from etude.nn.triton import cross_entropy as softmax_kernel

    monkeypatch.setattr(softmax_kernel, "LANES", 32)
    torch.manual_seed(1)
    logits, targets = torch.randn(7, columns) * 3, torch.randint(0, vocab, (7,))
    targets[[0, 4]] = losses.IGNORE
    targets[1], targets[2] = 0, vocab - 1
    expected, grad_out = losses._losses_and_grad(logits, None, targets, vocab, True)
    result = softmax_kernel.loss_and_grad_(logits, targets, vocab)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits, grad_out, rtol=1e-5, atol=1e-6)


@pytest.mark.interpreted
@pytest.mark.parametrize("kind", ["skip-gram", "CBOW", "sub-words"])
def test_one_program_learns_one_word_after_another(kind: str) -> None:
    """The tables that the plain loop leaves, but for its table of the sigmoid: a thousandth of the largest change."""
    from etude import chance
    from etude.objectives.word_vectors.kernels import windows_plain as plain
    from etude.objectives.word_vectors.kernels import windows_triton
    from etude.objectives.word_vectors.kernels.tables import NO_PATHS, Subwords, noise_table, whole_words

    draw, vocab, count = np.random.default_rng(0), 50, 12
    noise = noise_table(draw.integers(1, 50, vocab) ** 0.75)
    words, place, reach = draw.integers(0, vocab, count), np.arange(count), draw.integers(1, 6, count)
    low = np.maximum(place - reach, 0).astype(np.int32)
    high = np.minimum(place + reach + 1, count).astype(np.int32)
    keys = chance.random_bits(np.full(count, 123456789, np.uint64), place)
    spelled = whole_words(vocab)
    if kind == "sub-words":
        rows = [np.r_[word, vocab + draw.integers(0, 30, draw.integers(0, 20))] for word in range(vocab)]
        bounds = np.concatenate([[0], np.cumsum([len(left) for left in rows])])
        growth = [(np.unique(left, return_counts=True)[1] ** 2).sum() / len(left) for left in rows]
        spelled = Subwords(bounds, np.concatenate(rows).astype(np.int32), np.array(growth, np.float32))
    before = [draw.normal(0, 0.3, (size, 20)).astype(np.float32) for size in (vocab + 30, vocab)]
    inputs, outputs = (table.copy() for table in before)
    shared = (words, low, high, keys, 0, count, inputs, outputs, spelled, noise, NO_PATHS, 5, 0.05)
    loss = plain.cbow(*shared, False) if kind == "CBOW" else plain.skip_gram(*shared)
    tables = [torch.from_numpy(table.copy()) for table in before]
    arrays = (words, low, high, keys.view(np.int64))
    draws = [torch.from_numpy(left.astype(np.int64)) for left in (noise.accept, noise.alias)]
    arguments = (*(torch.from_numpy(left) for left in arrays), *tables, *draws)
    if kind == "CBOW":
        result = windows_triton.cbow(*arguments, 5, False, 5, 0.05, 1)
    else:
        parts = tuple(torch.from_numpy(left) for left in spelled) if kind == "sub-words" else None
        result = windows_triton.skip_gram(*arguments, parts, 5, 0.05, 1)
    assert float(result) == pytest.approx(loss, rel=1e-3)
    for start, left, right in zip(before, (inputs, outputs), tables, strict=True):
        assert np.abs(left - right.numpy()).max() < 3e-3 * np.abs(left - start).max()

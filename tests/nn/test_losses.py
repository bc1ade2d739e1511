"""The loss in chunks is the plain loss, gradients and all; first values are what the papers say."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from etude.nn import losses
from etude.nn.initialization import draw_key, fill_normal, init_weights, residual_scale
from etude.nn.losses import (
    IGNORE,
    choose_chunk_size,
    cross_entropy_sum,
    linear_copy_cross_entropy,
    linear_cross_entropy,
    linear_cross_entropy_and_draws,
    linear_losses_and_argmax,
)


def example(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(23, 8, generator=generator, dtype=dtype, requires_grad=True)
    weight = torch.randn(31, 8, generator=generator, dtype=dtype, requires_grad=True)
    bias = torch.randn(31, generator=generator, dtype=dtype, requires_grad=True)
    targets = torch.randint(0, 31, (23,), generator=generator)
    targets[[0, 5, 22]] = IGNORE
    return states, weight, bias, targets


@pytest.mark.parametrize("chunk", [1, 7, 23, 100, None])
@pytest.mark.parametrize("with_bias", [False, True])
def test_chunks_are_the_plain_loss(chunk: int | None, with_bias: bool) -> None:
    states, weight, bias, targets = example()
    inputs = (states, weight, bias) if with_bias else (states, weight)
    logits = states @ weight.T + (bias if with_bias else 0.0)
    plain = cross_entropy_sum(logits, targets)
    result = linear_cross_entropy(states, weight, bias if with_bias else None, targets, chunk)
    torch.testing.assert_close(result, plain, rtol=1e-12, atol=1e-12)
    for actual, reference in zip(
        torch.autograd.grad(result * 0.37, inputs), torch.autograd.grad(plain * 0.37, inputs), strict=True
    ):
        torch.testing.assert_close(actual, reference, rtol=1e-10, atol=1e-12)


def test_chunks_are_the_plain_loss_in_float32() -> None:
    states, weight, bias, targets = example(torch.float32)
    plain = cross_entropy_sum(states @ weight.T + bias, targets)
    result = linear_cross_entropy(states, weight, bias, targets, 5)
    torch.testing.assert_close(result, plain, rtol=1e-6, atol=1e-6)
    for actual, reference in zip(
        torch.autograd.grad(result, (states, weight, bias)),
        torch.autograd.grad(plain, (states, weight, bias)),
        strict=True,
    ):
        torch.testing.assert_close(actual, reference, rtol=1e-5, atol=1e-6)


def test_no_chunk_ever_holds_all_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = []
    original = losses._chunk_losses_and_grad
    monkeypatch.setattr(losses, "_chunk_losses_and_grad", lambda *given: rows.append(len(given[0])) or original(*given))
    states, weight, bias, targets = example()
    linear_cross_entropy(states, weight, bias, targets, 6).backward()
    assert rows == [6, 6, 6, 5], "and each chunk once: the backward pass computes no logits anew"


def test_a_compiled_loss_runs_as_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced by a compiler, writes in place were lost on a GPU: gradients of about zero."""
    states, weight, bias, targets = example()
    traced: list[bool] = []
    plain_chunk = losses._chunk_losses_and_grad

    def record(*arguments: Any) -> tuple[Tensor, Tensor | None]:
        traced.append(torch.compiler.is_compiling() or isinstance(arguments[0], FakeTensor))
        return plain_chunk(*arguments)

    monkeypatch.setattr(losses, "_chunk_losses_and_grad", record)

    def double_loss(states: Tensor) -> Tensor:
        return 2 * linear_cross_entropy(states * 1.5, weight, bias, targets, 7)

    torch._dynamo.reset()
    compiled = torch.compile(double_loss, backend="aot_eager", dynamic=False)(states)
    assert traced == [False] * 4  # four chunks, each computed once
    inputs = (states, weight, bias)
    for actual, expected in zip(
        torch.autograd.grad(compiled, inputs), torch.autograd.grad(double_loss(states), inputs), strict=True
    ):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_unused_slots_add_nothing() -> None:
    states, weight, bias, targets = example()
    used = targets != IGNORE
    assert torch.allclose(
        linear_cross_entropy(states, weight, bias, targets),
        linear_cross_entropy(states[used], weight, bias, targets[used]),
    )
    nothing = linear_cross_entropy(states, weight, bias, torch.full_like(targets, IGNORE))
    nothing.backward()
    assert nothing.item() == 0.0
    assert states.grad is not None
    assert float(states.grad.abs().sum()) == 0.0
    assert linear_cross_entropy(states[:0], weight, bias, targets[:0]).item() == 0.0


def test_only_tensors_that_need_a_gradient_get_one() -> None:
    states, weight, _, targets = example()
    loss = linear_cross_entropy(states, weight.detach(), None, targets)
    loss.backward()
    assert states.grad is not None
    assert weight.grad is None
    assert not linear_cross_entropy(states.detach(), weight.detach(), None, targets).requires_grad


def test_a_large_logit_does_not_overflow() -> None:
    states, weight, _, targets = example(torch.float32)
    assert torch.isfinite(linear_cross_entropy(states * 1e4, weight, None, targets))


def test_autocast_keeps_the_softmax_in_float32() -> None:
    states, weight, bias, targets = example(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        result = linear_cross_entropy(states, weight, bias, targets, 5)
        rounded = (states.bfloat16() @ weight.bfloat16().T).float() + bias
        plain = cross_entropy_sum(rounded, targets)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, plain, rtol=1e-6, atol=1e-6)
    result.backward()
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32


def test_scores_of_every_slot() -> None:
    states, weight, bias, targets = example()
    surprise, likeliest = linear_losses_and_argmax(states, weight, bias, targets, 4)
    logits = states @ weight.T + bias
    torch.testing.assert_close(surprise.sum(), cross_entropy_sum(logits, targets).detach())
    assert float(surprise[0]) == 0.0
    assert torch.equal(likeliest, logits.argmax(-1))
    assert not surprise.requires_grad


def test_a_chunk_fits_its_memory() -> None:
    assert choose_chunk_size(50_257) * 50_257 <= 2**25 < (choose_chunk_size(50_257) + 1) * 50_257
    assert choose_chunk_size(10**9) == 1


def test_on_a_gpu_all_chunks_have_one_size() -> None:
    chunk = choose_chunk_size(50_257, "cuda", 32_768)
    assert chunk % 64 == 0
    assert chunk * 50_257 <= 2**30
    assert 32_768 / chunk > 1, "one chunk fewer would not fit"
    assert -(-32_768 // chunk) * chunk - 32_768 < 64 * 4, "and the last one is nearly as large as the others"


@pytest.mark.parametrize("columns", [31, 64])
@pytest.mark.parametrize("with_bias", [False, True])
def test_the_form_for_a_gpu_is_that_of_a_cpu(columns: int, with_bias: bool) -> None:
    """Columns behind the vocabulary weigh nothing and pull at nothing."""
    states, weight, bias, targets = (item.detach() for item in example())
    said = bias if with_bias else None
    wide = torch.cat([weight, torch.zeros(columns - 31, 8, dtype=weight.dtype)])
    total, grad_out = losses._chunk_losses_and_grad(states, weight, said, targets, 31, True)
    result, padded = losses._losses_and_grad(states @ wide.T, said, targets, 31, True)
    torch.testing.assert_close(result, total, rtol=1e-12, atol=1e-12)
    assert grad_out is not None
    assert padded is not None
    torch.testing.assert_close(padded[:, :31], grad_out, rtol=1e-10, atol=1e-12)
    assert not padded[:, 31:].any()


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bfloat16 says so, and goes on
@pytest.mark.parametrize("dtype, close", [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 0.004)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_blocks_of_a_chunk_are_the_whole(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, close: float, with_bias: bool
) -> None:
    """The loss and its slope by the logits, against softmax - one-hot in float64; 23 slots in blocks of 4 and of 3."""
    monkeypatch.setattr(losses, "_BLOCK", 31 * 4)
    states, weight, bias, targets = (item.detach() for item in example())
    states, weight = states.to(dtype), weight.to(dtype)
    said = bias.to(torch.float32 if dtype != torch.float64 else dtype) if with_bias else None
    grad_bias = torch.full((31,), 2.0, dtype=torch.promote_types(dtype, torch.float32))  # there is something already
    total, grad_out = losses._chunk_losses_and_grad(states, weight, said, targets, 31, True, grad_bias)
    logits = states.double() @ weight.double().T + (0.0 if said is None else said.double())
    assert float(total.sum()) == pytest.approx(float(cross_entropy_sum(logits, targets)), rel=close)
    used = targets != IGNORE
    expected = (logits.softmax(-1) - F.one_hot(targets.clamp(min=0), 31)) * used[:, None]
    assert grad_out is not None
    assert grad_out.dtype == dtype
    assert float((grad_out.double() - expected).norm() / expected.norm()) < close
    assert not grad_out[~used].any()
    torch.testing.assert_close(grad_bias.double() - 2.0, expected.sum(0), rtol=0, atol=10 * close)
    repeated, nothing = losses._chunk_losses_and_grad(states, weight, said, targets, 31, False)
    assert torch.equal(repeated, total)
    assert nothing is None


@pytest.mark.parametrize("chunk", [1, 7, 23, None])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_mixture_with_a_copy_is_the_plain_one(chunk: int | None, with_bias: bool) -> None:
    """p = (1 - D) softmax + D at the token at hand: the sum of losses, and every gradient."""
    states, weight, bias, targets = example()
    odds = torch.linspace(-6, 6, 23, dtype=torch.float64, requires_grad=True)
    is_copied = torch.arange(23) % 3 != 0
    used = targets != IGNORE
    probs = (states @ weight.T + (bias if with_bias else 0.0)).softmax(-1)
    share = odds.sigmoid()
    chosen = probs.gather(1, targets.clamp(min=0)[:, None]).squeeze(1)
    plain = -((1 - share) * chosen + share * is_copied).log()[used].sum()
    result = linear_copy_cross_entropy(states, weight, bias if with_bias else None, odds, targets, is_copied, chunk)
    torch.testing.assert_close(result, plain, rtol=1e-12, atol=1e-12)
    inputs = (states, weight, odds, bias)[: 3 + with_bias]
    for actual, reference in zip(
        torch.autograd.grad(result * 0.37, inputs), torch.autograd.grad(plain * 0.37, inputs), strict=True
    ):
        torch.testing.assert_close(actual, reference, rtol=1e-10, atol=1e-12)


def test_a_sure_copy_stays_finite() -> None:
    """Odds at which a share is 0 or 1 in float32, and a softmax that gives the token at hand nothing."""
    states, weight, bias, targets = (
        tensor.float() if tensor.is_floating_point() else tensor for tensor in map(Tensor.detach, example())
    )
    states, odds = (100 * states).requires_grad_(), torch.linspace(-200, 200, 23, requires_grad=True)
    loss = linear_copy_cross_entropy(states, weight, bias, odds, targets, torch.ones(23, dtype=torch.bool))
    grads = torch.autograd.grad(loss, (states, odds))
    assert all(bool(torch.isfinite(tensor).all()) for tensor in (loss, *grads))


@pytest.mark.gpu
def test_evaluations_on_a_gpu_hold_a_part_of_the_logits() -> None:
    """16,384 slots of 30,522 words are 2 GB in float32, and several such tensors were held at once."""
    states, weight = torch.randn(16_384, 64, device="cuda"), torch.randn(30_522, 64, device="cuda")
    bias, targets = torch.randn(30_522, device="cuda"), torch.randint(0, 30_522, (16_384,), device="cuda")
    for evaluate, limit in ((linear_losses_and_argmax, 2.2), (linear_cross_entropy, 1.2)):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            evaluate(states, weight, bias, targets)
        assert torch.cuda.max_memory_allocated() - before < limit * 2**30


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_a_gpu_draws_the_tokens_of_a_cpu(compiled: bool) -> None:
    """Within a graph that is compiled and without: logits differ in their last bits, so a few draws may."""
    generator = torch.Generator().manual_seed(1)
    given = [torch.randn(*shape, generator=generator) for shape in ((3000, 64), (1001, 64), (1001,))]
    targets, keys = torch.randint(0, 1001, (3000,), generator=generator), torch.arange(3000) * 7919
    expected, drawn = linear_cross_entropy_and_draws(*given, targets, keys, 1.5)
    assert len(drawn.unique()) > 500

    def compute(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        loss, samples = linear_cross_entropy_and_draws(*tensors, 1.5, 1024)
        return 2 * loss, samples + 0

    inputs = [tensor.cuda() for tensor in (*given, targets, keys)]
    for tensor in inputs[:3]:
        tensor.requires_grad_()
    loss, samples = (torch.compile(compute) if compiled else compute)(*inputs)
    torch.testing.assert_close(loss.cpu(), 2 * expected, rtol=1e-4, atol=0)
    assert float((samples.cpu() == drawn).float().mean()) > 0.998


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_mixes_a_copy_as_a_cpu_does(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    given = [torch.randn(*shape, generator=generator) for shape in ((300, 64), (1001, 64), (1001,), (300,))]
    targets = torch.randint(0, 1001, (300,), generator=generator)
    targets[::7] = IGNORE
    is_copied = torch.rand(300, generator=generator) < 0.8
    actual = [tensor.cuda().requires_grad_() for tensor in given]
    reference = [tensor.double().requires_grad_() for tensor in given]
    with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
        result = linear_copy_cross_entropy(*actual, targets.cuda(), is_copied.cuda(), 128)
    expected = linear_copy_cross_entropy(*reference, targets, is_copied)
    close = 1e-4 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(result.cpu().double(), expected, rtol=close, atol=close)
    for left, right in zip(torch.autograd.grad(result, actual), torch.autograd.grad(expected, reference), strict=True):
        assert float((left.cpu().double() - right).norm() / right.norm()) < close


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_gives_the_loss_of_a_cpu(dtype: torch.dtype) -> None:
    """Several chunks, an odd vocabulary, compiled: against float64 on the CPU."""
    generator = torch.Generator().manual_seed(1)
    states, weight, bias = (torch.randn(*s, generator=generator) for s in ((300, 64), (1001, 64), (1001,)))
    targets = torch.randint(0, 1001, (300,), generator=generator)
    targets[::7] = IGNORE
    actual = [left.cuda().requires_grad_() for left in (states, weight, bias)]
    reference = [left.double().requires_grad_() for left in (states, weight, bias)]
    with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
        result = linear_cross_entropy(actual[0], actual[1], actual[2], targets.cuda(), 128)
    expected = linear_cross_entropy(reference[0], reference[1], reference[2], targets)
    close = 1e-4 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(result.cpu().double(), expected, rtol=close, atol=close)
    for left, right in zip(torch.autograd.grad(result, actual), torch.autograd.grad(expected, reference), strict=True):
        assert float((left.cpu().double() - right).norm() / right.norm()) < close


def test_truncated_normals_end_at_two_deviations() -> None:
    drawn = torch.empty(400, 500)
    fill_normal(drawn, 3, 0.02, truncated=True)
    assert float(drawn.abs().max()) <= 0.04
    # the deviation of a unit normal cut at 2 is 0.8796
    assert abs(float(drawn.std()) / 0.02 - 0.8796) < 0.005
    fill_normal(drawn, 3, 0.02, truncated=False)
    assert abs(float(drawn.std()) / 0.02 - 1) < 0.005
    assert float(drawn.abs().max()) > 0.06


def test_residual_scaling_of_the_three_notes() -> None:
    assert [residual_scale("none", layer, 12) for layer in (0, 11)] == [1.0, 1.0]
    assert [residual_scale("paper", layer, 12) for layer in (0, 11)] == pytest.approx([1 / math.sqrt(24)] * 2)
    shrinking = [residual_scale("depth", layer, 12) for layer in (0, 1, 11)]
    assert shrinking == pytest.approx([1 / math.sqrt(2), 1 / 2, 1 / math.sqrt(24)])


def test_a_further_module_does_not_move_the_others() -> None:
    first, second = nn.ModuleDict({"a": nn.Linear(4, 4)}), nn.ModuleDict({"b": nn.Linear(9, 9), "a": nn.Linear(4, 4)})
    init_weights(first, key=5)
    init_weights(second, key=5)
    assert torch.equal(first["a"].weight, second["a"].weight)
    assert second["b"].bias.abs().sum().item() == 0.0


def test_a_factor_for_no_parameter_is_refused() -> None:
    with pytest.raises(ValueError, match="no parameter named"):
        init_weights(nn.Linear(2, 2), key=1, factors={"wieght": 0.5})


def test_the_global_seed_decides_the_key_and_a_second_model_gets_another() -> None:
    torch.manual_seed(11)
    keys = draw_key(), draw_key()
    torch.manual_seed(11)
    assert (draw_key(), draw_key()) == keys
    assert keys[0] != keys[1]

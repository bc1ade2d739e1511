"""A student's softmax beside a teacher's: torch's own divergence says the same, and so do its gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from etude.nn import soft_targets
from etude.nn.soft_targets import OutputLayer, soft_divergence
from etude.pretraining.fake_ranks import StepTracker


def output(tokens: int, vocab: int, width: int, seed: int) -> OutputLayer:
    chance = torch.Generator().manual_seed(seed)
    built = (torch.randn(*shape, generator=chance) for shape in ((tokens, width), (vocab, width), (vocab,)))
    return OutputLayer(*(item.requires_grad_() for item in built))


def plain(student: OutputLayer, teacher: OutputLayer, temperature: float) -> Tensor:
    """As DistilBERT's code has it: torch.nn.KLDivLoss of logits over the temperature, times its square."""
    said, known = (item.hidden @ item.table.t() + item.bias for item in (student, teacher))
    soft = F.kl_div((said / temperature).log_softmax(-1), (known / temperature).softmax(-1), reduction="batchmean")
    return soft * temperature**2 * len(said)  # batchmean is the mean over tokens


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 12), st.integers(2, 30), st.integers(1, 6), st.integers(1, 7), st.integers(1, 14),
    st.sampled_from([0.5, 1.0, 2.0, 4.0]),
)  # fmt: skip
def test_it_is_torchs_divergence(tokens: int, vocab: int, mine: int, its: int, chunk: int, temperature: float) -> None:
    student, teacher = output(tokens, vocab, mine, 0), output(tokens, vocab, its, 1)
    expected = torch.autograd.grad(plain(student, teacher, temperature) * 3, student)
    result = soft_divergence(student, teacher, temperature, chunk)
    torch.testing.assert_close(result, plain(student, teacher, temperature), rtol=1e-4, atol=1e-5)
    for left, right in zip(torch.autograd.grad(result * 3, student), expected, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("block", [1, 70, 10_000])
def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """A row's softmax does not know of its block; sums over rows differ by their order alone."""
    student, teacher = output(50, 30, 4, 0), output(50, 30, 5, 1)
    whole = soft_divergence(student, teacher, 2.0)
    expected = torch.autograd.grad(whole, student)
    monkeypatch.setattr(soft_targets, "_BLOCK", block)
    result = soft_divergence(student, teacher, 2.0, chunk=20)
    grads = torch.autograd.grad(result, student)
    for left, right in zip((result.detach(), *grads), (whole.detach(), *expected), strict=True):
        assert float((left - right).abs().max()) <= 1e-6 * float(right.abs().max())


def test_one_set_of_logits_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five of a whole chunk were: at 16,384 tokens of BERT's vocabulary on a GPU 2 GB each."""
    monkeypatch.setattr(soft_targets, "_BLOCK", 2**14)
    student, teacher = output(512, 4000, 4, 0), output(512, 4000, 4, 1)
    with StepTracker([*student, *teacher]) as tracker:
        inputs = tracker.current
        result = soft_divergence(student, teacher, 2.0, chunk=512)
        torch.autograd.grad(result, student)
    assert tracker.peak - inputs < 1.1 * 512 * 4000 * 4  # the rest: blocks, and gradients of the inputs


def test_a_compiled_divergence_runs_as_it_is_written() -> None:
    """Logits that become their gradient in place are no work for a compiler."""
    student, teacher = output(20, 30, 4, 0), output(20, 30, 5, 1)

    def double_divergence(*given: Tensor) -> Tensor:
        return soft_divergence(OutputLayer(*given), teacher, 2.0, chunk=7) * 2.0

    torch._dynamo.reset()
    compiled = torch.compile(double_divergence, backend="aot_eager", dynamic=False)(*student)
    expected = double_divergence(*student)
    torch.testing.assert_close(compiled, expected, rtol=0, atol=0)
    grads = torch.autograd.grad(compiled, student), torch.autograd.grad(expected, student)
    for left, right in zip(*grads, strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=0)


def test_tokens_that_are_left_out_say_nothing() -> None:
    student, teacher = output(9, 20, 4, 0), output(9, 20, 5, 1)
    counted = torch.tensor([True, False, True, True, False, False, True, True, False])
    chosen = [each._replace(hidden=each.hidden[counted]) for each in (student, teacher)]
    expected = plain(chosen[0], chosen[1], 2.0)
    result = soft_divergence(student, teacher, 2.0, chunk=4, counted=counted)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    grads = torch.autograd.grad(expected, student)
    for left, right in zip(torch.autograd.grad(result, student), grads, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)


def test_the_teacher_gets_no_gradient() -> None:
    student, teacher = output(4, 9, 3, 0), output(4, 9, 3, 1)
    soft_divergence(student, teacher, 2.0).backward()
    assert all(item.grad is None for item in teacher)
    assert all(item.grad is not None and item.grad.abs().sum() > 0 for item in student)


def test_equal_softmaxes_have_no_divergence() -> None:
    student = output(4, 9, 3, 0)
    shifted = student._replace(bias=student.bias + 7)  # a constant changes no softmax
    result = soft_divergence(student, shifted, 2.0)
    assert float(result.detach()) == pytest.approx(0, abs=1e-5)


def test_under_autocast_products_are_in_its_precision() -> None:
    student, teacher = output(6, 40, 8, 0), output(6, 40, 8, 1)
    with torch.autocast("cpu", torch.bfloat16):
        result = soft_divergence(student, teacher, 2.0)
    assert result.dtype == torch.float32
    assert float(result.detach()) == pytest.approx(float(plain(student, teacher, 2.0).detach()), rel=0.05)
    result.backward()
    assert student.hidden.grad is not None and student.hidden.grad.dtype == torch.float32

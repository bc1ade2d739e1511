"""A stream that waits for its norms is the plain stream, with its gradients. The kernel is in test_norm_kernel.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from etude.models.transformer import Settings, Transformer
from etude.nn import residual
from etude.nn.norm import Norm
from etude.nn.packed import pack
from etude.nn.triton import availability


class AddNorm(torch.autograd.Function):
    """nn/triton/residual_norm.py in plain steps."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, old: Any, branch: Tensor, bias: Any, weight: Tensor, shift: Tensor, epsilon: float,
        post: bool,
    ) -> Any:  # fmt: skip
        ctx.set_materialize_grads(False)
        ctx.epsilon, ctx.post, ctx.biased = epsilon, post, bias is not None
        if old is not None:
            x = F.layer_norm(x, weight.shape, *old, epsilon)
        total = x + branch
        ctx.save_for_backward(total, weight, shift)
        return total, F.layer_norm(total, weight.shape, weight, shift, epsilon)

    @staticmethod
    def backward(ctx: Any, by_total: Tensor | None, by_normed: Tensor) -> Any:
        total, weight, shift = (part.detach().requires_grad_() for part in ctx.saved_tensors)
        past = torch.zeros_like(total) if by_total is None else by_total
        with torch.enable_grad():
            normed = F.layer_norm(total, weight.shape, weight, shift, ctx.epsilon)
        grad_out = by_normed + past if ctx.post else by_normed
        grad_x, by_weight, by_shift = torch.autograd.grad(normed, (total, weight, shift), grad_out)
        grad_x = grad_x if ctx.post else grad_x + past
        return grad_x, None, grad_x, grad_x.sum(0) if ctx.biased else None, by_weight, by_shift, None, None


def add_norm(
    x: Tensor, old_weight: Any, old_bias: Any, branch: Tensor, bias: Any, weight: Tensor, shift: Tensor,
    seed: Tensor | None, dropout: float, epsilon: float, post: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    assert (seed is not None) == (dropout > 0)
    old = None if old_weight is None else (old_weight, old_bias)
    return AddNorm.apply(x, old, branch, bias, weight, shift, epsilon, post)  # type: ignore[no-any-return]


@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("share", ["none", "all"])
@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("first_norm", [False, True])
def test_a_model(placement: Any, share: Any, few: bool, first_norm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not first_norm and (placement == "post" or share == "all"):
        pytest.skip("a first norm is left out in the pre-LN order, where it is not shared")
    torch.manual_seed(1)
    settings = Settings(layers=3, width=16, heads=2, vocab=30, context=16, norm=placement, share=share, dropout=0.0,
                        attention_dropout=0.0, embedding_dropout=0.0, first_norm=first_norm)  # fmt: skip
    model = Transformer(settings).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    packed = pack([[1, 2, 3, 4, 5], [6, 7, 8], [9] * 11])
    only = torch.tensor([2, 0, 17, 7]) if few else None

    def run() -> tuple[Tensor, dict[str, Tensor]]:
        model.zero_grad()
        last = model(packed, only=only).last
        (last * torch.linspace(-1, 2, last.numel(), dtype=last.dtype).view_as(last)).sum().backward()
        return last.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    plain = run()
    calls: list[bool] = []

    def counted(*values: Any) -> tuple[Tensor, ...]:
        calls.append(True)
        return add_norm(*values)

    monkeypatch.setattr(residual, "residual_norm_kernels", lambda *_: True)
    monkeypatch.setattr(residual, "kernel_module", lambda _: SimpleNamespace(add_norm=counted))
    running = run()
    assert len(calls) == 6, "every sum of a branch is one of these"
    torch.testing.assert_close(running[0], plain[0])
    assert running[1].keys() == plain[1].keys()
    for name, gradient in plain[1].items():
        torch.testing.assert_close(running[1][name], gradient, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_the_kernel_applies_the_dropout(placement: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []

    def noted(*values: Any) -> tuple[Tensor, ...]:
        rates.append(values[8])
        return add_norm(*values)

    monkeypatch.setattr(residual, "residual_norm_kernels", lambda *_: True)
    monkeypatch.setattr(residual, "kernel_module", lambda _: SimpleNamespace(add_norm=noted))
    monkeypatch.setattr(residual, "apply_dropout", None)  # cannot be called
    model = Transformer(Settings(layers=2, width=16, heads=2, vocab=30, context=16, norm=placement, dropout=0.2))
    packed = pack([[1, 2, 3], [4, 5]])
    model(packed).last.sum().backward()
    assert rates == [0.2] * 4
    model.eval()(packed)
    assert rates[4:] == [0.0] * 4


def test_kernels_serve_a_gpu_that_trains_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    module, norm, shape = SimpleNamespace(split_width=lambda width: width == 768), Norm(768), torch.Size((8, 768))
    monkeypatch.setattr(residual, "kernel_module", lambda _: module)
    monkeypatch.setattr(availability, "supports_flash", lambda _: True)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    cuda, half = torch.device("cuda", 0), torch.bfloat16
    assert residual.residual_norm_kernels(cuda, half, shape, norm) is module
    with torch.no_grad():
        assert residual.residual_norm_kernels(cuda, half, shape, norm) is None
    for refused in (
        (torch.device("cpu"), half, shape, norm),
        (cuda, torch.float32, shape, norm),
        (cuda, half, torch.Size((8, 640)), norm),
        (cuda, half, torch.Size((0, 768)), norm),
        (cuda, half, shape, Norm(768, kind="rms")),
        (cuda, half, shape, Norm(768, bias=False)),
    ):
        assert residual.residual_norm_kernels(*refused) is None

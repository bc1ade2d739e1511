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
        ctx: Any, x: Tensor, old: Any, branch: Tensor, bias: Any, weight: Tensor, shift: Any, epsilon: float,
        post: bool, rms: bool,
    ) -> Any:  # fmt: skip
        ctx.set_materialize_grads(False)
        ctx.epsilon, ctx.post, ctx.biased, ctx.rms = epsilon, post, bias is not None, rms
        if old is not None:
            x = normalize(x, *old, epsilon, rms)
        total = x + branch
        ctx.save_for_backward(total, weight, shift)
        return total, normalize(total, weight, shift, epsilon, rms)

    @staticmethod
    def backward(ctx: Any, by_total: Tensor | None, by_normed: Tensor) -> Any:
        total, weight, shift = (None if part is None else part.detach().requires_grad_() for part in ctx.saved_tensors)
        past = torch.zeros_like(total) if by_total is None else by_total
        with torch.enable_grad():
            normed = normalize(total, weight, shift, ctx.epsilon, ctx.rms)
        grad_out = by_normed + past if ctx.post else by_normed
        parts = [total, weight] if shift is None else [total, weight, shift]
        grad_x, by_weight, *by_shift = torch.autograd.grad(normed, parts, grad_out)
        grad_x = grad_x if ctx.post else grad_x + past
        by_bias = grad_x.sum(0) if ctx.biased else None
        return grad_x, None, grad_x, by_bias, by_weight, by_shift[0] if by_shift else None, None, None, None


def normalize(x: Tensor, weight: Tensor, shift: Tensor | None, epsilon: float, rms: bool) -> Tensor:
    if rms:
        assert shift is None
        return F.rms_norm(x, weight.shape, weight, epsilon)
    return F.layer_norm(x, weight.shape, weight, shift, epsilon)


def add_norm(
    x: Tensor, old_weight: Any, old_bias: Any, branch: Tensor, bias: Any, weight: Tensor, shift: Any,
    seed: Tensor | None, dropout: float, epsilon: float, post: bool, rms: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    assert (seed is not None) == (dropout > 0)
    old = None if old_weight is None else (old_weight, old_bias)
    return AddNorm.apply(x, old, branch, bias, weight, shift, epsilon, post, rms)  # type: ignore[no-any-return]


@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("share", ["none", "all"])
@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("first_norm", [False, True])
@pytest.mark.parametrize(("bias", "kind"), [(True, "layer"), (False, "layer"), (False, "rms")])
def test_a_model(
    placement: Any, share: Any, few: bool, first_norm: bool, bias: bool, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not first_norm and (placement == "post" or share == "all"):
        pytest.skip("a first norm is left out in the pre-LN order, where it is not shared")
    torch.manual_seed(1)
    settings = Settings(layers=3, width=16, heads=2, vocab=30, context=16, norm=placement, share=share, dropout=0.0,
                        attention_dropout=0.0, embedding_dropout=0.0, first_norm=first_norm, bias=bias,
                        norm_kind=kind)  # fmt: skip
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
    for served in (norm, Norm(768, bias=False), Norm(768, kind="rms")):
        assert residual.residual_norm_kernels(cuda, half, shape, served) is module
    with torch.no_grad():
        assert residual.residual_norm_kernels(cuda, half, shape, norm) is None
    for refused in (
        (torch.device("cpu"), half, shape, norm),
        (cuda, torch.float32, shape, norm),
        (cuda, half, torch.Size((8, 640)), norm),
        (cuda, half, torch.Size((0, 768)), norm),
    ):
        assert residual.residual_norm_kernels(*refused) is None

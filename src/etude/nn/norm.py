"""Layer norm and RMS norm in float32, whatever the precision around them.

Layer norm: Ba et al. 2016. Root-mean-square norm: Zhang and Sennrich 2019 (no centring, no bias).
Under mixed precision the mean and the variance of a long vector would lose too many bits in bfloat16.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from etude.nn.precision import upcast

NormKind = Literal["layer", "rms"]


class Norm(nn.Module):
    """Layer norm, or RMS norm with `kind="rms"`."""

    def __init__(self, width: int, epsilon: float = 1e-5, bias: bool = True, kind: NormKind = "layer") -> None:
        super().__init__()
        self.width, self.epsilon, self.kind = width, epsilon, kind
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias and kind == "layer" else None

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "layer" and _is_mixed_on_cpu(x, self.weight):
            result: Tensor = _MixedPrecisionLayerNorm.apply(x, self.weight, self.bias, self.epsilon)
            return result
        if x.dtype == self.weight.dtype:  # torch's kernels compute in float32 inside: one launch instead of five
            return self._normalize(x, self.weight, self.bias)
        inner = upcast(x)
        bias = None if self.bias is None else self.bias.to(inner.dtype)
        return self._normalize(inner, self.weight.to(inner.dtype), bias).to(x.dtype)

    def _normalize(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.kind == "rms":
            return F.rms_norm(x, (self.width,), weight, self.epsilon)
        return F.layer_norm(x, (self.width,), weight, bias, self.epsilon)

    def extra_repr(self) -> str:
        return f"{self.width}, epsilon={self.epsilon}, kind={self.kind}"


def _is_mixed_on_cpu(x: Tensor, weight: Tensor) -> bool:
    """Whether x is bf16 on a CPU with float32 weights, outside a compiled graph."""
    mixed = x.device.type == "cpu" and x.dtype == torch.bfloat16 and weight.dtype == torch.float32
    return mixed and not torch.compiler.is_compiling()


class _MixedPrecisionLayerNorm(torch.autograd.Function):
    """A layer norm of bf16 with float32 weights by torch's CPU kernel: float32 inside, no copy of x.

    Its backward pass runs in float32, because torch's mixed form sums the gradients of the weights in bf16: over 4096
    tokens they are off by 7 %.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> Tensor:
        out, mean, scale = torch.native_layer_norm(x, weight.shape, weight, bias, epsilon)
        ctx.save_for_backward(x, weight, bias, mean, scale)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, scale = ctx.saved_tensors
        needs_grad = [*ctx.needs_input_grad[:2], bias is not None and ctx.needs_input_grad[2]]
        grad_x, grad_weight, grad_bias = torch.ops.aten.native_layer_norm_backward(
            upcast(grad), upcast(x), weight.shape, mean, scale, weight, bias, needs_grad
        )
        return None if grad_x is None else grad_x.to(x.dtype), grad_weight, grad_bias, None

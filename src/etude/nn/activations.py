"""Activations and dropout, with versions of our own for training on a CPU.

On an Arm CPU torch spends more time on the derivative of a GELU, and on any CPU on the random numbers of dropout, than
on a norm and a softmax together. Here the derivative of a GELU is computed together with its value (the error function
or the sigmoid is at hand), and one random number decides for four elements. Measured on one Arm core, 2 million
elements, forward and backward: GELU 68 -> 22 ms, its tanh form 33 -> 15 ms, dropout 48 -> 19 ms; in bf16 on two cores
with AMX, one million elements, forward: dropout 14.6 -> 4.6 ms. On x86 torch's GELU is faster (one core with AVX-512,
4 million elements: 13 ms, ours 40; the tanh form 33 and 42), and its dropout is not (63 -> 26 ms). Elsewhere torch's
own functions are used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

Activation = Literal["gelu", "gelu_tanh", "relu", "relu_squared", "silu"]

_FULL_PRECISION = (torch.float32, torch.float64)
_LEVELS = 2**16  # a dropout rate is rounded to a multiple of 1/65536; the scale is that of the rounded rate


def gelu(x: Tensor) -> Tensor:
    """x * Phi(x), with Phi the normal cumulative distribution function (Hendrycks and Gimpel 2016)."""
    result: Tensor = _Gelu.apply(x) if _trains_on_cpu(x) and not has_fast_gelu() else F.gelu(x)
    return result


def gelu_tanh(x: Tensor) -> Tensor:
    """The tanh approximation of GELU, used by GPT-1, GPT-2 and BERT's own code."""
    result: Tensor = _GeluTanh.apply(x) if _trains_on_cpu(x) and not has_fast_gelu() else F.gelu(x, approximate="tanh")
    return result


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": F.relu,
    "relu_squared": lambda x: F.relu(x).square(),  # So et al. 2021 (Primer)
    "silu": F.silu,
}


def apply_dropout(x: Tensor, rate: float, training: bool) -> Tensor:
    """Drop elements with random numbers from torch's global generator."""
    if not training or rate == 0:
        return x
    if not _trains_on_cpu(x, (*_FULL_PRECISION, torch.bfloat16)):
        return F.dropout(x, rate)
    mask, scale = draw_keep_mask(tuple(x.shape), rate)
    if x.dtype == torch.bfloat16:
        return x * mask.to(x.dtype) * scale  # scaled separately: in bf16 the scale 1.1111 is 1.1094
    return x * mask.to(x.dtype).mul_(scale)


def draw_keep_mask(shape: tuple[int, ...], rate: float) -> tuple[Tensor, float]:
    """Return a mask on the CPU, True where an element stays, and the factor of the elements that stay."""
    count = math.prod(shape)
    threshold = min(round(rate * _LEVELS), _LEVELS - 1)
    words = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)  # None: all 64 bits
    draws = words.view(torch.int16)[:count].view(shape)  # uniform on -32768 .. 32767
    return draws >= threshold - _LEVELS // 2, _LEVELS / (_LEVELS - threshold)


def has_fast_gelu() -> bool:
    """Whether torch's own GELU is fast here: it is vectorised for x86."""
    return torch.backends.cpu.get_cpu_capability().startswith("AVX")


def _trains_on_cpu(x: Tensor, dtypes: tuple[torch.dtype, ...] = _FULL_PRECISION) -> bool:
    """Whether a gradient of x will be needed, on a CPU and outside a compiled graph."""
    matches = x.device.type == "cpu" and x.dtype in dtypes
    return matches and x.requires_grad and torch.is_grad_enabled() and not torch.compiler.is_compiling()


class _Gelu(torch.autograd.Function):
    """GELU whose forward pass stores its derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        cdf = torch.erf(x * math.sqrt(0.5)).add_(1.0).mul_(0.5)  # normal cumulative distribution function
        density = torch.square(x).mul_(-0.5).exp_().mul_(1 / math.sqrt(2 * math.pi))
        ctx.save_for_backward(density.mul_(x).add_(cdf))
        return cdf.mul_(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (derivative,) = ctx.saved_tensors
        return grad * derivative


class _GeluTanh(torch.autograd.Function):
    """0.5 x (1 + tanh u) = x sigmoid(2u), with 2u = x (a + b x^2): a sigmoid is cheaper than a tanh."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        linear = 2 * math.sqrt(2 / math.pi)
        cubic = 0.044715 * linear
        square = torch.square(x)
        sigmoid = square.mul(cubic).add_(linear).mul_(x).sigmoid_()
        # d/dx = s + x s (1 - s) (a + 3 b x^2)
        derivative = square.mul_(3 * cubic).add_(linear).mul_(x)
        derivative.mul_(1 - sigmoid).add_(1.0).mul_(sigmoid)
        ctx.save_for_backward(derivative)
        return sigmoid.mul_(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (derivative,) = ctx.saved_tensors
        return grad * derivative

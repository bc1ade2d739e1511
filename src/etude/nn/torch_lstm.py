"""torch's own LSTM: cuDNN on a GPU, in float32 where that is asked for, with its weights in one buffer.

By default cuDNN rounds float32 to the 10 bits of TF32, though matrix products elsewhere do not: an error of 4e-4 in a
state. Here float32 means float32, unless `torch.set_float32_matmul_precision` allows less.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CUDNN_RNN: Any = torch.backends.cudnn.rnn  # has `fp32_precision` of cuDNN's recurrent networks; untyped in torch


def run_lstm(
    batch_sizes: Tensor, x: Tensor, hidden: Tensor, cell: Tensor, *weights: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Run one layer over packed tokens (N, inputs): all hidden states (N, D), and the last hidden and cell states.

    `batch_sizes` lies on the host, states are (1, S, D) and (1, S, C), and weights are those of `torch.nn.LSTM`.
    """
    is_autocast = torch.is_autocast_enabled(x.device.type)  # no float32 inside that could be rounded
    call = call_lstm if is_autocast or _matches_matmul_precision() else _LSTMWithoutTF32.apply
    result: tuple[Tensor, Tensor, Tensor] = call(torch.is_grad_enabled(), batch_sizes, x, hidden, cell, *weights)
    return result


def call_lstm(
    training: bool, batch_sizes: Tensor, x: Tensor, hidden: Tensor, cell: Tensor, *weights: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Call torch's LSTM. With `training` it stores what cuDNN's backward pass needs."""
    # autocast copies weights into one buffer itself; where cuDNN has a projection in its buffer is not documented
    if x.is_cuda and len(weights) == 4 and not torch.is_autocast_enabled(x.device.type):
        weights = join_weights(weights)
    return torch.lstm(x, batch_sizes, [hidden, cell], weights, True, 1, 0.0, training, False)


def join_weights(weights: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Copy weights into one buffer as cuDNN has them, matrices before biases; else it does so itself, and warns."""
    buffer = torch.cat([weight.flatten() for weight in weights])
    parts = buffer.split([weight.numel() for weight in weights])
    return tuple(part.view_as(weight) for part, weight in zip(parts, weights, strict=True))


def _matches_matmul_precision() -> bool:
    """Whether cuDNN's LSTM uses TF32 only where torch's matrix products do."""
    recurrent, matmul = CUDNN_RNN.fp32_precision, torch.backends.cuda.matmul.fp32_precision
    return recurrent != "tf32" or matmul == "tf32"


@contextmanager
def _without_tf32() -> Iterator[None]:
    """Disable TF32 in cuDNN's LSTM: a switch of the whole process, so it is restored."""
    saved = CUDNN_RNN.fp32_precision
    CUDNN_RNN.fp32_precision = "ieee"
    try:
        yield
    finally:
        CUDNN_RNN.fp32_precision = saved


class _LSTMWithoutTF32(torch.autograd.Function):
    """`call_lstm` without TF32 in both passes.

    The switch is read when the backward pass runs, long after the call. So the call is a graph of its own, which the
    backward pass walks under the switch.
    """

    @staticmethod
    def forward(ctx: Any, training: bool, batch_sizes: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        with torch.set_grad_enabled(training), _without_tf32():
            inputs = [tensor.detach().requires_grad_(training and tensor.requires_grad) for tensor in tensors]
            outputs = call_lstm(training, batch_sizes, *inputs)
        ctx.inputs, ctx.outputs = inputs, outputs
        return tuple(tensor.detach() for tensor in outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        wanted = [tensor for tensor in ctx.inputs if tensor.requires_grad]
        with _without_tf32():
            computed = iter(torch.autograd.grad(ctx.outputs, wanted, grad_outputs))
        grads = [next(computed) if tensor.requires_grad else None for tensor in ctx.inputs]
        del ctx.inputs, ctx.outputs  # free the memory
        return None, None, *grads

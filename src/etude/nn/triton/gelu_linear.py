"""Linear layer after a GELU, the second half of a feed-forward branch: one kernel for Hopper.

The gradient of the inner states is a matrix product, and the next operation on it is a multiplication by the GELU's
derivative: the largest tensor of a layer is written, read and written again. Here a tile of that product is multiplied,
and summed over its rows for the gradient of the bias before the GELU, while it is still in registers. Every program
stores the sums of its own rows and one sum over them follows, so that results repeat to the bit. The forward pass, and
the gradients of the weight and of its bias, are ordinary products, visible to the compiler.

The kernel reads and writes by tensor descriptors, with which the hardware fetches a tile by itself (TMA, Hopper and
later): it reads zeros after the last row and writes nothing there. torch cannot trace a kernel with such descriptors,
so this one is an operator that a compiler calls without tracing into it.

Triton comes with torch where that is built for CUDA; only `nn/feedforward.py` imports this file, and only there.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from torch.library import custom_op, triton_op, wrap_triton
from triton.tools.tensor_descriptor import TensorDescriptor

from etude.nn.triton.gelu import LANES, cdf_and_derivative, gelu_forward
from etude.nn.triton.gelu import WARPS as FORWARD_WARPS

# The fastest of those tried on an H200, with 32,768 x 768 by 768 x 3,072 in bf16: 0.35 ms for the tanh form, 0.36 for
# the exact one (cuBLAS and the kernel of nn/triton/gelu.py one after the other: 0.38 and 0.40).
ROWS, COLUMNS, DEPTH = 128, 128, 64  # the tile of a program, and the depth of one product
GROUP, WARPS, STAGES = 8, 8, 3


@triton.jit
def _backward_kernel(  # type: ignore[no-untyped-def]
    grad, weight, pre_activation, out, sums, inner: tl.constexpr, width: tl.constexpr, tanh: tl.constexpr,
    rows: tl.constexpr, columns: tl.constexpr, depth: tl.constexpr, group: tl.constexpr,
):  # fmt: skip
    # `group` tiles one below another, then the next columns: programs that run together share what they read
    column_tiles: tl.constexpr = inner // columns
    program = tl.program_id(0)
    top = program // (group * column_tiles) * group
    group_rows = tl.minimum(tl.num_programs(0) // column_tiles - top, group)  # the last group may be lower
    program %= group * column_tiles
    row, column = top + program % group_rows, program // group_rows
    tile = tl.zeros([rows, columns], tl.float32)
    for step in range(width // depth):
        tile = tl.dot(grad.load([row * rows, step * depth]), weight.load([step * depth, column * columns]), tile)
    _, derivative = cdf_and_derivative(pre_activation.load([row * rows, column * columns]).to(tl.float32), tanh)
    tile = tile * derivative  # 0 after the last row, because the gradient is
    tl.store(sums + row * inner + column * columns + tl.arange(0, columns), tl.sum(tile, 0))
    out.store([row * rows, column * columns], tile.to(out.dtype))


def supports_shape(width: int, inner: int) -> bool:
    """Whether the kernel applies: whole tiles except for the last rows."""
    return width % DEPTH == 0 and inner % COLUMNS == 0


@triton_op("etude::gelu_values", mutates_args={})
def gelu_values(pre_activation: Tensor, tanh: bool) -> Tensor:
    """GELU(pre_activation), (N, I).

    It has no gradient of its own: `gelu_linear` computes that of its input.
    """
    pre_activation = pre_activation.contiguous()
    out, count = torch.empty_like(pre_activation), pre_activation.numel()
    with torch.cuda.device_of(pre_activation):
        wrap_triton(gelu_forward)[(triton.cdiv(count, LANES),)](
            pre_activation, out, count, tanh, LANES, num_warps=FORWARD_WARPS
        )
    return out


@triton_op("etude::gelu_linear", mutates_args={})
def gelu_linear(
    pre_activation: Tensor,
    activation: Tensor,
    pre_activation_bias: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tanh: bool,
) -> Tensor:
    """(N, I), (N, I), (I,), (D, I), (D,) -> (N, D).

    `activation` is GELU(pre_activation), without a gradient.

    `pre_activation_bias` is in `pre_activation` already, added as a constant: it is here only for its gradient.
    """
    return F.linear(activation, weight, bias)


@custom_op("etude::gelu_linear_backward", mutates_args={})
def gelu_linear_backward(grad: Tensor, pre_activation: Tensor, weight: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    """(N, D), (N, I), (D, I) -> the gradient of the pre-activation, (N, I), and its sums, (P, I) float32."""
    (tokens, inner), width = pre_activation.shape, weight.shape[0]
    blocks = triton.cdiv(tokens, ROWS)
    out, sums = pre_activation.new_empty(tokens, inner), pre_activation.new_empty(blocks, inner, dtype=torch.float32)
    with torch.cuda.device_of(pre_activation):
        _backward_kernel[(blocks * (inner // COLUMNS),)](
            _tile_descriptor(grad, ROWS, DEPTH), _tile_descriptor(weight, DEPTH, COLUMNS),
            _tile_descriptor(pre_activation, ROWS, COLUMNS), _tile_descriptor(out, ROWS, COLUMNS), sums, inner, width,
            tanh, ROWS, COLUMNS, DEPTH, GROUP, num_warps=WARPS, num_stages=STAGES,
        )  # fmt: skip
    return out, sums


@gelu_linear_backward.register_fake
def _(grad: Tensor, pre_activation: Tensor, weight: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    tokens, inner = pre_activation.shape
    return pre_activation.new_empty(tokens, inner), pre_activation.new_empty(
        triton.cdiv(tokens, ROWS), inner, dtype=torch.float32
    )


def _tile_descriptor(x: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """Return a descriptor that reads and writes x by tiles."""
    x = x.contiguous()
    if x.data_ptr() % 16:  # a descriptor's address is a multiple of 16 bytes; a view may start anywhere
        x = x.clone()
    return TensorDescriptor.from_tensor(x, [rows, columns])


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    pre_activation, activation, pre_activation_bias, weight, _, ctx.tanh = inputs
    ctx.pre_activation_dtype = pre_activation_bias.dtype
    ctx.save_for_backward(pre_activation, weight, activation)


def _autograd_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    pre_activation, weight, activation = ctx.saved_tensors
    grad_pre_activation, sums = gelu_linear_backward(grad, pre_activation, weight, ctx.tanh)
    grad_bias = grad.sum(0) if ctx.needs_input_grad[4] else None  # None where its gradient is computed elsewhere
    return grad_pre_activation, None, sums.sum(0).to(ctx.pre_activation_dtype), grad.t() @ activation, grad_bias, None


gelu_linear.register_autograd(_autograd_backward, setup_context=_setup_context)

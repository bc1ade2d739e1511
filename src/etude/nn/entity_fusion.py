"""The feed-forward branch that joins tokens and entities (ERNIE, Zhang et al. 2019, section 3.4, "aggregator").

    h   = activation(W_t w + b_t + W_e e + b_e)    shared by both; e is 0 at a token without entity, b_e is not [code]
    w   = norm(w + W_1 h)                          every token
    e   = norm(e + W_2 h)                          every entry of the entity stream

W_t and W_1 are the two products of BERT's own branch, under the same names, so that a BERT's weights fit.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from etude.nn import residual
from etude.nn.activations import Activation, apply_dropout, gelu, gelu_tanh
from etude.nn.block import FeedForwardBranch
from etude.nn.entity_stream import gather, select, spread
from etude.nn.feedforward import gelu_linear_kernels
from etude.nn.norm import Norm
from etude.nn.packed import EntityStream
from etude.nn.precision import matmul_dtype
from etude.nn.residual import BranchStream, Stream


class FusionBranch(FeedForwardBranch):
    """A post-norm feed-forward branch over two streams; without `entity_norm` no entity state leaves it."""

    def __init__(
        self,
        width: int,
        inner: int,
        entity_width: int,
        *,
        norm: Norm,
        entity_norm: Norm | None,
        activation: Activation = "gelu",
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(width, inner, placement="post", norm=norm, activation=activation, bias=bias, dropout=dropout)
        self.entity_up = nn.Linear(entity_width, inner, bias=bias)
        self.entity_norm = entity_norm
        self.entity_down = None if entity_norm is None else nn.Linear(inner, entity_width, bias=bias)

    def fuse(
        self, x: Stream, entities: Tensor, stream: EntityStream, only: Tensor | None = None
    ) -> tuple[Stream, Tensor | None]:
        """(N, D), (M, E) -> (N, D), and (M, E) where entity states leave the branch.

        `only` (K,): the stream of tokens holds these alone, as a last layer computes them.
        """
        x, normed = residual.branch_input(x, self.norm, self.placement)
        bias, uses_kernel = self._shared_bias(), self._has_kernel(normed)
        constant = bias.detach() if bias is not None and uses_kernel else bias
        inner = F.linear(normed, self.up.weight, constant)  # (N, I)
        if only is None:
            inner = inner + spread(F.linear(entities, self.entity_up.weight), stream)
        else:  # selected while narrow: a slot may be met twice, and then the derivative is a sum by atomic additions
            inner = inner + F.linear(select(entities, stream, only), self.entity_up.weight)
        dropout = self.dropout if self.training else 0.0
        branch = self._project(x, inner, bias if uses_kernel else None)
        tokens = residual.add(x, branch, self.down.bias, dropout, self.norm, self.placement)
        if self.entity_down is None or self.entity_norm is None:
            return tokens, None
        shared = gather(inner, stream)  # (M, I)
        if bias is not None and constant is not None and uses_kernel:
            shared = shared + (bias - constant)  # adds nothing but this path's gradient of the bias
        output = apply_dropout(self.entity_down(self.activation(shared)), dropout, self.training)
        return tokens, self.entity_norm(entities + output)

    def _shared_bias(self) -> Tensor | None:
        """Both biases: that of the entities is added at every token."""
        return None if self.up.bias is None else self.up.bias + self.entity_up.bias

    def _has_kernel(self, x: Tensor) -> bool:
        """Whether the derivative of the activation is part of the product after it (nn/feedforward.py)."""
        if self.activation not in (gelu, gelu_tanh) or not x.numel() or self.up.bias is None:
            return False
        kernels = gelu_linear_kernels(x.device, matmul_dtype(x))
        return kernels is not None and bool(kernels.supports_shape(*self.down.weight.shape))

    def _project(self, x: BranchStream, inner: Tensor, bias: Tensor | None) -> Tensor:
        """down(activation(inner)); with `bias`, a constant in `inner`, by the kernel that computes its gradient."""
        down_bias = residual.branch_bias(x, self.down.bias)
        if bias is None:
            return F.linear(self.activation(inner), self.down.weight, down_bias)
        kernels = gelu_linear_kernels(inner.device, matmul_dtype(inner))
        assert kernels is not None
        dtype, tanh = matmul_dtype(inner), self.activation is gelu_tanh  # operators of our own have no autocast
        values = kernels.gelu_values(inner.detach(), tanh)
        weight, down_bias = self.down.weight.to(dtype), None if down_bias is None else down_bias.to(dtype)
        output: Tensor = kernels.gelu_linear(inner, values, bias, weight, down_bias, tanh)
        return output

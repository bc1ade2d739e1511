"""Muon (Jordan et al. 2024) with all matrices of one shape orthogonalised together.

    M = momentum M + (1 - momentum) G;   U = (1 - momentum) G + momentum M  (nesterov), else M
    O = Newton-Schulz(U / |U|);   W = W (1 - lr decay) - lr 0.2 sqrt(max(rows, columns)) O

A matrix of an encoder of 512 is too small for a GPU: its fifteen products take longer to launch than to compute. Here
the matrices of a shape are a batch, and a step of Muon is a few dozen launches, whatever the depth. The scale is that
of AdamW's steps (Liu et al. 2025, "Muon is scalable", section 2.2), so that one lr and one weight decay serve both.

A weight may be several matrices, one below the other (queries, keys and values of attention as one layer). Each is
orthogonalised on its own: together their singular directions would be mixed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Protocol, overload

import torch
from torch import Tensor

from etude.train.closures import Closure, evaluate_closure

Groups = list[dict[str, Any]]  # torch's parameter groups

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic polynomial: its slope at 0 is as steep as it can be
ITERATIONS = 5
EPSILON = 1e-7  # a norm is at least this
BATCH_ELEMENTS = 2**26  # of one batch of matrices, which exists in four copies: 1 GB in float32


class Exchange(Protocol):
    """Matrices in shards: each of `shards` ranks gets some of them as a whole, for a function of whole matrices."""

    shards: int

    def local(self, tensor: Tensor) -> Tensor:
        """Return this rank's share of a tensor, by reference."""

    def __call__(self, shares: Tensor, like: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply a function (B, R, C) -> (B, R, C) to whole matrices, of which `shares` are this rank's rows.

        `like` is one of the parameters.
        """


class Muon(torch.optim.Optimizer):
    """Muon for matrices; state from the start, nothing waits for the device.

    An lr may be a float or, for a step that is recorded (train/recorded_step.py), a float64 tensor on the device.
    """

    # set from outside, as for torch's fused AdamW: where it is not 0 a step changes nothing
    found_inf: Tensor | None = None

    def __init__(
        self,
        groups: Groups,
        lr: float,
        momentum: float,
        nesterov: bool,
        product_dtype: torch.dtype = torch.bfloat16,
        exchange: Exchange | None = None,
    ) -> None:
        """`exchange`: where matrices are in shards, what hands each rank some of them as a whole.

        `stacked` of a group says how many matrices each of its weights is.
        """
        defaults = {"lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": 0.1, "stacked": 1}
        super().__init__(groups, defaults)
        self.product_dtype, self.exchange = product_dtype, exchange
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.dim() != 2:
                    raise ValueError(f"Muon updates matrices, not a tensor of shape {tuple(parameter.shape)}")
                if len(parameter) % group["stacked"]:
                    raise ValueError(f"{len(parameter)} rows are not {group['stacked']} matrices of one shape")
                self.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter)}

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Closure) -> float: ...

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> float | None:
        """Take one step."""
        loss = evaluate_closure(closure)
        for group in self.param_groups:
            shards = 1 if self.exchange is None else self.exchange.shards
            for parameters in _batches([p for p in group["params"] if p.grad is not None], shards):
                self._update(parameters, group)
        return loss

    def _update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """Update B matrices of one shape."""
        lr, momentum, first = group["lr"], group["momentum"], parameters[0]
        buffers = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if self.exchange is not None:
            lists = (parameters, buffers, gradients)
            parameters, buffers, gradients = ([self.exchange.local(tensor) for tensor in part] for part in lists)
        grads = torch.stack(gradients)  # (B, R, C)
        averages = torch.stack(buffers).lerp_(grads, 1.0 - momentum)
        updates = grads.lerp_(averages, momentum) if group["nesterov"] else averages
        rows, columns = len(first) // group["stacked"], first.shape[1]

        def find_directions(whole: Tensor) -> Tensor:
            return orthogonalize(whole.reshape(-1, rows, columns), self.product_dtype).float().reshape(whole.shape)

        exchange = self.exchange
        directions = find_directions(updates) if exchange is None else exchange(updates, first, find_directions)
        directions *= -0.2 * math.sqrt(max(rows, columns)) * lr
        decay = 1.0 - lr * group["weight_decay"]
        if self.found_inf is not None:
            skipped = self.found_inf != 0.0
            averages = torch.where(skipped, torch.stack(buffers), averages)
            directions = directions.masked_fill_(skipped, 0.0)
            decay = torch.where(skipped, 1.0, decay)
        if isinstance(decay, Tensor):
            decay = decay.to(parameters[0].dtype)
        torch._foreach_copy_(buffers, list(averages.unbind()))
        torch._foreach_mul_(parameters, decay)
        torch._foreach_add_(parameters, list(directions.unbind()))


def _batches(parameters: list[Tensor], shards: int) -> Iterator[list[Tensor]]:
    """Yield the matrices of each shape together, as many as BATCH_ELEMENTS allows on each of so many ranks."""
    shapes: dict[tuple[torch.Size, torch.dtype], list[Tensor]] = {}
    for parameter in parameters:
        shapes.setdefault((parameter.shape, parameter.dtype), []).append(parameter)
    for members in shapes.values():
        size = max(1, BATCH_ELEMENTS // max(1, members[0].numel())) * shards
        for start in range(0, len(members), size):
            yield members[start : start + size]


@cache
def has_bf16_products() -> bool:
    """Whether this CPU multiplies matrices in bfloat16.

    Others emulate it, slowly. On Arm the first such product also turns oneDNN off for the rest of the
    process (train/cpu_state.py): the float32 products of later steps would not be those of a resume, bit for bit.
    """
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def orthogonalize(matrices: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """(B, R, C) -> (B, R, C) with singular values near 1, by Newton-Schulz iterations in `dtype`.

    On a CPU without products in bfloat16 they are of float32.
    """
    if matrices.is_cuda:
        return _iterate(matrices.to(dtype))
    if not len(matrices):
        return matrices
    if dtype == torch.bfloat16 and not has_bf16_products():
        dtype = torch.float32
    # one matrix occupies a CPU, and torch has no batched products in bfloat16 for some
    return torch.stack([_iterate(matrix) for matrix in matrices.to(dtype)])


def _iterate(x: Tensor) -> Tensor:
    """Orthogonalise one matrix or a batch of them; the Gram matrix is that of the shorter side, the smaller one."""
    a, b, c = COEFFICIENTS
    multiply_add = torch.addmm if x.dim() == 2 else torch.baddbmm
    is_tall = x.shape[-2] > x.shape[-1]
    if is_tall:
        x = x.mT
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=EPSILON)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        polynomial = multiply_add(gram, gram, gram, beta=b, alpha=c)
        x = multiply_add(x, polynomial, x, beta=a)
    return x.mT if is_tall else x

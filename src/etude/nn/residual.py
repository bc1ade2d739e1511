"""The residual stream between branches: where branches are added, and where the norms are.

Post-LN (Vaswani et al. 2017; GPT-1, BERT):   x = norm(x + branch(x))
Pre-LN  (GPT-2, section 2.3):                 x = x + branch(norm(x))

The stream is a tensor, and the formulas are computed as written. Where a GPU trains a compiled model in half precision
it is a `FusedStream`: a sum and the norm after it are one kernel (nn/triton/residual_norm.py), which also sums, over
all tokens, the gradients of the norm's weight and bias, and of the branch's bias, where there are any. In the pre-LN
order the sum waits for the norm of the next branch. In the post-LN order a branch and the next sum both read the same
normalised state, and a compiler would add their two gradients in a separate pass. So the sum continues from the state
*before* the norm and recomputes the norm, and each of the two has its own tensor to return its gradient to. A step of
generation on a GPU has a `StepStream`, whose norms and sums are parts of the products around them
(nn/few_rows_linear.py).
"""

from __future__ import annotations

from types import ModuleType
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etude.nn import few_rows_linear
from etude.nn.activations import apply_dropout
from etude.nn.few_rows_linear import StepStream
from etude.nn.norm import Norm
from etude.nn.triton.availability import kernel_module, supports_half_kernels

Placement = Literal["pre", "post"]


class FusedStream(NamedTuple):
    """A residual stream between two fused kernels."""

    total: Tensor  # (N, D)
    norm: Norm | None = None  # post-LN: the norm to apply to `total`
    normed: Tensor | None = None  # post-LN: norm(total), the input of the next branch
    branch: Tensor | None = None  # pre-LN: (N, D) still to be added
    bias: Tensor | None = None  # of that branch
    dropout: float = 0.0  # of that branch


FUSES_WITHOUT_BIAS = True  # norms without a bias, too; False only to compare (benchmarks/step_turns.py)
BranchStream = Tensor | FusedStream  # what a branch is added to
Stream = BranchStream | StepStream


def start_stream(x: Tensor, norm: Norm) -> Stream:
    """Return the stream of the first states (N, D), for branches that have norms of this kind."""
    return FusedStream(x) if residual_norm_kernels(x.device, x.dtype, x.shape, norm) is not None else x


def start_step(x: Tensor, placement: Placement) -> Stream:
    """Return the stream of the first states of a step of generation, (N, D)."""
    return StepStream(x) if placement == "pre" and few_rows_linear.fits(x) else x


def residual_norm_kernels(device: torch.device, dtype: torch.dtype, shape: torch.Size, norm: Norm) -> ModuleType | None:
    """Return the module of our fused kernels, or None where they do not apply."""
    # uncompiled models launch so many kernels that it does not matter
    is_supported = supports_half_kernels(device, dtype) and torch.compiler.is_compiling() and torch.is_grad_enabled()
    if not is_supported or not shape[0] or (norm.bias is None and not FUSES_WITHOUT_BIAS):
        return None
    module = kernel_module("residual_norm")
    return module if module is not None and module.split_width(shape[1]) else None


def branch_input(x: Stream, norm: nn.Module, placement: Placement) -> tuple[BranchStream, Tensor]:
    """Return the stream that passes a branch, and the branch's input (N, D)."""
    x = x.rows if isinstance(x, StepStream) else x
    if isinstance(x, Tensor):
        return x, norm(x) if placement == "pre" else x
    if placement == "post":
        return x, x.total if x.normed is None else x.normed
    if x.branch is None:
        return x, norm(x.total)
    assert isinstance(norm, Norm)
    total, normed = _add_norm(x, x.branch, x.bias, x.dropout, norm, post=False)
    return FusedStream(total), normed


def branch_bias(x: BranchStream, bias: Tensor | None) -> Tensor | None:
    """Return the bias of a branch, as a constant where `add` computes its gradient."""
    return bias if bias is None or isinstance(x, Tensor) else bias.detach()


def project_branch(x: BranchStream, linear: nn.Linear, inner: Tensor) -> Tensor:
    """Apply the last matrix product of a branch, (N, I) -> (N, D)."""
    result: Tensor = (
        linear(inner) if isinstance(x, Tensor) else F.linear(inner, linear.weight, branch_bias(x, linear.bias))
    )
    return result


def add(
    x: BranchStream, branch: Tensor, bias: Tensor | None, dropout: float, norm: nn.Module, placement: Placement
) -> BranchStream:
    """Add a branch to the stream, after dropout.

    `bias` is in `branch` already, as `branch_bias` returned it.
    """
    if isinstance(x, Tensor):
        branch = apply_dropout(branch, dropout, training=True)
        return x + branch if placement == "pre" else norm(x + branch)
    if placement == "pre":
        return FusedStream(x.total, branch=branch, bias=bias, dropout=dropout)
    assert isinstance(norm, Norm)
    total, normed = _add_norm(x, branch, bias, dropout, norm, post=True)
    return FusedStream(total, norm=norm, normed=normed)


def select_tokens(x: BranchStream, index: Tensor) -> BranchStream:
    """Return the stream of some tokens, (M, D). No branch may be waiting to be added."""
    if isinstance(x, Tensor):
        return x.index_select(0, index)
    assert x.branch is None
    return x._replace(total=x.total.index_select(0, index), normed=None)


def final_state(x: Stream, norm: Norm | None) -> Tensor:
    """Return the hidden states of the stream, (N, D); in the pre-LN order after the final norm."""
    x = x.rows if isinstance(x, StepStream) else x
    if isinstance(x, Tensor):
        return x if norm is None else norm(x)
    if norm is None:
        return x.total if x.normed is None else x.normed
    return norm(x.total) if x.branch is None else _add_norm(x, x.branch, x.bias, x.dropout, norm, post=False)[1]


def _add_norm(
    x: FusedStream, branch: Tensor, bias: Tensor | None, dropout: float, norm: Norm, post: bool
) -> tuple[Tensor, Tensor]:
    old_weight = old_bias = None
    if x.norm is not None:
        assert (x.norm.epsilon, x.norm.kind) == (norm.epsilon, norm.kind)
        old_weight, old_bias = x.norm.weight.detach(), None if x.norm.bias is None else x.norm.bias.detach()
    seed = torch.randint(2**31, (1,), device=branch.device) if dropout else None
    total, normed, *_ = kernel_module("residual_norm").add_norm(
        x.total, old_weight, old_bias, branch, bias, norm.weight, norm.bias, seed, dropout, norm.epsilon, post,
        norm.kind == "rms",
    )  # fmt: skip
    return total, normed

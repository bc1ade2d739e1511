"""Cross-entropy as a sum over a fixed number of slots (design decisions 1 and 3).

Unused slots have the target IGNORE and add nothing. `linear_cross_entropy` joins the output layer and the loss: the
logits of a large vocabulary exist for one chunk of slots at a time, and their gradient is computed while they exist.
So nothing is computed twice, and the result is that of the plain form.

On a GPU the table is cast into a copy whose rows are padded to a multiple of 64: tensor cores lose half their speed at
GPT-2's 50,257 columns. The columns after the vocabulary have logits of minus infinity, so neither probability nor
gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd.function import once_differentiable

from etude.nn.fusion import is_fusion_disabled
from etude.nn.precision import matmul_dtype, upcast

IGNORE = -100  # torch's own default for "no target"
# Logits in memory at once: on a CPU 128 MiB in float32, on a GPU 2 GiB in bf16, where each further chunk adds once more
# to the whole gradient of the table (GPT-2's 32,768 tokens: four chunks 554,600 tokens/s on an H200, two 558,000).
_LOGITS, _LOGITS_GPU = 2**25, 2**30
_BLOCK = 2**18  # logits of a block on a CPU: 1 MiB in float32, which stays in a core's cache
_block = _BLOCK
_COLUMNS = 64  # on a GPU columns are padded, and slots split, to a multiple of this


@contextmanager
def use_large_blocks() -> Iterator[None]:
    """Compute the loss of a chunk on a CPU in one block: for fake tensors, which cost by their number.

    In float32 a block is a view of the chunk's logits, so it takes no memory of its own, whatever its size.
    """
    global _block
    _block = _LOGITS
    try:
        yield
    finally:
        _block = _BLOCK


def cross_entropy_sum(logits: Tensor, targets: Tensor) -> Tensor:
    """(M, V), (M,) -> the sum over used slots, in float32."""
    return F.cross_entropy(upcast(logits), targets, ignore_index=IGNORE, reduction="sum")


def linear_cross_entropy(
    states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, chunk: int | None = None
) -> Tensor:
    """cross_entropy_sum(states @ weight.T + bias, targets), a chunk of slots at a time.

    (M, D), (V, D), (V,), (M,) -> (). Under autocast the products run in its precision, the softmax in float32.
    """
    chunk = chunk or choose_chunk_size(weight.shape[0], states.device.type, states.shape[0])
    compute = _apply_outside_graph if torch.compiler.is_compiling() else _apply
    total: Tensor = compute(states, weight, bias, targets, chunk, matmul_dtype(states))
    return total


def linear_losses_and_argmax(
    states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, chunk: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return the loss (0 where unused) and the most likely token of every slot, (M,) each, to evaluate."""
    chunk, dtype = chunk or choose_chunk_size(weight.shape[0], states.device.type), matmul_dtype(states)
    losses, predictions = [], []
    with torch.no_grad():
        for part, target in zip(states.split(chunk), targets.split(chunk), strict=True):
            logits = _logits(part.to(dtype), weight.to(dtype), bias)
            losses.append(F.cross_entropy(logits, target, ignore_index=IGNORE, reduction="none"))
            predictions.append(logits.argmax(-1))
    return torch.cat(losses), torch.cat(predictions)


def choose_chunk_size(vocab: int, device: str = "cpu", slots: int | None = None) -> int:
    """Return how many slots fit into the memory set aside for logits.

    On a GPU `slots` are divided into chunks of equal size.
    """
    if device == "cpu":
        return max(1, _LOGITS // vocab)
    largest = max(_COLUMNS, _LOGITS_GPU // vocab // _COLUMNS * _COLUMNS)
    if slots is None or slots <= largest:
        return largest
    chunks = -(-slots // largest)
    return -(-slots // chunks // _COLUMNS) * _COLUMNS


def _logits(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    logits = upcast(states @ weight.t())
    return logits if bias is None else logits.add_(bias.to(logits.dtype))


def cast_table(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """(V, D) -> (V', D) in the dtype of the product; on a GPU zero rows pad V to a multiple of 64."""
    missing = -weight.shape[0] % _COLUMNS
    if not weight.is_cuda or not missing:
        return weight.to(dtype)
    table = weight.new_empty((weight.shape[0] + missing, weight.shape[1]), dtype=dtype)
    table[: weight.shape[0]] = weight
    table[weight.shape[0] :] = 0.0
    return table


def _loss_and_grad(
    product: Tensor, bias: Tensor | None, targets: Tensor, vocab: int, needs_grad: bool
) -> tuple[Tensor, Tensor | None]:
    """(C, V') products, (C,) targets -> the sum of losses, and its gradient by the logits (C, V').

    The gradient is softmax - one-hot, 0 in unused slots and after the vocabulary, in the dtype of the product.
    """
    logits = upcast(product)
    column = torch.arange(product.shape[1], device=product.device)
    if bias is not None:
        logits = logits + F.pad(bias.to(logits.dtype), (0, product.shape[1] - vocab))
    if product.shape[1] > vocab:
        logits = logits.masked_fill(column >= vocab, -torch.inf)
    is_used = targets != IGNORE
    label = targets.clamp(min=0)[:, None]
    normalizer = logits.logsumexp(-1, keepdim=True)
    total = (normalizer - logits.gather(1, label)).squeeze(1).masked_fill(~is_used, 0.0).sum()
    if not needs_grad:
        return total, None
    grad = (logits - normalizer).exp() - (column == label).to(logits.dtype)
    return total, grad.masked_fill(~is_used[:, None], 0.0).to(product.dtype)


class _LinearCrossEntropy(torch.autograd.Function):
    """Linear layer and cross-entropy whose forward pass computes the gradients too."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        chunk: int,
        dtype: torch.dtype,
    ) -> Tensor:
        needs, vocab = ctx.needs_input_grad, weight.shape[0]
        grad_states = torch.empty_like(states) if needs[0] else None
        sum_dtype = torch.float64 if dtype == torch.float64 else torch.float32
        table = cast_table(weight, dtype)
        empty = torch.empty_like if states.shape[0] else torch.zeros_like  # the first chunk is written, not added
        grad_weight = empty(table, dtype=sum_dtype) if needs[1] else None
        grad_bias = torch.zeros_like(bias, dtype=sum_dtype) if bias is not None and needs[2] else None
        total = torch.zeros((), dtype=sum_dtype, device=states.device)
        with torch.autocast(states.device.type, enabled=False):
            for start in range(0, states.shape[0], chunk):
                piece = slice(start, start + chunk)
                part, target = states[piece].to(dtype), targets[piece]
                loss, grad_logits = _chunk_loss_and_grad(part, table, bias, target, vocab, any(needs[:3]), grad_bias)
                total += loss
                if grad_logits is None:
                    continue
                if grad_states is not None:
                    _write_matmul(grad_states[piece], grad_logits, table)
                if grad_weight is not None:
                    _add_matmul(grad_weight, grad_logits.t(), part, first=start == 0)
        ctx.gradients = (grad_states, None if grad_weight is None else grad_weight[:vocab], grad_bias)
        ctx.dtypes = (states.dtype, weight.dtype, bias.dtype if bias is not None else None)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        scaled = [
            None if gradient is None else (gradient * grad).to(dtype)
            for gradient, dtype in zip(ctx.gradients, ctx.dtypes, strict=True)
        ]
        return (*scaled, None, None, None)


def _apply(
    states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, chunk: int, dtype: torch.dtype
) -> Tensor:
    total: Tensor = _LinearCrossEntropy.apply(states, weight, bias, targets, chunk, dtype)
    return total


# A loss of ERNIE that was compiled whole gave gradients of about zero on an H200 (bf16, torch 2.11). Here logits become
# their gradient in place, which a compiler may not see, so a loss that is compiled leaves its graph.
_apply_outside_graph = _disable_dynamo(_apply)


def _write_matmul(out: Tensor, left: Tensor, right: Tensor) -> None:
    """out = left @ right, without a copy where the dtypes agree."""
    if out.dtype == right.dtype:
        torch.mm(left, right, out=out)
    else:
        out.copy_(left @ right)


def _add_matmul(total: Tensor, left: Tensor, right: Tensor, first: bool) -> None:
    """total += left @ right; with `first`, total = left @ right.

    On a GPU the addition is part of the product, whose sums are float32 and not rounded before.
    """
    if total.is_cuda and total.dtype != right.dtype:
        if first:
            torch.mm(left, right, out_dtype=total.dtype, out=total)
        else:
            torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    elif first:
        total.copy_(left @ right)
    else:
        total += left @ right


def _chunk_loss_and_grad(
    states: Tensor,
    table: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    vocab: int,
    needs_grad: bool,
    grad_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Compute `_loss_and_grad` of one chunk; add the gradient's sum over slots to `grad_bias`, if given."""
    if not states.is_cuda:
        return _cpu_chunk_loss_and_grad(states @ table.t(), bias, targets, needs_grad, grad_bias)
    total, grad = _gpu_chunk_loss_and_grad(states, table, bias, targets, vocab, needs_grad)
    if grad is not None and grad_bias is not None:
        grad_bias += grad.sum(0, dtype=grad_bias.dtype)[:vocab]
    return total, grad


def _gpu_chunk_loss_and_grad(
    states: Tensor, table: Tensor, bias: Tensor | None, targets: Tensor, vocab: int, needs_grad: bool
) -> tuple[Tensor, Tensor | None]:
    """Compute the loss and gradient of a chunk by a kernel, in the memory of the logits themselves."""
    if is_fusion_disabled() or not needs_grad or states.dtype == torch.float64:
        return _loss_and_grad(states @ table.t(), bias, targets, vocab, needs_grad)
    from etude.nn.triton.cross_entropy import loss_and_grad_  # brings Triton along

    # the product adds a bias at no cost; a kernel would read it again for every slot
    padded_bias = None if bias is None else F.pad(bias.to(states.dtype), (0, len(table) - vocab))
    product = F.linear(states, table, padded_bias)
    return loss_and_grad_(product, targets, vocab).sum(), product


def _cpu_chunk_loss_and_grad(
    product: Tensor, bias: Tensor | None, targets: Tensor, needs_grad: bool, grad_bias: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Compute the loss and gradient of a chunk in the memory of the logits, block by block in cache."""
    is_used = (targets != IGNORE)[:, None]
    label = targets.clamp(min=0)[:, None]
    losses = torch.empty(len(targets), 1, dtype=upcast(product[:0]).dtype)
    rows = max(1, _block // product.shape[1])
    for start in range(0, len(targets), rows):
        piece = slice(start, start + rows)
        logits = upcast(product[piece])
        if bias is not None:
            logits = logits.add_(bias.to(logits.dtype))
        highest, label_logits = logits.amax(-1, keepdim=True), logits.gather(1, label[piece])
        exps = logits.sub_(highest).exp_()  # softmax before the division
        normalizer = exps.sum(-1, keepdim=True)
        torch.sub(normalizer.log().add_(highest), label_logits, out=losses[piece])
        if needs_grad:
            # an unused slot divides by infinity: its row becomes 0 without a pass of its own
            grad = exps.div_(normalizer.masked_fill_(~is_used[piece], math.inf))
            grad.scatter_add_(1, label[piece], -is_used[piece].to(grad.dtype))
            if grad_bias is not None:
                grad_bias.addmv_(grad.t(), is_used[piece, 0].to(grad.dtype))  # a sum over used slots
            product[piece] = grad
    return losses.masked_fill_(~is_used, 0.0).sum(), product if needs_grad else None

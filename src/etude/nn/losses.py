"""Cross-entropy as a sum over a fixed number of slots (design decisions 1 and 3).

Unused slots have the target IGNORE and add nothing. `linear_cross_entropy` joins the output layer and the loss: the
logits of a large vocabulary exist for one chunk of slots at a time, and their gradient is computed while they exist.
So nothing is computed twice, and the result is that of the plain form. `linear_copy_cross_entropy` is the same for a
softmax that is mixed with a copy of a token at hand, `linear_cross_entropy_and_draws` draws tokens from the softmax.

On a GPU the table is cast into a copy whose rows are padded to a multiple of 64: tensor cores lose half their speed at
GPT-2's 50,257 columns. The columns after the vocabulary have logits of minus infinity, so neither probability nor
gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd.function import once_differentiable

from etude.nn.draws import draw_tokens
from etude.nn.precision import matmul_dtype, upcast
from etude.nn.triton import availability

OnLogits = Callable[[Tensor, Tensor | None], None]  # (C, V') logits, and a bias (V,) that is not in them yet

IGNORE = -100  # torch's own default for "no target"
# Logits in memory at once: on a CPU 128 MiB in float32, on a GPU 2 GiB in bf16, where each further chunk adds once more
# to the whole gradient of the table (GPT-2's 32,768 tokens: four chunks 554,600 tokens/s on an H200, two 558,000).
_LOGITS, _LOGITS_GPU = 2**25, 2**30
_EVALUATED_GPU = 2**27  # where the losses and the most likely tokens are wanted: 512 MiB in float32, held three times
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
    return _compute(states, weight, bias, None, targets, chunk=chunk)[0]


def linear_cross_entropy_and_draws(
    states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    keys: Tensor,
    temperature: float = 1.0,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The same sum, and of every slot a token drawn from its softmax (nn/draws.py), (M,) int64, used or not."""
    return _compute(states, weight, bias, None, targets, keys=keys, temperature=temperature, chunk=chunk)


def linear_copy_cross_entropy(
    states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    copy_odds: Tensor,
    targets: Tensor,
    is_copied: Tensor,
    chunk: int | None = None,
) -> Tensor:
    """The sum of -log p(target) where p = (1 - D) softmax + D [the target is the token at hand], a chunk at a time.

    (M, D), (V, D), (V,), (M,) log-odds of D, (M,), (M,) bool: whether the target is the token at hand -> ().
    """
    return _compute(states, weight, bias, copy_odds, targets, is_copied, chunk=chunk)[0]


def linear_losses_and_argmax(
    states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, chunk: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return the loss (0 where unused) and the most likely token of every slot, (M,) each, to evaluate."""
    vocab, dtype = weight.shape[0], matmul_dtype(states)
    largest = choose_chunk_size(vocab) if states.device.type == "cpu" else max(1, _EVALUATED_GPU // vocab)
    chunk, table = chunk or largest, weight.to(dtype)
    losses, predictions = [], []
    with torch.no_grad():
        for part, target in zip(states.split(chunk), targets.split(chunk), strict=True):
            logits = _logits(part.to(dtype), table, bias)
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


def _losses_and_grad(
    product: Tensor, bias: Tensor | None, targets: Tensor, vocab: int, needs_grad: bool
) -> tuple[Tensor, Tensor | None]:
    """(C, V') products, (C,) targets -> losses (C,), and the gradient of their sum by the logits (C, V').

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
    losses = (normalizer - logits.gather(1, label)).squeeze(1).masked_fill(~is_used, 0.0)
    if not needs_grad:
        return losses, None
    grad = (logits - normalizer).exp() - (column == label).to(logits.dtype)
    return losses, grad.masked_fill(~is_used[:, None], 0.0).to(product.dtype)


class _LinearCrossEntropy(torch.autograd.Function):
    """Linear layer and cross-entropy whose forward pass computes the gradients too."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        copy_odds: Tensor | None,
        targets: Tensor,
        is_copied: Tensor | None,
        keys: Tensor | None,
        temperature: float,
        chunk: int,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        needs, vocab = ctx.needs_input_grad, weight.shape[0]
        grad_states = torch.empty_like(states) if needs[0] else None
        sum_dtype = torch.float64 if dtype == torch.float64 else torch.float32
        table = cast_table(weight, dtype)
        empty = torch.empty_like if states.shape[0] else torch.zeros_like  # the first chunk is written, not added
        grad_weight = empty(table, dtype=sum_dtype) if needs[1] else None
        grad_bias = torch.zeros_like(bias, dtype=sum_dtype) if bias is not None and needs[2] else None
        grad_odds = None if copy_odds is None else torch.empty_like(copy_odds, dtype=sum_dtype)
        total = torch.zeros((), dtype=sum_dtype, device=states.device)
        samples = targets.new_empty(0 if keys is None else len(keys), dtype=torch.int64)
        with torch.autocast(states.device.type, enabled=False):
            for start in range(0, states.shape[0], chunk):
                piece = slice(start, start + chunk)
                part, target = states[piece].to(dtype), targets[piece]

                def draw(product: Tensor, added: Tensor | None, piece: slice = piece) -> None:
                    if keys is not None:
                        samples[piece] = draw_tokens(product, added, keys[piece], vocab, temperature)

                given = (part, table, bias, target, vocab, any(needs[:3]), grad_bias, draw)
                if copy_odds is None or is_copied is None or grad_odds is None:
                    losses, grad_logits = _chunk_losses_and_grad(*given)
                else:
                    losses, grad_logits, grad_odds[piece] = _mix_copy(copy_odds[piece], is_copied[piece], *given)
                total += losses.sum()
                if grad_logits is None:
                    continue
                if grad_states is not None:
                    _write_matmul(grad_states[piece], grad_logits, table)
                if grad_weight is not None:
                    _add_matmul(grad_weight, grad_logits.t(), part, first=start == 0)
        ctx.gradients = (grad_states, None if grad_weight is None else grad_weight[:vocab], grad_bias, grad_odds)
        inputs = (states, weight, bias, copy_odds)
        ctx.dtypes = tuple(None if tensor is None else tensor.dtype for tensor in inputs)
        ctx.mark_non_differentiable(samples)
        return total, samples

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _samples: Tensor) -> tuple[Tensor | None, ...]:
        scaled = [
            None if gradient is None else (gradient * grad).to(dtype)
            for gradient, dtype in zip(ctx.gradients, ctx.dtypes, strict=True)
        ]
        return (*scaled, None, None, None, None, None, None)


def _compute(
    states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    copy_odds: Tensor | None,
    targets: Tensor,
    is_copied: Tensor | None = None,
    keys: Tensor | None = None,
    temperature: float = 1.0,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    chunk = chunk or choose_chunk_size(weight.shape[0], states.device.type, states.shape[0])
    compute = _apply_outside_graph if torch.compiler.is_compiling() else _apply
    return compute(states, weight, bias, copy_odds, targets, is_copied, keys, temperature, chunk, matmul_dtype(states))


def _apply(*given: Any) -> tuple[Tensor, Tensor]:
    total, samples = _LinearCrossEntropy.apply(*given)
    return total, samples


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


def _chunk_losses_and_grad(
    states: Tensor,
    table: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    vocab: int,
    needs_grad: bool,
    grad_bias: Tensor | None = None,
    on_logits: OnLogits = lambda *_: None,
) -> tuple[Tensor, Tensor | None]:
    """Compute `_losses_and_grad` of one chunk; add the gradient's sum over slots to `grad_bias`, if given.

    `on_logits` sees the logits before they become their gradient.
    """
    if not states.is_cuda:
        product = states @ table.t()
        on_logits(product, bias)
        return _cpu_chunk_losses_and_grad(product, bias, targets, needs_grad, grad_bias)
    losses, grad = _gpu_chunk_losses_and_grad(states, table, bias, targets, vocab, needs_grad, on_logits)
    if grad is not None and grad_bias is not None:
        _add_slots(grad_bias, grad)
    return losses, grad


def _mix_copy(
    copy_odds: Tensor,
    is_copied: Tensor,
    states: Tensor,
    table: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    vocab: int,
    needs_grad: bool,
    grad_bias: Tensor | None,
    on_logits: OnLogits,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """The same for a softmax mixed with a copy; besides, the gradient by the log-odds of a copy (C,)."""
    losses, grad = _chunk_losses_and_grad(states, table, bias, targets, vocab, needs_grad, None, on_logits)
    odds, is_unused = copy_odds.to(losses.dtype), targets == IGNORE
    generated = F.logsigmoid(-odds) - losses  # log((1 - D) softmax)
    likelihood = torch.where(is_copied, torch.logaddexp(F.logsigmoid(odds), generated), generated)
    share = (generated - likelihood).exp()  # of the likelihood, what the softmax gives: d loss / d its own loss
    if grad is not None:
        grad.mul_(share[:, None])
        if grad_bias is not None:
            _add_slots(grad_bias, grad)
    grad_odds = torch.sigmoid(odds) + share - 1.0
    return (-likelihood).masked_fill(is_unused, 0.0), grad, grad_odds.masked_fill(is_unused, 0.0)


def _add_slots(grad_bias: Tensor, grad: Tensor) -> None:
    """grad_bias (V,) += the sum of (C, V') over slots."""
    grad_bias += grad.sum(0, dtype=grad_bias.dtype)[: len(grad_bias)]


def _gpu_chunk_losses_and_grad(
    states: Tensor,
    table: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    vocab: int,
    needs_grad: bool,
    on_logits: OnLogits,
) -> tuple[Tensor, Tensor | None]:
    """Compute the losses and gradient of a chunk by a kernel, in the memory of the logits themselves."""
    kernels = availability.kernel_module("cross_entropy")
    if kernels is None or states.dtype == torch.float64:
        product = states @ table.t()
        on_logits(product, bias)
        return _losses_and_grad(product, bias, targets, vocab, needs_grad)
    # the product adds a bias at no cost; a kernel would read it again for every slot
    padded_bias = None if bias is None else F.pad(bias.to(states.dtype), (0, len(table) - vocab))
    product = F.linear(states, table, padded_bias)
    on_logits(product, None)
    losses = kernels.loss_and_grad_(product, targets, vocab)
    return losses, product if needs_grad else None


def _cpu_chunk_losses_and_grad(
    product: Tensor, bias: Tensor | None, targets: Tensor, needs_grad: bool, grad_bias: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Compute the losses and gradient of a chunk in the memory of the logits, block by block in cache."""
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
    return losses.masked_fill_(~is_used, 0.0).squeeze(1), product if needs_grad else None

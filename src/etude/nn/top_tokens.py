"""The likeliest next tokens of many hypotheses, chosen from logits: what a step of a beam search asks for.

A search needs eight of eight thousand log-probabilities. So they are not computed one and all: `LogProbs` holds the
logits, and `topk`, which is called as that of a tensor, has a kernel on a GPU (nn/triton/top_tokens.py).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from etude.nn.precision import upcast
from etude.nn.triton import availability


class LogProbs:
    """Log-probabilities (S, V) of the next token; minus infinity for tokens that are banned, which still have a share.

    `banned` (V,) bool.
    """

    def __init__(self, logits: Tensor, banned: Tensor | None = None) -> None:
        self.logits, self.banned = logits, banned

    @property
    def shape(self) -> torch.Size:
        return self.logits.shape

    def dense(self) -> Tensor:
        """All of them, (S, V) float32."""
        log_probs = upcast(self.logits).log_softmax(-1)
        return log_probs if self.banned is None else log_probs.masked_fill_(self.banned, -torch.inf)

    def topk(self, count: int) -> tuple[Tensor, Tensor]:
        """The `count` largest of each row and their tokens, (S, count), largest first."""
        kernel = _find_kernel(self.logits)
        if kernel is not None:
            values, tokens = kernel.choose_tokens(self.logits, self.banned, count)
        else:
            values, tokens = self.dense().topk(count)
        return values, tokens


def choose_likeliest(logits: Tensor) -> Tensor:
    """The likeliest token of each row, (S, V) -> (S,): the first of equal ones."""
    kernel = _find_kernels(logits)
    result: Tensor = logits.argmax(-1) if kernel is None or not len(logits) else kernel.choose_likeliest(logits)
    return result


def _find_kernel(logits: Tensor) -> Any:  # ModuleType | None
    """The kernel's module on a GPU that runs it and for a vocabulary that it takes; None elsewhere."""
    module = _find_kernels(logits)
    return module if module is not None and module.supports_vocab(logits.shape[1]) else None


def _find_kernels(logits: Tensor) -> Any:  # ModuleType | None
    if logits.device.type != "cuda" or not availability.supports_flash(logits.device.index):
        return None
    return availability.kernel_module("top_tokens")

"""The discriminators of ELECTRA: what is predicted of a text in which a generator replaced some tokens.

    Detector   is this token replaced?  At every token, or at the chosen ones alone ("ELECTRA 15 %")
    Restorer   which token stood here?  At the chosen ones ("Replace MLM"), or at every token with a way to copy
               the one that stands there ("All-Tokens MLM")

Section 3.5 of Clark et al. 2020 compares the four at equal compute.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etude.models.transformer import Transformer
from etude.nn.activations import ACTIVATIONS, Activation
from etude.nn.initialization import draw_key, fill_uniform, init_weights
from etude.nn.losses import (
    choose_chunk_size,
    linear_copy_cross_entropy,
    linear_cross_entropy,
    linear_losses_and_argmax,
)
from etude.nn.precision import upcast
from etude.nn.states import States
from etude.objectives.base import IGNORE, Stat, Term
from etude.objectives.parts.heads import MaskedHead, token_table


@dataclass
class CorruptedText:
    """A text with replaced tokens, and what is known about it."""

    tokens: Tensor  # (N,) as the larger model sees it
    truth: Tensor  # (N,) as it was
    index: Tensor  # (M,) the chosen places, 0 in unused slots
    targets: Tensor  # (M,) the true tokens there, or IGNORE
    slots: int  # in use

    @property
    def replaced(self) -> Tensor:
        """(N,) bool: a drawn token that happens to be the true one is not replaced (section 2)."""
        return self.tokens != self.truth


class Detector(nn.Module):
    """Parameters dense.*, out.*. `everywhere`: there is no padding, so at all tokens, [CLS] and [SEP] among them."""

    name = "discriminator"

    def __init__(self, model: Transformer, weight: float, everywhere: bool) -> None:
        super().__init__()
        settings = model.settings
        self.weight, self.everywhere = weight, everywhere
        self.activation = ACTIVATIONS[settings.activation]
        self.dense = nn.Linear(model.width, model.width)
        self.out = nn.Linear(model.width, 1)
        init_weights(self, key=draw_key(), deviation=settings.init_deviation, truncated=settings.init_truncated)
        # the code leaves this matrix to TensorFlow's default, Glorot and Bengio's uniform
        fill_uniform(self.out.weight, draw_key(), math.sqrt(6 / (model.width + 1)))

    def forward(self, last: Tensor) -> Tensor:
        """(N, D) -> (N,): the log-odds that a token is replaced."""
        return upcast(self.out(self.activation(self.dense(last)))).squeeze(-1)

    def count(self, tokens: int, slots: int) -> int:
        return tokens if self.everywhere else slots

    def _scored(self, states: States, text: CorruptedText) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The loss, a sum; log-odds, labels, and which of them count: (N,) each, or (M,)."""
        last, labels, used = states.last, text.replaced, torch.ones_like(text.tokens, dtype=torch.bool)
        if not self.everywhere:
            last, labels = last.index_select(0, text.index), labels.index_select(0, text.index)
            used = text.targets != IGNORE
        odds = self(last)
        losses = F.binary_cross_entropy_with_logits(odds, labels.to(odds.dtype), reduction="none")
        return losses.masked_fill(~used, 0.0).sum(), odds, labels & used, used

    def term(self, model: Transformer, states: States, text: CorruptedText) -> Term:
        total = self._scored(states, text)[0]
        return Term(total, self.count(len(text.tokens), text.slots), self.weight)

    def stats(self, model: Transformer, states: States, text: CorruptedText) -> dict[str, Stat]:
        total, odds, labels, used = self._scored(states, text)
        predicted = (odds > 0) & used
        right, hits, count = ((predicted == labels) & used).sum(), (predicted & labels).sum(), int(used.sum())
        return {
            "discriminator": Stat(total, count, self.weight),
            "accuracy": Stat(right, count),
            # above 0 once it knows more than that most tokens are original
            "accuracy_gain": Stat(right - (used & ~labels).sum(), count),
            "precision": Stat(hits, int(predicted.sum())),
            "recall": Stat(hits, int(labels.sum())),
            "replaced": Stat(labels.sum(), count),
        }

    def flops(self, model: Transformer, tokens: int, slots: int) -> int:
        return 2 * self.count(tokens, slots) * model.width * (model.width + 1)


class Restorer(nn.Module):
    """Parameters head.{dense,norm,bias}; with `everywhere` also copy.*, the copy mechanism of section 3.5.

    The probability of a token is D + (1 - D) * softmax for the one that stands there, and (1 - D) * softmax for any
    other; D is the sigmoid of a linear layer. Without it every token would be spelt out anew by the softmax.
    """

    name = "mlm"

    def __init__(self, model: Transformer, activation: Activation, everywhere: bool) -> None:
        super().__init__()
        settings = model.settings
        self.everywhere = everywhere
        self.head = MaskedHead.over(model, activation)
        self.copy = None
        if everywhere:
            self.copy = nn.Linear(model.width, 1)
            init_weights(
                self.copy, key=draw_key(), deviation=settings.init_deviation, truncated=settings.init_truncated
            )

    def count(self, tokens: int, slots: int) -> int:
        return tokens if self.everywhere else slots

    def term(self, model: Transformer, states: States, text: CorruptedText) -> Term:
        """Weight 1: like the generator's, its loss is one over the vocabulary."""
        count = self.count(len(text.tokens), text.slots)
        if self.copy is None:
            hidden = self.head(states.last.index_select(0, text.index))
            return Term(linear_cross_entropy(hidden, token_table(model, states), self.head.bias, text.targets), count)
        hidden, odds = self.head(states.last), upcast(self.copy(states.last)).squeeze(-1)
        table, is_copied = token_table(model, states), ~text.replaced
        return Term(linear_copy_cross_entropy(hidden, table, self.head.bias, odds, text.truth, is_copied), count)

    def stats(self, model: Transformer, states: States, text: CorruptedText) -> dict[str, Stat]:
        count, table = self.count(len(text.tokens), text.slots), token_table(model, states)
        if self.copy is None:
            hidden = self.head(states.last.index_select(0, text.index))
            losses, likeliest = linear_losses_and_argmax(hidden, table, self.head.bias, text.targets)
            total, right = losses.sum(), (likeliest == text.targets).sum()
        else:
            total, right = torch.zeros((), device=table.device), torch.zeros((), device=table.device)
            for hidden, odds, visible, truth in self._pieces(model, states, text):
                scores = self._scores(hidden, table, odds, visible)
                total = total - scores.gather(1, truth[:, None]).sum()
                right = right + (scores.argmax(-1) == truth).sum()
        return {
            "mlm": Stat(total, count, 1.0),
            "accuracy": Stat(right, count),
            "replaced": Stat(text.replaced.sum(), len(text.tokens)),
        }

    def _pieces(
        self, model: Transformer, states: States, text: CorruptedText
    ) -> zip[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """States for the table, odds of a copy, visible and true tokens, of as many tokens as logits fit memory."""
        assert self.copy is not None
        hidden, odds = self.head(states.last), upcast(self.copy(states.last)).squeeze(-1)
        parts = (tensor.split(choose_chunk_size(model.vocab)) for tensor in (hidden, odds, text.tokens, text.truth))
        return zip(*parts, strict=True)

    def _scores(self, hidden: Tensor, table: Tensor, odds: Tensor, visible: Tensor) -> Tensor:
        """(C, V) log-probabilities."""
        log_probs = F.log_softmax(upcast(F.linear(hidden, table)) + self.head.bias, -1) + F.logsigmoid(-odds)[:, None]
        place = visible[:, None]
        copied = torch.logaddexp(log_probs.gather(1, place), F.logsigmoid(odds)[:, None])
        return log_probs.scatter(1, place, copied)

    def flops(self, model: Transformer, tokens: int, slots: int) -> int:
        count = self.count(tokens, slots)
        return self.head.flops(count) + (2 * count * model.width if self.copy is not None else 0)

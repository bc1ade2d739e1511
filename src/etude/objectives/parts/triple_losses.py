"""Losses over the score of a true triple and those of its negatives.

    margin     sum over i of max(0, margin - s + s_i)                               (Bordes et al. 2013, equation 1)
    logistic   -log sigmoid(margin + s) - sum over i of p_i log sigmoid(-margin - s_i), halved
               p_i = softmax over i of alpha s_i, without a gradient: self-adversarial negatives (Sun et al. 2019,
               equations 5 and 6); alpha = 0 weighs all alike. s is minus a distance: margin + s is RotatE's score
    softmax    -log of e^s / (e^s + sum over i of e^(s_i)): cross-entropy over the answer and its negatives

All are sums over triples; the loop divides by the counts. A triple's weight multiplies its terms.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from etude.nn.fusion import fuse

LossName = Literal["margin", "logistic", "softmax"]


def margin_loss(positive: Tensor, negative: Tensor, weights: Tensor | None, margin: float) -> Tensor:
    """Return the sum over all pairs of true triples (B,) and negatives (B, n)."""
    return _weighted(F.relu(margin - positive[:, None] + negative).sum(-1), weights)


def logistic_losses(
    positive: Tensor, negative: Tensor, weights: Tensor | None, margin: float, alpha: float
) -> tuple[Tensor, Tensor]:
    """Return the sums of the true triples' part (B,) and of the negatives' part (B, n), before halving."""
    negative_part = _negative_part(negative, margin, alpha)
    return _weighted(-F.logsigmoid(margin + positive), weights), _weighted(negative_part, weights)


@fuse
def _negative_part(negative: Tensor, margin: float, alpha: float) -> Tensor:
    """(B, n) -> (B,): minus the log sigmoids, in the mean that their own scores weigh."""
    shares = torch.softmax(alpha * negative.detach(), -1)
    return -(shares * F.logsigmoid(-margin - negative)).sum(-1)


def softmax_loss(positive: Tensor, negative: Tensor, weights: Tensor | None) -> Tensor:
    """Return the sum over triples of the cross-entropy of the answer among itself and its negatives."""
    return _weighted(torch.logaddexp(positive, torch.logsumexp(negative, -1)) - positive, weights)


def _weighted(losses: Tensor, weights: Tensor | None) -> Tensor:
    return losses.sum() if weights is None else (losses * weights).sum()

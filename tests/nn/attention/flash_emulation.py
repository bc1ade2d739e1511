"""torch's flash kernels in plain loops, for tests on a CPU: what they compute, and how they mark what sees nothing.

The forward gives the mixed values and log-sum-exp (H, N) in float32. The backward is Dao et al. 2022, algorithm 4: it
takes the probabilities from the log-sum-exp it is given, whatever that is, and row sums from the output it is given.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _weights(query: Tensor, key: Tensor, causal: bool) -> Tensor:
    """(H, Q, K) scores, minus infinity where nothing is seen."""
    scores = torch.einsum("qhd,khd->hqk", query, key) * query.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[1:], dtype=torch.bool).triu(1), -torch.inf)
    return scores


def forward(
    query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, longest: int, causal: bool, dropout: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    assert not dropout and bounds.dtype == torch.int32
    assert int(bounds.diff().max()) <= longest and int(bounds.diff().min()) >= 0 and int(bounds[-1]) == len(query)
    out = torch.full_like(query, torch.nan)
    lse = torch.full((query.shape[1], query.shape[0]), torch.nan)
    for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        part = slice(start, stop)
        scores = _weights(query[part], key[part], causal)
        lse[:, part] = scores.logsumexp(-1).float()
        out[part] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value[part])
    return out, lse, torch.zeros(2), torch.zeros(0)


def backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    bounds: Tensor,
    longest: int,
    causal: bool,
    dropout: float,
    state: Tensor,
    unused: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    assert not dropout and lse.dtype == torch.float32 and lse.shape == (query.shape[1], query.shape[0])
    grads = [torch.zeros_like(item) for item in (query, key, value)]
    scale = query.shape[-1] ** -0.5
    for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        part = slice(start, stop)
        weights = (_weights(query[part], key[part], causal) - lse[:, part, None]).exp()  # (H, Q, K)
        sums = (grad[part] * out[part]).sum(-1).t()[:, :, None]
        grad_probs = torch.einsum("qhd,khd->hqk", grad[part], value[part])
        grad_out = weights * (grad_probs - sums) * scale
        grads[0][part] = torch.einsum("hqk,khd->qhd", grad_out, key[part]).to(query.dtype)
        grads[1][part] = torch.einsum("hqk,qhd->khd", grad_out, query[part]).to(query.dtype)
        grads[2][part] = torch.einsum("hqk,qhd->khd", weights.to(grad.dtype), grad[part])
    return grads[0], grads[1], grads[2]

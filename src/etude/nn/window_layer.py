"""A hidden layer over a window of neighbouring words (Collobert et al. 2011, sections 3.2.1 and 3.3).

    h_t = W [x_{t-k} ; ... ; x_t ; ... ; x_{t+k}] + b

Beyond the ends of a sequence stands one learned vector, Collobert's padding word. `replace_middle` computes the same
layer with another middle word, which changes one block of W: many words cost little more than one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from etude.nn.packed import Layout


class WindowLayer(nn.Module):
    """A linear layer over `window` neighbouring vectors."""

    def __init__(self, width: int, window: int, hidden: int) -> None:
        super().__init__()
        if window % 2 == 0:
            raise ValueError(f"the window must have an odd number of words, not {window}")
        self.width, self.window = width, window
        self.edge = nn.Parameter(torch.zeros(width))
        self.layer = nn.Linear(window * width, hidden)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """(N, D) -> (N, hidden), before any non-linearity."""
        half, total = self.window // 2, x.shape[0]
        bounds = layout.bounds.long()
        first, last = (
            torch.repeat_interleave(bound, bounds.diff(), output_size=total) for bound in (bounds[:-1], bounds[1:])
        )
        index = torch.arange(total, device=x.device)[:, None] + torch.arange(-half, half + 1, device=x.device)
        outside = (index < first[:, None]) | (index >= last[:, None])
        with_edge = torch.cat([x, self.edge[None].to(x.dtype)])
        return self.layer(with_edge[index.masked_fill(outside, total)].flatten(1))

    def replace_middle(self, hidden: Tensor, x: Tensor, replacements: Tensor) -> Tensor:
        """(N, hidden), (N, D), (N, K, D) -> (N, K, hidden): `forward` with other words in the middle."""
        middle = self.layer.weight.view(-1, self.window, self.width)[:, self.window // 2]  # (hidden, D)
        return hidden[:, None] + (replacements - x[:, None]) @ middle.t()

    def flops(self, tokens: int, replacements: int = 0) -> int:
        """Count the forward pass; `replacements` is the number of middle words tried in each window."""
        return 2 * tokens * self.layer.out_features * self.width * (self.window + replacements)

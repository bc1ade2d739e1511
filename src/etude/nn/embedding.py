"""From token ids to the first states.

    token + position + segment -> norm -> dropout -> projection to the model's width

Every part is optional but the first. Sinusoidal positions: Vaswani et al. 2017, section 3.5. The factorised
form, a narrow table and a projection behind norm and dropout: ALBERT, section 3.1, and ELECTRA-small.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etude.nn.norm import Norm

Positions = Literal["learned", "sinusoidal", "rotary", "none"]


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """(N,) -> (N, width) float32: sine at even columns, cosine at odd ones, wavelengths from 2 pi to 10000 * 2 pi."""
    pair = torch.arange(0, width, 2, dtype=torch.float64)
    frequency = (10_000.0 ** -(pair / width)).to(positions.device, torch.float32)
    angle = positions.to(torch.float32)[:, None] * frequency  # (N, ceil(width/2))
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :width]


class Embedding(nn.Module):
    def __init__(
        self,
        vocab: int,
        width: int,
        *,
        table_width: int | None = None,
        context: int = 0,
        positions: Positions = "learned",
        segments: int = 0,
        norm: Norm | None = None,
        dropout: float = 0.0,
        drop_table: bool = False,
        scale: float = 1.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        table_width = table_width or width
        self.kind, self.dropout, self.drop_table, self.scale = positions, dropout, drop_table, scale
        self.tokens = nn.Embedding(vocab, table_width)
        self.positions = nn.Embedding(context, table_width) if positions == "learned" else None
        self.segments = nn.Embedding(segments, table_width) if segments else None
        self.norm = norm
        self.project = nn.Linear(table_width, width, bias=bias) if table_width != width else None

    def forward(self, tokens: Tensor, positions: Tensor, segments: Tensor | None) -> tuple[Tensor, Tensor]:
        """(N,) each -> the first states (N, D), and the token table as used, (V, E), for a tied output.

        They differ from the stored table only in GPT-1's way (`drop_table`, when training): dropout falls on
        the elements of the tables before the look-up, and the output layer uses the same dropped table.
        """
        table = self._dropped(self.tokens.weight)
        x = F.embedding(tokens, table)  # (N, E)
        if self.scale != 1.0:
            x = x * self.scale
        if self.positions is not None:
            x = x + F.embedding(positions, self._dropped(self.positions.weight))
        elif self.kind == "sinusoidal":
            x = x + sinusoids(positions, x.shape[-1]).to(x.dtype)
        if self.segments is not None:
            segments = torch.zeros_like(tokens) if segments is None else segments
            x = x + F.embedding(segments, self._dropped(self.segments.weight))
        if self.norm is not None:
            x = self.norm(x)
        if not self.drop_table:
            x = F.dropout(x, self.dropout, self.training)
        return x if self.project is None else self.project(x), table

    def _dropped(self, table: Tensor) -> Tensor:
        return F.dropout(table, self.dropout, self.training) if self.drop_table else table

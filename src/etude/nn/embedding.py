"""The input embedding: from token ids to the first hidden states.

    token + position + segment -> norm -> dropout -> projection to the model's width

Every part but the first is optional. Sinusoidal positions: Vaswani et al. 2017, section 3.5. The factorised form, a
narrow table and a projection after norm and dropout: ALBERT, section 3.1, and ELECTRA-small. Parts may be tied to
another embedding (ELECTRA, section 3.2): they exist once, in that embedding, and are passed to `forward`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etude.nn.activations import apply_dropout
from etude.nn.norm import Norm

Positions = Literal["learned", "sinusoidal", "rotary", "none"]
Part = TypeVar("Part", bound=nn.Module)


def sinusoidal_positions(positions: Tensor, width: int) -> Tensor:
    """(N,) -> (N, width) float32: sine at even columns, cosine at odd ones.

    Wavelengths run from 2 pi to 10000 * 2 pi.
    """
    # made on the device, because a recorded step (nn/cuda_graphs.py) cannot copy from the host
    pair = torch.arange(0, width, 2, dtype=torch.float64, device=positions.device)
    frequency = (10_000.0 ** -(pair / width)).to(torch.float32)
    angle = positions.to(torch.float32)[:, None] * frequency  # (N, ceil(width/2))
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :width]


def _lookup_segments(index: Tensor, table: Tensor) -> Tensor:
    """Look up segment vectors, (N,), (2, E) -> (N, E).

    On a GPU the gradient of a lookup is summed by atomic additions, and here all tokens share two rows: in a step of
    BERT at 512 on an H200 that took 0.3 ms. As a selection, its gradient is an ordinary sum.
    """
    use_select = table.device.type == "cuda" and table.shape[0] == 2
    return _select_row(index, table) if use_select else F.embedding(index, table)


def _select_row(index: Tensor, table: Tensor) -> Tensor:
    """Select one of two rows for each index."""
    return torch.where((index == 1)[:, None], table[1], table[0])


def _look_up(index: Tensor, table: Tensor) -> Tensor:
    """The rows of a table, (N,) and (V, E) -> (N, E).

    In a step of generation a GPU gathers them by another kernel than that of `F.embedding`, which runs through up to
    16 indices one after the other: 10 µs of an H200.
    """
    if table.device.type != "cuda" or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return F.embedding(index, table)
    return table[index]


class Embedding(nn.Module):
    """Token, position and segment vectors, with norm, dropout and projection."""

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
        tied: Collection[str] = (),
    ) -> None:
        """`tied` names the parts (tokens, positions, segments, norm) that are read from another embedding."""
        super().__init__()
        table_width = table_width or width
        self.tied = frozenset(tied)

        def unless_tied(name: str, make: Callable[[], Part | None]) -> Part | None:
            return None if name in tied else make()

        self.kind, self.dropout, self.drop_table, self.scale = positions, dropout, drop_table, scale
        # nn.Embedding; None where tied, and then nobody reads its weight
        self.tokens: Any = unless_tied("tokens", lambda: nn.Embedding(vocab, table_width))
        learned = positions == "learned"
        self.positions = unless_tied("positions", lambda: nn.Embedding(context, table_width) if learned else None)
        self.segments = unless_tied("segments", lambda: nn.Embedding(segments, table_width) if segments else None)
        self.norm = unless_tied("norm", lambda: norm)
        self.project = nn.Linear(table_width, width, bias=bias) if table_width != width else None

    def forward(
        self, tokens: Tensor, positions: Tensor, segments: Tensor | None, tied_to: Embedding | None = None
    ) -> tuple[Tensor, Tensor]:
        """(N,) each -> the first states (N, D), and the token table as used, (V, E), for a tied output layer.

        `tied_to` is the embedding that owns the tied parts. The table returned differs from the stored one only with
        `drop_table` in training (GPT-1): dropout is applied to the elements of the tables before the lookup, and the
        output layer uses the same table.
        """
        part = {
            name: getattr(tied_to if name in self.tied else self, name)
            for name in ("tokens", "positions", "segments", "norm")
        }
        table = self._dropped(part["tokens"].weight)
        x = _look_up(tokens, table)  # (N, E)
        if self.scale != 1.0:
            x = x * self.scale
        if part["positions"] is not None:
            x = x + _look_up(positions, self._dropped(part["positions"].weight))
        elif self.kind == "sinusoidal":
            x = x + sinusoidal_positions(positions, x.shape[-1]).to(x.dtype)
        if part["segments"] is not None:
            segments = torch.zeros_like(tokens) if segments is None else segments
            x = x + _lookup_segments(segments, self._dropped(part["segments"].weight))
        if part["norm"] is not None:
            x = part["norm"](x)
        if not self.drop_table:
            x = apply_dropout(x, self.dropout, self.training)
        return x if self.project is None else self.project(x), table

    def _dropped(self, table: Tensor) -> Tensor:
        return apply_dropout(table, self.dropout, self.training) if self.drop_table else table

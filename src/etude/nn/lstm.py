"""An LSTM with projection and clipping, over packed sequences.

Sak, Senior and Beaufays 2014, section 2 (the recurrent projection), in the form ELMo uses (Peters et al.
2018, section 3.4; the released biLM clips the cell and the projection at 3 [code]):

    i, f, g, o = W x + U h + b
    c = clip(sigmoid(f) * c + sigmoid(i) * tanh(g))
    h = clip(P (sigmoid(o) * tanh(c)))

`torch.nn.LSTM` has the projection but no clipping, so the steps are a loop here: the products with the input
are one matrix product for all tokens, and sequences are taken longest first, so that the running ones are
always the head of the state and nothing is computed for padding. Gates stand in torch's order i, f, g, o.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from etude.nn.packed import Layout


class State(NamedTuple):
    """What a layer carries from token to token, in the precision of the weights even where products have less."""

    hidden: Tensor  # (S, D)
    cell: Tensor  # (S, C)


@dataclass
class Schedule:
    """The order in which tokens are read: all first tokens, then all second ones, longest sequences first."""

    sequences: Tensor  # (S,) longest first
    back: Tensor  # (S,) its inverse
    read: Tensor  # (N,) token at each place of the schedule
    unread: Tensor  # (N,) its inverse
    running: list[int]  # at each step, how many sequences still have a token

    @classmethod
    def of(cls, layout: Layout, reverse: bool) -> Schedule:
        """Worked out once a batch and direction; every layer uses it again."""
        key = ("lstm", reverse)
        if key not in layout.cache:
            layout.cache[key] = cls._work_out(layout, reverse)
        found: Schedule = layout.cache[key]
        return found

    @classmethod
    def _work_out(cls, layout: Layout, reverse: bool) -> Schedule:
        lengths = layout.lengths.astype(np.int64)
        sequences = np.argsort(-lengths, kind="stable")
        owner = np.repeat(np.arange(len(lengths)), lengths)  # (N,) sequence of each token
        place = np.arange(layout.total) - layout.host[:-1].astype(np.int64)[owner]
        step = lengths[owner] - 1 - place if reverse else place
        back = np.argsort(sequences)
        read = np.lexsort((back[owner], step))
        running = np.bincount(step, minlength=1).tolist() if layout.total else []
        device = layout.bounds.device

        def there(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array).to(device, non_blocking=True)

        return cls(there(sequences), there(back), there(read), there(np.argsort(read)), running)


class LSTM(nn.Module):
    """One layer, one direction."""

    def __init__(
        self,
        inputs: int,
        cells: int,
        *,
        projection: int | None = None,
        cell_clip: float | None = None,
        projection_clip: float | None = None,
    ) -> None:
        super().__init__()
        self.inputs, self.cells, self.width = inputs, cells, projection or cells
        self.cell_clip, self.projection_clip = cell_clip, projection_clip
        self.input = nn.Linear(inputs, 4 * cells)
        self.recurrent = nn.Linear(self.width, 4 * cells, bias=False)
        self.project = nn.Linear(cells, projection, bias=False) if projection else None
        for part in (self.input, self.recurrent, self.project):
            if part is not None:
                nn.init.xavier_uniform_(part.weight)
        with torch.no_grad():
            self.input.bias.zero_()
            # The forget gate starts open (Jozefowicz et al. 2015). TensorFlow adds 1 at run time; here it is stored.
            self.input.bias[cells : 2 * cells] = 1.0

    def start(self, sequences: int, device: torch.device) -> State:
        """The state before any token: zeros."""
        kind = self.input.weight.dtype
        hidden = torch.zeros(sequences, self.width, dtype=kind, device=device)
        return State(hidden, torch.zeros(sequences, self.cells, dtype=kind, device=device))

    def forward(
        self, inputs: Tensor, layout: Layout, carry: State | None = None, reverse: bool = False
    ) -> tuple[Tensor, State]:
        """(N, inputs) -> (N, D) and the state after each sequence's last token (its first, if `reverse`)."""
        schedule = Schedule.of(layout, reverse)
        sequences = len(layout.host) - 1
        carry = carry or self.start(sequences, inputs.device)
        hidden, cell = carry.hidden[schedule.sequences], carry.cell[schedule.sequences]
        driven = self.input(inputs)[schedule.read]  # (N, 4C)
        outputs, ended, place = [], [], 0
        for running in schedule.running:
            if running < len(hidden):  # those that are over keep the state they ended with
                ended.append(State(hidden[running:], cell[running:]))
                hidden, cell = hidden[:running], cell[:running]
            hidden, cell = self._step(driven[place : place + running], hidden, cell)
            outputs.append(hidden)
            place += running
        ended.append(State(hidden, cell))
        final = State(*(torch.cat(parts[::-1])[schedule.back] for parts in zip(*ended, strict=True)))
        if not outputs:
            return inputs.new_zeros(0, self.width), final
        return torch.cat(outputs)[schedule.unread], final

    def _step(self, driven: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """One token of every running sequence."""
        enter, forget, new, leave = (driven + self.recurrent(hidden)).to(cell.dtype).chunk(4, dim=-1)  # (S, C) each
        cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
        if self.cell_clip is not None:
            cell = cell.clamp(-self.cell_clip, self.cell_clip)
        hidden = leave.sigmoid() * cell.tanh()
        if self.project is not None:
            hidden = self.project(hidden).to(cell.dtype)
            if self.projection_clip is not None:
                hidden = hidden.clamp(-self.projection_clip, self.projection_clip)
        return hidden, cell

    def flops(self, tokens: int) -> int:
        """Forward only, matrix products x2: torch's counter does not see these as an LSTM."""
        products = 4 * self.cells * (self.inputs + self.width)
        if self.project is not None:
            products += self.cells * self.width
        return 2 * tokens * products

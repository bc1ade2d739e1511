"""GRU and LSTM cells, and their scan over packed sequences: the recurrent layers of encoder-decoders.

    GRU    r, z = sigmoid(W x + U h);  n = tanh(W x + r * (U h));  h = (1 - z) * n + z * h
    LSTM   i, f, o = sigmoid(W x + U h);  g = tanh(W x + U h);  c = f * c + i * g;  h = o * tanh(c)

Names and order of the gates are torch's, and so is the place of the reset gate: Cho et al. 2014 multiply the state by
it before the product with U, cuDNN and torch the product. A decoder with attention needs the state before it knows
the next input, so a layer is a cell that anybody may step; `scan` steps it over whole sequences, longest first, so that
nothing is computed for padding.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from etude.nn.packed import Layout
from etude.nn.rectangle import Rectangle
from etude.nn.schedule import Schedule

CellKind = Literal["gru", "lstm"]
State = tuple[Tensor, ...]  # hidden (S, W), and of an LSTM its cell


class RecurrentCell(nn.Module):
    """One recurrent layer."""

    def __init__(self, inputs: int, width: int, kind: CellKind) -> None:
        super().__init__()
        self.inputs, self.width, self.kind = inputs, width, kind
        gates = 3 if kind == "gru" else 4
        self.input = nn.Linear(inputs, gates * width)
        self.recurrent = nn.Linear(width, gates * width)
        for gate in range(gates):  # each gate is a matrix of its own
            rows = slice(gate * width, (gate + 1) * width)
            nn.init.xavier_uniform_(self.input.weight[rows])
            nn.init.orthogonal_(self.recurrent.weight[rows])
        with torch.no_grad():
            self.input.bias.zero_()
            self.recurrent.bias.zero_()
            if kind == "lstm":
                self.input.bias[width : 2 * width] = 1.0  # the forget gate starts open (Jozefowicz et al. 2015)

    def zero_state(self, sequences: int) -> State:
        """The state before any token."""
        zeros = self.input.weight.new_zeros(sequences, self.width)
        return (zeros,) if self.kind == "gru" else (zeros, zeros)

    def step(self, projected: Tensor, state: State) -> State:
        """Read one input each, given as `self.input(x)`, (S, gates * W)."""
        carried = self.recurrent(state[0])
        if self.kind == "gru":
            reset_in, update_in, new_in = projected.chunk(3, -1)
            reset_carried, update_carried, new_carried = carried.chunk(3, -1)
            update = torch.sigmoid(update_in + update_carried)
            new = torch.tanh(new_in + torch.sigmoid(reset_in + reset_carried) * new_carried)
            return (new + update * (state[0] - new),)
        gates = projected + carried
        enter, forget, candidate, leave = gates.chunk(4, -1)
        cell = torch.sigmoid(forget) * state[1] + torch.sigmoid(enter) * torch.tanh(candidate)
        return torch.sigmoid(leave) * torch.tanh(cell), cell

    def scan(self, inputs: Tensor, layout: Layout, reverse: bool = False) -> tuple[Tensor, State]:
        """(N, inputs) -> hidden states (N, W), and the state after each sequence's last token (first, if `reverse`)."""
        if layout.rectangular:
            return self._scan_rectangle(inputs, layout, reverse)
        schedule = Schedule.from_layout(layout, reverse)
        state = self.zero_state(len(layout.host) - 1)
        if not schedule.batch_sizes:
            return inputs.new_zeros(0, self.width), state
        hidden: list[Tensor] = []
        ended: list[State] = []  # sequences without a further token: always the last rows
        for projected in self.input(inputs)[schedule.sorted_tokens].split(schedule.batch_sizes):
            count = len(projected)
            ended.append(tuple(part[count:] for part in state))
            state = self.step(projected, tuple(part[:count] for part in state))
            hidden.append(state[0])
        ended.append(state)
        last = tuple(torch.cat(parts[::-1])[schedule.unsorted_sequences] for parts in zip(*ended, strict=True))
        return torch.cat(hidden)[schedule.unsorted_tokens], last

    def _scan_rectangle(self, inputs: Tensor, layout: Layout, reverse: bool) -> tuple[Tensor, State]:
        """The same with a static number of steps; a state stays what it is behind the end of its sequence."""
        rectangle = Rectangle.from_layout(layout, len(inputs), reverse)
        state = self.zero_state(len(layout.bounds) - 1)
        hidden: list[Tensor] = []
        inside = rectangle.is_inside[..., None].unbind()
        for projected, is_inside in zip(rectangle.spread(self.input(inputs)).unbind(), inside, strict=True):
            steps = self.step(projected, state)
            state = tuple(torch.where(is_inside, new, old) for new, old in zip(steps, state, strict=True))
            hidden.append(state[0])
        return rectangle.pack(torch.stack(hidden)), state

    def flops(self, tokens: int) -> int:
        """Of one forward pass over so many tokens."""
        return 2 * tokens * self.input.weight.shape[0] * (self.inputs + self.width)

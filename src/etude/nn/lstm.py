"""An LSTM with projection and clipping, over packed sequences.

Sak, Senior and Beaufays 2014, section 2 (the recurrent projection), in the form ELMo uses (Peters et al.
2018, section 3.4; the released biLM clips the cell and the projection at 3 [code]):

    i, f, g, o = W x + U h + b
    c = clip(sigmoid(f) * c + sigmoid(i) * tanh(g))
    h = clip(P (sigmoid(o) * tanh(c)))

Products with the input are one matrix product for all tokens. Sequences are taken longest first, so that the running
ones are always the head of the state and nothing is computed for padding. Gates stand in torch's order i, f, g, o.

The steps themselves go one of two ways with one meaning (`path`):

    scan    ours, forward and backward by hand: the gradients of U and P are one product each over all steps, and
            nothing but the gates is kept a step
    torch   torch's own, cuDNN on a GPU; only where nothing is clipped, which it cannot do

cuDNN rounds float32 to TF32's 10 bits where nobody forbids it, though matrix products elsewhere do not: an error of
4e-4 in a state. Here float32 means float32, unless `torch.set_float32_matmul_precision` allows less.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from etude.nn.packed import Layout

Path = Literal["scan", "torch"]
SWITCH: Any = torch.backends.cudnn.rnn  # `fp32_precision` of cuDNN's recurrent networks; torch tells no types


class LSTMState(NamedTuple):
    """What a layer carries from token to token, in the precision of the weights even where products have less."""

    hidden: Tensor  # (S, D)
    cell: Tensor  # (S, C)


@dataclass
class Schedule:
    """The order in which tokens are read: all first tokens, then all second ones, longest sequences first."""

    sorted_sequences: Tensor  # (S,) longest first
    unsorted_sequences: Tensor  # (S,) its inverse
    sorted_tokens: Tensor  # (N,) the token at each position of the schedule
    unsorted_tokens: Tensor  # (N,) its inverse
    previous: Tensor  # (N,) position of the same sequence's previous token in [initial states (S,) ; schedule (N,)]
    last: Tensor  # (S,) position of each sequence's last token in the same, in the order of `sorted_sequences`
    batch_sizes: list[int]  # at each step, how many sequences still have a token

    @classmethod
    def from_layout(cls, layout: Layout, reverse: bool) -> Schedule:
        """Worked out once a batch and direction; every layer uses it again."""
        key = ("lstm", reverse)
        if key not in layout.cache:
            layout.cache[key] = cls._build(layout, reverse)
        found: Schedule = layout.cache[key]
        return found

    @classmethod
    def _build(cls, layout: Layout, reverse: bool) -> Schedule:
        lengths = layout.lengths.astype(np.int64)
        count = len(lengths)
        sequences = np.argsort(-lengths, kind="stable")
        owner = np.repeat(np.arange(count), lengths)  # (N,) sequence of each token
        place = np.arange(layout.total) - layout.host[:-1].astype(np.int64)[owner]
        step = lengths[owner] - 1 - place if reverse else place
        back = np.argsort(sequences)
        read = np.lexsort((back[owner], step))
        running = np.bincount(step, minlength=1) if layout.total else np.zeros(0, np.int64)
        # entry k of step t stands at starts[t] + k, its predecessor at starts[t - 1] + k; those of step 0 are states
        starts = count + np.concatenate([[-count], np.cumsum(running)]).astype(np.int64)
        starts[1:] -= running  # now starts[t + 1] is the place of step t, starts[0] that of the states
        within = np.arange(layout.total) + count - np.repeat(starts[1:], running)
        before = np.repeat(starts[:-1], running) + within
        sorted_lengths = lengths[sequences]
        last = starts[sorted_lengths] + np.arange(count)
        device = layout.bounds.device

        def there(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array).to(device, non_blocking=True)

        return cls(
            there(sequences), there(back), there(read), there(np.argsort(read)), there(before), there(last),
            running.tolist(),
        )  # fmt: skip


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
        self.cell_clip, self.projection_clip = cell_clip, projection_clip if projection else None
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

    def zero_state(self, sequences: int, device: torch.device) -> LSTMState:
        """The state before any token: zeros."""
        kind = self.input.weight.dtype
        hidden = torch.zeros(sequences, self.width, dtype=kind, device=device)
        return LSTMState(hidden, torch.zeros(sequences, self.cells, dtype=kind, device=device))

    def forward(
        self,
        inputs: Tensor,
        layout: Layout,
        carry: LSTMState | None = None,
        reverse: bool = False,
        path: Path | None = None,
    ) -> tuple[Tensor, LSTMState]:
        """(N, inputs) -> (N, D) and the state after each sequence's last token (its first, if `reverse`)."""
        schedule = Schedule.from_layout(layout, reverse)
        carry = carry or self.zero_state(len(layout.host) - 1, inputs.device)
        if not schedule.batch_sizes:
            return inputs.new_zeros(0, self.width), carry
        hidden, cell = carry.hidden[schedule.sorted_sequences], carry.cell[schedule.sorted_sequences]
        clips = self.cell_clip is not None or self.projection_clip is not None
        path = path or ("torch" if inputs.is_cuda and not clips else "scan")
        if path == "torch":
            if clips:
                raise ValueError("torch's own LSTM does not clip")
            outputs, hidden, cell = self._by_torch(inputs[schedule.sorted_tokens], hidden, cell, schedule.batch_sizes)
        else:
            driven = self.input(inputs)[schedule.sorted_tokens]  # (N, 4C)
            outputs, cells = _Scan.apply(
                driven, hidden, cell, self.recurrent.weight, None if self.project is None else self.project.weight,
                schedule.batch_sizes, schedule.previous, self.cell_clip, self.projection_clip, _dtype_of(driven),
            )  # fmt: skip
            hidden = torch.cat([hidden, outputs])[schedule.last]
            cell = torch.cat([cell, cells])[schedule.last]
        return outputs[schedule.unsorted_tokens], LSTMState(
            hidden[schedule.unsorted_sequences], cell[schedule.unsorted_sequences]
        )

    def _by_torch(self, x: Tensor, hidden: Tensor, cell: Tensor, running: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """The tokens of a schedule, (N, inputs) -> (N, D), and the last states; those without a token keep theirs."""
        weights = [self.input.weight, self.recurrent.weight, self.input.bias, torch.zeros_like(self.input.bias)]
        if self.project is not None:
            weights.append(self.project.weight)
        batch = torch.tensor(running)  # on the host: cuDNN wants it there
        count = running[0]
        state = [hidden[None, :count].contiguous(), cell[None, :count].contiguous()]
        narrow = torch.is_autocast_enabled(x.device.type)  # no float32 in there to be rounded
        call = _torch_lstm if narrow or _rounds_as_elsewhere() else _Float32.apply
        outputs, last_hidden, last_cell = call(torch.is_grad_enabled(), batch, x, *state, *weights)
        kind = cell.dtype
        return (
            outputs.to(kind),
            torch.cat([last_hidden[0].to(kind), hidden[count:]]),
            torch.cat([last_cell[0].to(kind), cell[count:]]),
        )

    def flops(self, tokens: int) -> int:
        """Forward only, matrix products x2: torch's counter does not see these as an LSTM."""
        products = 4 * self.cells * (self.inputs + self.width)
        if self.project is not None:
            products += self.cells * self.width
        return 2 * tokens * products


def _dtype_of(x: Tensor) -> torch.dtype:
    """Of the products within the steps."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def _torch_lstm(
    keep: bool, batch: Tensor, x: Tensor, hidden: Tensor, cell: Tensor, *weights: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """`keep`: what cuDNN's backward pass needs."""
    return torch.lstm(x, batch, [hidden, cell], weights, True, 1, 0.0, keep, False)


def _rounds_as_elsewhere() -> bool:
    """Whether cuDNN's LSTM takes TF32 only where torch's matrix products do."""
    recurrent, elsewhere = SWITCH.fp32_precision, torch.backends.cuda.matmul.fp32_precision
    return recurrent != "tf32" or elsewhere == "tf32"


@contextmanager
def _unrounded() -> Iterator[None]:
    """No TF32 in cuDNN's LSTM: a switch of the whole process, so it is put back."""
    before = SWITCH.fp32_precision
    SWITCH.fp32_precision = "ieee"
    try:
        yield
    finally:
        SWITCH.fp32_precision = before


class _Float32(torch.autograd.Function):
    """`_torch_lstm` without TF32 in both passes: the switch is read when the backward pass runs, long after the call.

    So the call is a graph of its own, which the backward pass walks under the switch.
    """

    @staticmethod
    def forward(ctx: Any, keep: bool, batch: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        with torch.set_grad_enabled(keep), _unrounded():
            inside = [one.detach().requires_grad_(keep and one.requires_grad) for one in tensors]
            outputs = _torch_lstm(keep, batch, *inside)
        ctx.inside, ctx.outputs = inside, outputs
        return tuple(one.detach() for one in outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        wanted = [one for one in ctx.inside if one.requires_grad]
        with _unrounded():
            found = iter(torch.autograd.grad(ctx.outputs, wanted, slopes))
        grads = [next(found) if one.requires_grad else None for one in ctx.inside]
        del ctx.inside, ctx.outputs  # memory, as soon as it is of no more use
        return None, None, *grads


class _Scan(torch.autograd.Function):
    """All steps of a layer: (N, 4C) what the inputs add to the gates -> (N, D) hidden and (N, C) cell states.

    A step is few operations over long rows, since each costs some microseconds whatever its size. So tanh x is taken
    as 2 sigmoid(2x) - 1, all four gates being one sigmoid then (it is also the cheaper function on a CPU), and what the
    backward pass can know beforehand is worked out for all steps at once. A value at its clip passes no gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        driven: Tensor,
        hidden: Tensor,
        cell: Tensor,
        recurrent: Tensor,
        project: Tensor | None,
        running: list[int],
        before: Tensor,
        cell_clip: float | None,
        projection_clip: float | None,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        size, kind = cell.shape[1], cell.dtype
        gates = driven.to(kind)  # (N, 4C), becomes the gates after their functions: in place, nobody reads it again
        gates[:, 2 * size : 3 * size] *= 2.0
        hiddens = gates.new_empty(len(gates), hidden.shape[1])
        cells, squashed = (gates.new_empty(len(gates), size) for _ in range(2))  # squashed: half of tanh of the cell
        with torch.autocast(driven.device.type, enabled=False):
            doubled = recurrent.clone()
            doubled[2 * size : 3 * size] *= 2.0
            weight = _turned(doubled.to(dtype))
            narrow = None if project is None else _turned(2.0 * project.to(dtype))
            h, c = hidden, cell
            for all_gates, new_h, new_c, half in zip(*(x.split(running) for x in (gates, hiddens, cells, squashed)),
                                                     strict=True):  # fmt: skip
                count = len(all_gates)
                if dtype == kind:
                    all_gates.addmm_(h[:count], weight)
                else:
                    all_gates += h[:count].to(dtype) @ weight
                all_gates.sigmoid_()
                enter, forget, new, leave = all_gates.split(size, dim=1)
                torch.mul(forget, c[:count], out=new_c)
                new_c.addcmul_(enter, new, value=2.0).sub_(enter)
                if cell_clip is not None:
                    new_c.clamp_(-cell_clip, cell_clip)
                torch.mul(new_c, 2.0, out=half)
                half.sigmoid_().sub_(0.5)
                if narrow is None:
                    torch.mul(leave, half, out=new_h)
                    new_h.mul_(2.0)
                elif dtype == kind:
                    torch.mm(leave * half, narrow, out=new_h)
                else:
                    new_h.copy_((leave * half).to(dtype) @ narrow)
                if projection_clip is not None:
                    new_h.clamp_(-projection_clip, projection_clip)
                h, c = new_h, new_c
        ctx.save_for_backward(hidden, cell, recurrent, project, gates, hiddens, cells, squashed, before)
        ctx.running, ctx.dtype, ctx.clips = running, dtype, (cell_clip, projection_clip)
        return hiddens, cells

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_hiddens: Tensor, grad_cells: Tensor) -> tuple[Tensor | None, ...]:
        hidden, cell, recurrent, project, gates, hiddens, cells, squashed, before = ctx.saved_tensors
        (cell_clip, projection_clip), running, dtype, size = ctx.clips, ctx.running, ctx.dtype, cell.shape[1]
        weight = recurrent.to(dtype)
        narrow = None if project is None else project.to(dtype)
        enter, forget, new, leave = gates.split(size, dim=1)  # (N, C) each
        new, squashed = 2.0 * new - 1.0, 2.0 * squashed  # the tanh of both
        # what turns the slope of a cell into those of its three gates before their functions, and of the cell before
        by = gates.new_empty(len(gates), 4, size)
        torch.mul(new, enter * (1 - enter), out=by[:, 0])
        torch.mul(torch.cat([cell, cells])[before], forget * (1 - forget), out=by[:, 1])
        torch.mul(enter, 1 - new.square(), out=by[:, 2])
        by[:, 3] = forget
        if cell_clip is not None:
            by *= (cells.abs() < cell_clip)[:, None]
        by_leave = leave * (1 - leave) * squashed
        from_hidden = leave * (1 - squashed.square())
        shown = None if projection_clip is None else hiddens.abs() < projection_clip
        of_hidden = grad_hiddens.clone()  # (N, D): what comes from above, and from the step after
        slopes = gates.new_empty(len(gates), 4, size)  # of the gates before their functions
        back_hidden, back_cell = torch.zeros_like(hidden), torch.zeros_like(cell)
        whole = (of_hidden, grad_cells, slopes, by, by_leave, from_hidden, *(() if shown is None else (shown,)))
        for up, down, slope, by_cell, by_out, from_out, *seen in reversed(
            list(zip(*(x.split(running) for x in whole), strict=True))
        ):
            count = len(up)
            up += back_hidden[:count]
            if seen:
                up *= seen[0]
            out = up if narrow is None else (up.to(dtype) @ narrow).to(up.dtype)  # (S, C)
            c = torch.addcmul(down, out, from_out)
            c += back_cell[:count]
            torch.mul(c[:, None], by_cell, out=slope)
            back_cell[:count] = slope[:, 3]
            torch.mul(out, by_out, out=slope[:, 3])
            flat = slope.view(count, -1)
            if dtype == slope.dtype:
                torch.mm(flat, weight, out=back_hidden[:count])
            else:
                back_hidden[:count] = flat.to(dtype) @ weight
        slopes = slopes.view(len(gates), -1)
        heard = torch.cat([hidden, hiddens])[before]  # (N, D) the hidden state a step before
        grad_recurrent = slopes.to(dtype).t() @ heard.to(dtype)
        grad_project = None
        if project is not None:
            grad_project = (of_hidden.to(dtype).t() @ (leave * squashed).to(dtype)).to(project.dtype)
        grads = (slopes, back_hidden, back_cell, grad_recurrent.to(recurrent.dtype), grad_project)
        return (*grads, None, None, None, None, None)


def _turned(weight: Tensor) -> Tensor:
    """The transpose of a weight; on a CPU a copy in its order, with which products of few rows are up to 4 x faster."""
    return weight.t().contiguous() if weight.device.type == "cpu" else weight.t()

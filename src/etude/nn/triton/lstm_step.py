"""The scan of an LSTM in few kernels for a CUDA device: nn/lstm.py has the formulas, and a plain scan to compare with.

A step of the plain scan is some thirty kernels, both ways, which take a GPU less time than the host needs to launch
them; beside other processes each of them waits for its turn. Here a step is, each way, its matrix products and one
kernel for all that is elementwise between them:

    forward    h U;  gates, cell, its clip, o tanh(c);  (o tanh(c)) P;  clip and cast of h
    backward   gradient of h, its clip and cast;  by P;  gradients of cell and gates;  by U

The last of the first line and the first of the second are kernels of their own, since a product has to be complete
before them and another one needs their result. Without projection there are two launches a step, each way.

All is computed in float32 and stored as it is used: gates and states in the dtype of the weights, what a product reads
in that of the products. The tanh of a cell is computed again in the backward pass. A clip of infinity is none.

Kernels get whole tensors and the number of the first row, not slices: all addresses are then as aligned as those of the
tensors, and a kernel is compiled once, whatever the sizes of the steps.

Triton comes with torch where that is built for CUDA; only `nn/lstm.py` imports this file, and only there.
"""

from __future__ import annotations

import math
from itertools import accumulate
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from etude.nn.schedule import select_previous

ELEMENTS, MAX_COLUMNS, WARPS = 512, 128, 4  # of a program: loads of 16 bytes of float32 by each thread


@triton.jit
def _sigmoid(x):  # type: ignore[no-untyped-def]
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _tanh(x):  # type: ignore[no-untyped-def]
    return 2.0 * _sigmoid(2.0 * x) - 1.0


@triton.jit
def _clip(x, limit):  # type: ignore[no-untyped-def]
    """Bound x, and leave what is no number as it is: minimum and maximum would hide it."""
    return tl.where(x > limit, limit, tl.where(x < -limit, -limit, x))


@triton.jit
def _tile(count, width: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the rows (R, 1) and columns (1, C) of a program, and which of them there are."""
    row = (tl.program_id(0) * rows + tl.arange(0, rows)).to(tl.int64)[:, None]
    column = (tl.program_id(1) * columns + tl.arange(0, columns))[None, :]
    return row, column, (row < count) & (column < width)


@triton.jit
def _load(pointer, at, inside):  # type: ignore[no-untyped-def]
    return tl.load(pointer + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _store(pointer, at, value, inside):  # type: ignore[no-untyped-def]
    tl.store(pointer + at, value.to(pointer.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["start", "previous_start", "count"])
def _forward_step(  # type: ignore[no-untyped-def]
    projected, product, previous_cells, gates, cells, outputs, cast_outputs, start, previous_start, count, limit,
    size: tl.constexpr, casts: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    """Compute gates (N, 4C) after activation, cells and o tanh(c) (N, C) of the rows of a step.

    `projected` (N, 4C) and `product` (S, 4C) are the gates' input and recurrent parts. `casts`: o tanh(c) is the hidden
    state, which the next product reads in its own dtype from `cast_outputs` (S, C).
    """
    row, column, inside = _tile(count, size, rows, columns)
    at, at_step = (start + row) * size + column, row * size + column
    at_gates, at_product = (start + row) * (4 * size) + column, row * (4 * size) + column
    input_gate = _load(projected, at_gates, inside) + _load(product, at_product, inside)
    forget_gate = _load(projected + size, at_gates, inside) + _load(product + size, at_product, inside)
    candidate = _load(projected + 2 * size, at_gates, inside) + _load(product + 2 * size, at_product, inside)
    output_gate = _load(projected + 3 * size, at_gates, inside) + _load(product + 3 * size, at_product, inside)
    cell = _load(previous_cells, (previous_start + row) * size + column, inside)
    input_gate, forget_gate, output_gate = _sigmoid(input_gate), _sigmoid(forget_gate), _sigmoid(output_gate)
    candidate = _tanh(candidate)
    cell = _clip(forget_gate * cell + input_gate * candidate, limit)
    output = output_gate * _tanh(cell)
    _store(gates, at_gates, input_gate, inside)
    _store(gates + size, at_gates, forget_gate, inside)
    _store(gates + 2 * size, at_gates, candidate, inside)
    _store(gates + 3 * size, at_gates, output_gate, inside)
    _store(cells, at, cell, inside)
    _store(outputs, at, output, inside)
    if casts:
        _store(cast_outputs, at_step, output, inside)


@triton.jit(do_not_specialize=["start", "count"])
def _clip_hidden(  # type: ignore[no-untyped-def]
    product, hiddens, cast_hidden, start, count, limit, width: tl.constexpr, casts: tl.constexpr, rows: tl.constexpr,
    columns: tl.constexpr,
):  # fmt: skip
    """Bound the projections (S, D) of a step: hidden states (N, D), and (S, D) for the next product where it casts."""
    row, column, inside = _tile(count, width, rows, columns)
    at_step = row * width + column
    hidden = _clip(_load(product, at_step, inside), limit)
    _store(hiddens, (start + row) * width + column, hidden, inside)
    if casts:
        _store(cast_hidden, at_step, hidden, inside)


@triton.jit(do_not_specialize=["start", "count"])
def _add_hidden_grads(  # type: ignore[no-untyped-def]
    grad_hiddens, carried, hiddens, totals, start, count, limit, width: tl.constexpr, rows: tl.constexpr,
    columns: tl.constexpr,
):  # fmt: skip
    """Add the gradients of a step's states from the layer above (N, D) and the next step (S, D), where unclipped."""
    row, column, inside = _tile(count, width, rows, columns)
    at = (start + row) * width + column
    total = _load(grad_hiddens, at, inside) + _load(carried, row * width + column, inside)
    _store(totals, at, tl.where(tl.abs(_load(hiddens, at, inside)) >= limit, 0.0, total), inside)


@triton.jit(do_not_specialize=["start", "previous_start", "count"])
def _backward_step(  # type: ignore[no-untyped-def]
    grad_outputs, carried_hidden, grad_cells, carried_cell, gates, cells, previous_cells, grad_gates, start,
    previous_start, count, limit, size: tl.constexpr, is_projected: tl.constexpr, rows: tl.constexpr,
    columns: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of the gates before activation (N, 4C), and of the cells of the step before (S, C).

    The gradient of o tanh(c) is `grad_outputs` (S, C) with a projection, else that of the hidden states: (N, C) from
    the layer above and (S, C) from the next step.
    """
    row, column, inside = _tile(count, size, rows, columns)
    at, at_step, at_gates = (start + row) * size + column, row * size + column, (start + row) * (4 * size) + column
    if is_projected:
        grad_output = _load(grad_outputs, at_step, inside)
    else:
        grad_output = _load(grad_outputs, at, inside) + _load(carried_hidden, at_step, inside)
    input_gate = _load(gates, at_gates, inside)
    forget_gate = _load(gates + size, at_gates, inside)
    candidate = _load(gates + 2 * size, at_gates, inside)
    output_gate = _load(gates + 3 * size, at_gates, inside)
    cell = _load(cells, at, inside)
    previous_cell = _load(previous_cells, (previous_start + row) * size + column, inside)
    tanh_cell = _tanh(cell)
    grad_cell = _load(grad_cells, at, inside) + _load(carried_cell, at_step, inside)
    grad_cell += grad_output * output_gate * (1.0 - tanh_cell * tanh_cell)
    grad_cell = tl.where(tl.abs(cell) >= limit, 0.0, grad_cell)
    _store(grad_gates, at_gates, grad_cell * candidate * input_gate * (1.0 - input_gate), inside)
    _store(grad_gates + size, at_gates, grad_cell * previous_cell * forget_gate * (1.0 - forget_gate), inside)
    _store(grad_gates + 2 * size, at_gates, grad_cell * input_gate * (1.0 - candidate * candidate), inside)
    _store(grad_gates + 3 * size, at_gates, grad_output * tanh_cell * output_gate * (1.0 - output_gate), inside)
    _store(carried_cell, at_step, grad_cell * forget_gate, inside)


class _Tiles:
    """How the rows of a step are divided among programs."""

    def __init__(self, width: int) -> None:
        columns = min(MAX_COLUMNS, triton.next_power_of_2(width))
        self.rows, self.parts = ELEMENTS // columns, triton.cdiv(width, columns)
        self.options = {"rows": self.rows, "columns": columns, "num_warps": WARPS}

    def grid(self, count: int) -> tuple[int, int]:
        return triton.cdiv(count, self.rows), self.parts


class FusedScan(torch.autograd.Function):
    """All steps of a layer, as `_LSTMScan` in nn/lstm.py: (N, 4C) -> (N, D) hidden and (N, C) cell states."""

    @staticmethod
    def forward(
        ctx: Any,
        projected: Tensor,
        hidden: Tensor,
        cell: Tensor,
        recurrent: Tensor,
        project: Tensor | None,
        batch_sizes: list[int],
        previous: Tensor | None,
        cell_clip: float | None,
        projection_clip: float | None,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        (sequences, width), size, total = hidden.shape, cell.shape[1], len(projected)
        projected, hidden, cell = projected.contiguous(), hidden.contiguous(), cell.contiguous()
        casts = dtype != cell.dtype
        limits = _limit(cell_clip, cell.dtype), _limit(projection_clip, cell.dtype)
        # in place where the dtype is the same: nobody else reads the input parts of the gates
        gates = projected if projected.dtype == cell.dtype else torch.empty_like(projected, dtype=cell.dtype)
        hiddens, cells = cell.new_empty(total, width), cell.new_empty(total, size)
        outputs = hiddens if project is None else cell.new_empty(total, size, dtype=dtype)  # o tanh(c)
        product = cell.new_empty(sequences, 4 * size, dtype=dtype)
        projection = cell.new_empty(sequences, width, dtype=dtype)
        cast_hidden = hidden.to(dtype)  # what the next product reads, where that is not in the dtype of the states
        tiles, hidden_tiles = _Tiles(size), _Tiles(width)
        step_hiddens, step_outputs = hiddens.split(batch_sizes), outputs.split(batch_sizes)
        previous_cells, previous_start = cell, 0
        with torch.autocast(projected.device.type, enabled=False), torch.cuda.device_of(projected):
            weight = recurrent.to(dtype).t()
            project_weight = None if project is None else project.to(dtype).t()
            state = cast_hidden
            for step, (start, count) in enumerate(zip(_starts(batch_sizes), batch_sizes, strict=True)):
                torch.mm(state[:count], weight, out=product[:count])
                _forward_step[tiles.grid(count)](
                    projected, product, previous_cells, gates, cells, outputs, cast_hidden, start,
                    previous_start, count, limits[0], size=size, casts=casts and project is None, **tiles.options,
                )  # fmt: skip
                if project_weight is not None and projection_clip is None and not casts:
                    torch.mm(step_outputs[step], project_weight, out=step_hiddens[step])
                elif project_weight is not None:
                    torch.mm(step_outputs[step], project_weight, out=projection[:count])
                    _clip_hidden[hidden_tiles.grid(count)](
                        projection, hiddens, cast_hidden, start, count, limits[1], width=width, casts=casts,
                        **hidden_tiles.options,
                    )  # fmt: skip
                state = cast_hidden if casts else step_hiddens[step]
                previous_cells, previous_start = cells, start
        ctx.save_for_backward(
            hidden, cell, recurrent, project, gates, hiddens, cells, previous, None if project is None else outputs
        )
        ctx.batch_sizes, ctx.dtype, ctx.limits = batch_sizes, dtype, limits
        return hiddens, cells

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_hiddens: Tensor, grad_cells: Tensor) -> tuple[Tensor | None, ...]:
        hidden, cell, recurrent, project, gates, hiddens, cells, previous, outputs = ctx.saved_tensors
        batch_sizes, dtype, limits = ctx.batch_sizes, ctx.dtype, ctx.limits
        (sequences, width), size, total = hidden.shape, cell.shape[1], len(gates)
        grad_hiddens, grad_cells = grad_hiddens.contiguous(), grad_cells.contiguous()
        grad_gates = gates.new_empty(total, 4 * size, dtype=dtype)  # before activation
        carried_hidden = torch.zeros_like(hidden, dtype=dtype)  # gradients of the states, from the next step
        carried_cell = torch.zeros_like(cell, dtype=torch.float32)
        # of the hidden states, for the product by P; and of o tanh(c), after it
        grad_totals = gates.new_empty(0 if project is None else total, width, dtype=dtype)
        grad_outputs = gates.new_empty(0 if project is None else sequences, size, dtype=dtype)
        tiles, hidden_tiles = _Tiles(size), _Tiles(width)
        step_grad_gates = grad_gates.split(batch_sizes)
        step_totals = () if project is None else grad_totals.split(batch_sizes)
        starts = _starts(batch_sizes)
        with torch.autocast(gates.device.type, enabled=False), torch.cuda.device_of(gates):
            weight = recurrent.to(dtype)
            project_weight = None if project is None else project.to(dtype)
            for step in reversed(range(len(batch_sizes))):
                start, count = starts[step], batch_sizes[step]
                if project_weight is not None:
                    _add_hidden_grads[hidden_tiles.grid(count)](
                        grad_hiddens, carried_hidden, hiddens, grad_totals, start, count, limits[1], width=width,
                        **hidden_tiles.options,
                    )  # fmt: skip
                    torch.mm(step_totals[step], project_weight, out=grad_outputs[:count])
                _backward_step[tiles.grid(count)](
                    grad_hiddens if project is None else grad_outputs, carried_hidden, grad_cells, carried_cell, gates,
                    cells, cells if step else cell, grad_gates, start, starts[step - 1] if step else 0, count,
                    limits[0], size=size, is_projected=project is not None, **tiles.options,
                )  # fmt: skip
                torch.mm(step_grad_gates[step], weight, out=carried_hidden[:count])
            previous_hidden = select_previous(hidden, hiddens, previous).to(dtype)  # (N, D) of the step before
            grad_recurrent = (grad_gates.t() @ previous_hidden).to(recurrent.dtype)
            grad_project = None if project is None else (grad_totals.t() @ outputs).to(project.dtype)
        grads = grad_gates, carried_hidden.to(hidden.dtype), carried_cell.to(cell.dtype), grad_recurrent, grad_project
        return (*grads, None, None, None, None, None)


def _limit(clip: float | None, dtype: torch.dtype) -> float:
    """Return the bound as states of a dtype have it: where a state equals it, it was clipped."""
    return math.inf if clip is None else float(torch.tensor(clip, dtype=dtype))


def _starts(batch_sizes: list[int]) -> list[int]:
    """Return the number of the first row of each step."""
    return list(accumulate(batch_sizes[:-1], initial=0))

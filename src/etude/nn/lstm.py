"""An LSTM with projection and clipping, over packed sequences.

Sak, Senior and Beaufays 2014, section 2 (the recurrent projection), in the form of ELMo (Peters et al. 2018, section
3.4; the released biLM clips the cell and the projection at 3 [code]):

    i, f, g, o = W x + U h + b
    c = clip(sigmoid(f) * c + sigmoid(i) * tanh(g))
    h = clip(P (sigmoid(o) * tanh(c)))

Products with the input are one matrix product for all tokens. Sequences are sorted, longest first (nn/schedule.py), so
that those with a token left are always the first rows of the state and nothing is computed for padding. Gates are in
torch's order i, f, g, o.

The recurrence has three implementations with one meaning (`path`):

    scan    ours, with a backward pass of its own: the gradients of U and P are one product each over all steps, and
            only the gates are stored for each step
    fused   the same for a CUDA device, where what is elementwise in a step is one Triton kernel each way
            (nn/triton/lstm_step.py)
    torch   torch's own, cuDNN on a GPU (nn/torch_lstm.py); only without clipping, which it cannot do
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from etude.nn.packed import Layout
from etude.nn.recompute import Recomputable, recomputable
from etude.nn.schedule import find_schedule, select_previous
from etude.nn.torch_lstm import run_lstm
from etude.nn.triton import availability

Path = Literal["scan", "fused", "torch"]
KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # kernels compute in float32: not in float64


class LSTMState(NamedTuple):
    """The state a layer carries from token to token, in the dtype of the weights even under autocast."""

    hidden: Tensor  # (S, D)
    cell: Tensor  # (S, C)


class LSTM(Recomputable):
    """One LSTM layer in one direction."""

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
        """Return the state before any token."""
        dtype = self.input.weight.dtype
        hidden = torch.zeros(sequences, self.width, dtype=dtype, device=device)
        return LSTMState(hidden, torch.zeros(sequences, self.cells, dtype=dtype, device=device))

    @recomputable
    def forward(
        self,
        inputs: Tensor,
        layout: Layout,
        carry: LSTMState | None = None,
        reverse: bool = False,
        path: Path | None = None,
    ) -> tuple[Tensor, LSTMState]:
        """(N, inputs) -> (N, D) and the state after each sequence's last token (its first, if `reverse`)."""
        schedule = find_schedule(layout, reverse)
        carry = carry or self.zero_state(len(layout.bounds) - 1, inputs.device)
        if not schedule.batch_sizes:
            return inputs.new_zeros(0, self.width), carry
        hidden, cell = (schedule.sort_sequences(part) for part in carry)
        has_clip = self.cell_clip is not None or self.projection_clip is not None
        path = path or choose_path(inputs.device, self.input.weight.dtype, has_clip)
        if path == "torch":
            if has_clip:
                raise ValueError("torch's own LSTM does not clip: use path 'scan'")
            outputs, hidden, cell = self._by_torch(schedule.sort_tokens(inputs), hidden, cell, schedule.batch_sizes)
        else:
            if inputs.is_cuda:  # rows of an input are shorter than those of its gates
                projected = self.input(schedule.sort_tokens(inputs))  # (N, 4C)
            else:
                projected = schedule.sort_tokens(self.input(inputs))
            scan = _LSTMScan if path == "scan" else _fused_scan(self.input.weight.dtype)
            outputs, cells = scan.apply(
                projected, hidden, cell, self.recurrent.weight, None if self.project is None else self.project.weight,
                schedule.batch_sizes, schedule.previous, self.cell_clip, self.projection_clip, _step_dtype(projected),
            )  # fmt: skip
            hidden, cell = schedule.select_last(hidden, outputs), schedule.select_last(cell, cells)
        return schedule.unsort_tokens(outputs), LSTMState(
            schedule.unsort_sequences(hidden), schedule.unsort_sequences(cell)
        )

    def _by_torch(
        self, x: Tensor, hidden: Tensor, cell: Tensor, batch_sizes: list[int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run torch's LSTM on sorted tokens: (N, inputs) -> (N, D), and the last states.

        Empty sequences keep their state.
        """
        weights = [self.input.weight, self.recurrent.weight, self.input.bias, torch.zeros_like(self.input.bias)]
        if self.project is not None:
            weights.append(self.project.weight)
        batch = torch.tensor(batch_sizes)  # cuDNN needs it on the host
        count = batch_sizes[0]
        state = [hidden[None, :count].contiguous(), cell[None, :count].contiguous()]
        outputs, last_hidden, last_cell = run_lstm(batch, x, *state, *weights)
        dtype = cell.dtype
        return (
            outputs.to(dtype),
            torch.cat([last_hidden[0].to(dtype), hidden[count:]]),
            torch.cat([last_cell[0].to(dtype), cell[count:]]),
        )

    def flops(self, tokens: int) -> int:
        """Count the forward pass, matrix products x2; torch's counter does not recognise these as an LSTM."""
        products = 4 * self.cells * (self.inputs + self.width)
        if self.project is not None:
            products += self.cells * self.width
        return 2 * tokens * products


def choose_path(device: torch.device, dtype: torch.dtype, has_clip: bool) -> Path:
    """Return the fastest implementation for weights of a dtype on a device.

    Kernels of our own are not part of what `train.compile` compiles: uncompiled steps need them most.
    """
    if device.type != "cuda":
        return "scan"
    if not has_clip:
        return "torch"
    is_supported = dtype in KERNEL_DTYPES and availability.supports_flash(device.index)
    if not is_supported or torch.compiler.is_compiling() or availability.kernel_module("lstm_step") is None:
        return "scan"
    return "fused"


def _fused_scan(dtype: torch.dtype) -> type[torch.autograd.Function]:
    kernels = availability.kernel_module("lstm_step")
    if kernels is None or dtype not in KERNEL_DTYPES:
        raise ValueError(f"the fused LSTM needs Triton, and weights in float32 or less, not {dtype}: use path 'scan'")
    scan: type[torch.autograd.Function] = kernels.FusedScan
    return scan


def _step_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of the products within the recurrence."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


class _LSTMScan(torch.autograd.Function):
    """All steps of a layer: (N, 4C) input parts of the gates -> (N, D) hidden and (N, C) cell states.

    A step is few operations over long rows, since each costs some microseconds whatever its size. So tanh x is computed
    as 2 sigmoid(2x) - 1, which makes all four gates one sigmoid (also the cheaper function on a CPU), and what the
    backward pass can know beforehand is computed for all steps at once. A clipped value passes no gradient.
    """

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
        size, state_dtype = cell.shape[1], cell.dtype
        gates = projected.to(state_dtype)  # (N, 4C), becomes the gates after activation, in place
        gates[:, 2 * size : 3 * size] *= 2.0
        hiddens = gates.new_empty(len(gates), hidden.shape[1])
        cells, half_tanhs = (gates.new_empty(len(gates), size) for _ in range(2))  # tanh(cell) / 2
        with torch.autocast(projected.device.type, enabled=False):
            scaled_recurrent = recurrent.clone()
            scaled_recurrent[2 * size : 3 * size] *= 2.0
            weight = _transpose(scaled_recurrent.to(dtype))
            project_weight = None if project is None else _transpose(2.0 * project.to(dtype))
            h, c = hidden, cell
            stepwise = (x.split(batch_sizes) for x in (gates, hiddens, cells, half_tanhs))
            for all_gates, new_h, new_c, half_tanh in zip(*stepwise, strict=True):
                count = len(all_gates)
                if dtype == state_dtype:
                    all_gates.addmm_(h[:count], weight)
                else:
                    all_gates += h[:count].to(dtype) @ weight
                all_gates.sigmoid_()
                input_gate, forget_gate, candidate, output_gate = all_gates.split(size, dim=1)
                torch.mul(forget_gate, c[:count], out=new_c)
                new_c.addcmul_(input_gate, candidate, value=2.0).sub_(input_gate)
                if cell_clip is not None:
                    new_c.clamp_(-cell_clip, cell_clip)
                torch.mul(new_c, 2.0, out=half_tanh)
                half_tanh.sigmoid_().sub_(0.5)
                if project_weight is None:
                    torch.mul(output_gate, half_tanh, out=new_h)
                    new_h.mul_(2.0)
                elif dtype == state_dtype:
                    torch.mm(output_gate * half_tanh, project_weight, out=new_h)
                else:
                    new_h.copy_((output_gate * half_tanh).to(dtype) @ project_weight)
                if projection_clip is not None:
                    new_h.clamp_(-projection_clip, projection_clip)
                h, c = new_h, new_c
        ctx.save_for_backward(hidden, cell, recurrent, project, gates, hiddens, cells, half_tanhs, previous)
        ctx.batch_sizes, ctx.dtype, ctx.clips = batch_sizes, dtype, (cell_clip, projection_clip)
        return hiddens, cells

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_hiddens: Tensor, grad_cells: Tensor) -> tuple[Tensor | None, ...]:
        hidden, cell, recurrent, project, gates, hiddens, cells, tanh_cells, previous = ctx.saved_tensors
        (cell_clip, projection_clip), batch_sizes, dtype, size = ctx.clips, ctx.batch_sizes, ctx.dtype, cell.shape[1]
        weight = recurrent.to(dtype)
        project_weight = None if project is None else project.to(dtype)
        input_gate, forget_gate, candidate, output_gate = gates.split(size, dim=1)  # (N, C) each
        candidate, tanh_cells = 2.0 * candidate - 1.0, 2.0 * tanh_cells  # tanh of both
        # factors from the gradient of a cell to those of its three gates before activation, and of the previous cell
        cell_factors = gates.new_empty(len(gates), 4, size)
        torch.mul(candidate, input_gate * (1 - input_gate), out=cell_factors[:, 0])
        torch.mul(select_previous(cell, cells, previous), forget_gate * (1 - forget_gate), out=cell_factors[:, 1])
        torch.mul(input_gate, 1 - candidate.square(), out=cell_factors[:, 2])
        cell_factors[:, 3] = forget_gate
        if cell_clip is not None:
            cell_factors *= (cells.abs() < cell_clip)[:, None]
        output_gate_factor = output_gate * (1 - output_gate) * tanh_cells
        cell_from_output = output_gate * (1 - tanh_cells.square())
        is_unclipped = None if projection_clip is None else hiddens.abs() < projection_clip
        total_grad_hidden = grad_hiddens.clone()  # (N, D): from the layer above and from the next step
        grad_gates = gates.new_empty(len(gates), 4, size)  # before activation
        carried_grad_hidden, carried_grad_cell = torch.zeros_like(hidden), torch.zeros_like(cell)
        stepwise = (
            total_grad_hidden,
            grad_cells,
            grad_gates,
            cell_factors,
            output_gate_factor,
            cell_from_output,
            *(() if is_unclipped is None else (is_unclipped,)),
        )
        for (
            step_grad_hidden,
            step_grad_cell,
            step_grad_gates,
            step_cell_factors,
            step_output_factor,
            step_cell_from_output,
            *step_unclipped,
        ) in reversed(list(zip(*(x.split(batch_sizes) for x in stepwise), strict=True))):
            count = len(step_grad_hidden)
            step_grad_hidden += carried_grad_hidden[:count]
            if step_unclipped:
                step_grad_hidden *= step_unclipped[0]
            grad_output = (
                step_grad_hidden
                if project_weight is None
                else (step_grad_hidden.to(dtype) @ project_weight).to(step_grad_hidden.dtype)
            )  # (S, C)
            grad_cell = torch.addcmul(step_grad_cell, grad_output, step_cell_from_output)
            grad_cell += carried_grad_cell[:count]
            torch.mul(grad_cell[:, None], step_cell_factors, out=step_grad_gates)
            carried_grad_cell[:count] = step_grad_gates[:, 3]
            torch.mul(grad_output, step_output_factor, out=step_grad_gates[:, 3])
            flat = step_grad_gates.view(count, -1)
            if dtype == step_grad_gates.dtype:
                torch.mm(flat, weight, out=carried_grad_hidden[:count])
            else:
                carried_grad_hidden[:count] = flat.to(dtype) @ weight
        grad_gates = grad_gates.view(len(gates), -1)
        previous_hidden = select_previous(hidden, hiddens, previous)  # (N, D) hidden state of the previous step
        grad_recurrent = grad_gates.to(dtype).t() @ previous_hidden.to(dtype)
        grad_project = None
        if project is not None:
            grad_project = (total_grad_hidden.to(dtype).t() @ (output_gate * tanh_cells).to(dtype)).to(project.dtype)
        grads = (grad_gates, carried_grad_hidden, carried_grad_cell, grad_recurrent.to(recurrent.dtype), grad_project)
        return (*grads, None, None, None, None, None)


def _transpose(weight: Tensor) -> Tensor:
    """Transpose a weight; on a CPU as a copy, with which products of few rows are up to 4 x faster."""
    return weight.t().contiguous() if weight.device.type == "cpu" else weight.t()

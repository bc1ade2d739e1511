"""Estimate of the memory training needs, and the settings to change when it runs out.

Parameters, gradients and optimiser state are exact. Activations are counted by the model
(`Model.activation_bytes`); where it does not know them, the estimate says so.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from etude.models.base import Model
from etude.nn.draws import PART
from etude.nn.losses import choose_chunk_size
from etude.objectives.base import Batch, Objective
from etude.train.optim import parameter_role
from etude.train.peak import Precision, resolve_precision
from etude.train.schedule import micro_rows
from etude.train.settings import Settings

DRAWING = 12  # bytes for each logit beside the product while tokens are drawn on a CPU: with bias, divided, its weight


@dataclass(frozen=True)
class Estimate:
    """Memory of training, in bytes."""

    parameters: int
    gradients: int
    optimizer: int
    casts: int  # weights in the compute precision, saved from the forward to the backward pass
    activations: int | None  # None: unknown for this model
    output: int  # logits of one chunk of slots, which become their gradient in place, and what is computed from them
    table_gradient: int = 0  # of the table that scores the vocabulary: the loss computes it, before all others
    output_activations: int = 0  # those that are there beside the output: of a model that draws tokens, its own alone

    @property
    def total(self) -> int:
        """The most that is there at once; a table's gradient is one of the gradients."""
        activations = max(self.activations or 0, self.output_activations + self.output)
        return self.parameters + self.gradients + self.optimizer + self.casts + activations

    def __str__(self) -> str:
        parts = [
            f"weights {_gigabytes(self.parameters + self.casts)}",
            f"gradients {_gigabytes(self.gradients)}",
            f"optimiser {_gigabytes(self.optimizer)}",
            f"activations {'unknown' if self.activations is None else _gigabytes(self.activations)}",
            f"output {_gigabytes(self.output)}",
        ]
        return f"{_gigabytes(self.total)} ({', '.join(parts)})"


def estimate(
    settings: Settings,
    named_parameters: Iterable[tuple[str, nn.Parameter]],
    *,
    micro_tokens: int,
    precision: Precision,
    model: Model | None = None,
    other_models: Iterable[Model] = (),
    read: float = 1.0,
    predicted: float = 1.0,
    drawn: float = 0.0,
    length: int | None = None,
    device: str = "cpu",
) -> Estimate:
    """Estimate the memory of training with these settings.

    `other_models`: those that the objective trains with `model` (a generator). `read`, `predicted`, `drawn`: shares of
    the tokens (objectives/base.py, Places). `length`: of the sequences, where it is known.
    """
    named = list(named_parameters)
    trainable = [(name, parameter) for name, parameter in named if parameter.requires_grad]
    stored = sum(parameter.nbytes for _, parameter in named)
    element_size = 2 if precision == "bf16" else 4
    activations = (
        None
        if model is None
        else model.activation_bytes(
            micro_tokens, element_size, device, settings.recompute, only=math.ceil(read * micro_tokens), length=length
        )
    )
    vocab = 0 if model is None or activations is None else model.target_vocab
    slots = math.ceil(predicted * micro_tokens)
    others = [
        part.activation_bytes(micro_tokens, element_size, device, settings.recompute, only=slots, length=length) or 0
        for part in other_models
    ]
    table = 4 * vocab * model.table_width if model is not None else 0
    activations = None if activations is None else activations + sum(others)
    return Estimate(
        parameters=stored,
        gradients=sum(parameter.nbytes for _, parameter in trainable),
        optimizer=optimizer_bytes(settings, trainable),
        casts=stored // 2 if precision == "bf16" else 0,
        activations=activations,
        output=_output_bytes(slots, math.ceil(drawn * micro_tokens), vocab, table, element_size, device),
        table_gradient=table,
        output_activations=sum(others) if drawn else activations or 0,
    )


def estimate_for(
    settings: Settings,
    model: Model,
    objective: Objective,
    batch: Batch,
    *,
    micro_tokens: int,
    precision: Precision,
    device: str,
) -> Estimate:
    """Estimate the memory of training on micro-batches of so many tokens whose sequences are like those of `batch`."""
    places = objective.count_places(batch)
    return estimate(
        settings,
        [*model.named_parameters("model"), *objective.named_parameters("objective")],
        micro_tokens=micro_tokens,
        precision=precision,
        model=model,
        other_models=objective.trunks(),
        read=places.read / batch.size,
        predicted=places.predicted / batch.size,
        drawn=places.drawn / batch.size,
        length=int(batch.lengths.max()),
        device=device,
    )


def _output_bytes(slots: int, drawn: int, vocab: int, table: int, element_size: int, device: str) -> int:
    """Count what scores of the vocabulary take: for a loss, or for drawing tokens, whichever is more."""
    if not vocab:
        return 0
    chunk = min(slots, choose_chunk_size(vocab, device))
    if device != "cpu":
        return chunk * vocab * element_size
    loss = chunk * vocab * 4 + table  # a product of the table's size, before it is added to the gradient
    return max(loss, chunk * vocab * 4 + DRAWING * min(drawn * vocab, PART) if drawn else 0)


def optimizer_bytes(settings: Settings, named: Iterable[tuple[str, nn.Parameter]]) -> int:
    """Count the bytes of an optimiser's state (optimizers.py); a step counter has 4."""
    total = 0
    for name, parameter in named:
        if settings.optimizer in ("adamw", "adam"):
            total += 2 * parameter.nbytes + 4
        elif settings.optimizer == "lamb":
            total += 2 * parameter.nbytes
        elif settings.optimizer == "sgd":
            total += parameter.nbytes if settings.momentum else 0
        elif settings.optimizer == "adagrad":
            total += parameter.nbytes + 4
        else:
            matrix = parameter_role(name) == "hidden" and parameter.dim() == 2
            total += parameter.nbytes if matrix else 2 * parameter.nbytes + 4
    return total


def suggest_settings(
    settings: Settings,
    row_tokens: int | None,
    device: str = "cpu",
    *,
    layers: int | None = None,
    length: int | None = None,
    has_row_setting: bool = True,
) -> str:
    """Write the message for when memory ran out: three settings to change, each with a value, the least harmful first.

    `layers` of the model, where it has that setting; `length` of the objective's sequences, of which a row holds whole
    ones; `has_row_setting`: whether objective.row_tokens is one of its settings.
    """
    changes: list[str] = []
    if row_tokens is None:
        current = (
            f"train.batch_examples={settings.batch_examples}, train.micro_tokens={settings.micro_tokens or 'not set'}"
        )
        smaller = max(1, settings.micro_tokens // 2) if settings.micro_tokens else 2048  # 16 sentence pairs or so
        changes.append(f"train.micro_tokens={smaller} (the result stays the same)")
    else:
        rows = micro_rows(settings, row_tokens)
        current = f"{rows} row{'s' if rows > 1 else ''} of {row_tokens} tokens at once"
        if rows > 1:
            changes.append(f"train.micro_tokens={rows // 2 * row_tokens} (the result stays the same)")
    if device != "cpu" and resolve_precision(settings.precision, device) == "float32":
        changes.append("train.precision=bf16 (activations take half the memory)")
    if row_tokens is not None and row_tokens > 1 and has_row_setting:
        changes.append(_suggest_rows(row_tokens, length or 1))
    if row_tokens is None and (settings.batch_examples or 0) > 1:
        changes.append(f"train.batch_examples={(settings.batch_examples or 0) // 2}")
    if layers is not None and layers > 1:
        changes.append(f"model.layers={layers // 2}")
    if settings.optimizer in ("adamw", "adam", "lamb"):
        changes.append("train.optimizer=muon (half the state for hidden matrices)")
    changes += ["model.dropout=0 (no masks are saved)", "model.attention_dropout=0 (no attention weights are saved)"]
    where = "on the GPU" if device == "cuda" else "on this machine"
    return f"Memory ran out {where} ({current}). Set one of these, the first one first: {'; '.join(changes[:3])}."


def _suggest_rows(row_tokens: int, length: int) -> str:
    """Suggest rows of half the size in whole sequences; where a row is one sequence, shorter sequences."""
    if row_tokens > length:
        rows = max(1, row_tokens // 2 // length) * length
        return f"objective.row_tokens={rows} (shorter rows, each still as long as the longest sequence)"
    half = max(1, length // 2)
    return f"objective.length={half} objective.row_tokens={half} (shorter sequences)"


def bytes_in_use(device: torch.device | str) -> int | None:
    """Return the most bytes torch has allocated on a GPU, else the resident memory of this process; None if unknown."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        with open("/proc/self/statm") as file:  # Linux; the second number is resident pages
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def machine_memory() -> int | None:
    """Return the bytes this process may hold: of the machine, its control group or its limit; None if unknown."""
    limits = []
    with contextlib.suppress(OSError, ValueError):
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with contextlib.suppress(OSError, ValueError), open("/sys/fs/cgroup/memory.max") as file:
        limits.append(int(file.read()))  # "max" where there is no limit
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        soft, _ = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY:
            limits.append(soft)
    return min(limits, default=None)


def reset_peak(device: torch.device | str) -> None:
    """Make `peak_bytes` count from now on."""
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # Linux: resets the high-water mark to what is resident now


def peak_bytes(device: torch.device | str) -> int | None:
    """Return the most bytes torch reserved on a GPU, or this process held, since `reset_peak`; None if unknown."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    try:
        with open("/proc/self/status") as file:
            marks = [line.split()[1] for line in file if line.startswith("VmHWM:")]
    except OSError:
        return None
    return int(marks[0]) * 1024 if marks else None


def _gigabytes(value: int) -> str:
    return f"{value / 1e9:.2f} GB" if value >= 1e7 else f"{value / 1e6:.2f} MB"

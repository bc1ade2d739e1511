"""A batch in memory of its own, into which later batches of the same shapes are copied.

A recorded step (train/recorded_step.py) reads the addresses it was recorded with. What a batch holds on the host would
be baked into the recording, so while a step is recorded those values are replaced by an object that refuses to be read.
"""

from __future__ import annotations

import traceback
from collections.abc import Hashable
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from etude.nn.packed import HOST_VALUE, Layout, Packed

BatchT = TypeVar("BatchT", bound=Packed)
HELPERS = ("static_batch.py", "packed.py")  # through which others read the host


class NotRecordable(Exception):
    """Says why a step cannot be recorded."""


class HostValue:
    """In place of an array or a count of the host: a recording must not depend on it."""

    def __init__(self, name: str, total: int | None = None) -> None:
        self.name, self.total = name, total

    def __getitem__(self, index: object) -> int:
        # the end of the bounds is the number of tokens, which is part of the shapes
        if index == -1 and self.total is not None:
            return self.total
        raise self._error()

    def __getattr__(self, name: str) -> None:
        """Refuse what arrays have (sums, largest values); Python and torch's compiler ask for names of their own."""
        raise AttributeError(name) if name.startswith("_") else self._error()

    def _refuse(self, *_: object) -> Any:
        raise self._error()

    __len__ = __iter__ = __array__ = __float__ = __bool__ = __int__ = __index__ = _refuse
    # counts of a loss may be passed on, but nothing may be computed from them
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __neg__ = __abs__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _refuse
    __hash__ = _refuse

    def _error(self) -> NotRecordable:
        paths = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_stack()]
        reads = [(path.name, line) for path, line in paths if "etude" in path.parts and path.name not in HELPERS]
        place = f" ({reads[-1][0]}:{reads[-1][1]})" if reads else ""
        return NotRecordable(f"the step reads {self.name} on the host{place}")


def signature(packed: Packed) -> tuple[Hashable, ...]:
    """Return what must be equal for two batches to share a recording: shapes, dtypes and plain values."""
    parts: list[Hashable] = [type(packed).__name__]
    for entry in fields(packed):
        value = getattr(packed, entry.name)
        if entry.metadata == HOST_VALUE:
            continue
        if isinstance(value, Tensor):
            parts.append((entry.name, tuple(value.shape), value.dtype))
        elif isinstance(value, Layout):
            parts.append((entry.name, len(value.bounds), value.longest, value.equal, value.rectangular))
        elif isinstance(value, Packed):
            parts.append((entry.name, signature(value)))
        elif isinstance(value, dict):
            parts.append((entry.name, tuple(value)))  # counts: their values are given apart
        elif value is None or isinstance(value, (bool, int, float, str)):
            parts.append((entry.name, value))
        elif not isinstance(value, np.ndarray):
            raise NotRecordable(f"batches have a field {entry.name} of type {type(value).__name__}")
    return tuple(parts)


def allocate_batch(batch: BatchT, device: torch.device) -> BatchT:
    """Return a copy of a batch of the host, in memory of its own on the device."""
    return batch.clone().to(device)


def copy_batch(source: BatchT, target: BatchT) -> None:
    """Copy every tensor of a batch of the host into its place; values of the host are taken over."""
    for entry in fields(source):
        value, place = getattr(source, entry.name), getattr(target, entry.name)
        if isinstance(value, Tensor):
            place.copy_(value, non_blocking=True)
        elif isinstance(value, Layout):
            place.bounds.copy_(value.bounds, non_blocking=True)
            place.host = value.host
            place.cache.clear()  # computed from the sequences of the batch before
        elif isinstance(value, Packed):
            copy_batch(value, place)
        else:
            setattr(target, entry.name, value)


def hide_host_values(batch: Packed) -> None:
    """Replace the arrays and counts of the host, until the next `copy_batch`."""
    for entry in fields(batch):
        value = getattr(batch, entry.name)
        if entry.metadata == HOST_VALUE:
            setattr(batch, entry.name, HostValue(f"`{entry.name}` of a batch"))
        elif isinstance(value, Layout):
            total = None if value.rectangular else int(value.host[-1])
            value.host = HostValue("the lengths of sequences", total)  # type: ignore[assignment]
        elif isinstance(value, Packed):
            hide_host_values(value)
        elif isinstance(value, np.ndarray):
            setattr(batch, entry.name, HostValue(f"`{entry.name}` of a batch"))
        elif isinstance(value, dict):
            setattr(batch, entry.name, {key: HostValue(f"the count of `{key}`") for key in value})

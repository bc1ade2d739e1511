"""Many tensors in one launch: this rank's shares of them, and tables of their chunks, copied to the device."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from etude.nn.packed import send_array


def is_share(tensor: Tensor) -> bool:
    """Whether a tensor is in shards (torch's DTensor, whose import takes a second)."""
    return hasattr(tensor, "_local_tensor")


def share_of(tensor: Tensor) -> Tensor:
    """Return what this rank holds of a tensor in shards, by reference; any other tensor itself.

    An operator on tensors in shards looks up how it is divided for each of them, on the host: many times as long as
    one on shares. So does even `to_local`, in a few microseconds, which some hundreds of parameters add up.
    """
    share: Tensor = getattr(tensor, "_local_tensor", tensor)
    return share


def split_into_chunks(sizes: tuple[int, ...], block: int, device: torch.device) -> Tensor:
    """Return (3, C) int32: the tensor of each chunk, the chunk's index within it, and its number of elements."""
    chunks = _split_into_chunks(sizes, block, device)
    for tables in _ACTIVE:
        tables.constants.append(chunks)
    return chunks


@functools.lru_cache(maxsize=16)  # parameters without a gradient are left out, so several sets may alternate
def _split_into_chunks(sizes: tuple[int, ...], block: int, device: torch.device) -> Tensor:
    chunk_counts = np.array([-(-size // block) for size in sizes], dtype=np.int64)
    tensor = np.repeat(np.arange(len(sizes)), chunk_counts)
    index = np.arange(chunk_counts.sum()) - np.repeat(np.cumsum(chunk_counts) - chunk_counts, chunk_counts)
    elements = np.minimum(np.array(sizes, dtype=np.int64)[tensor] - index * block, block)
    return send_array(np.stack([tensor, index, elements]).astype(np.int32), device)


def copy_to_device(values: np.ndarray, device: torch.device) -> Tensor:
    """Copy without synchronising. The pinned buffer is new each time: torch keeps it alive until the copy is done."""
    return _ACTIVE[-1].copy(values, device) if _ACTIVE else send_array(values, device)


class StaticTables:
    """The tables of a step that is recorded once and replayed (train/recorded_step.py).

    A recording contains kernels and addresses, not what the host wrote. So its tables are allocated by an ordinary step
    before it, outside of the memory that recordings share, and filled after it, when the addresses in them are final.
    """

    def __init__(self) -> None:
        self.tables: list[Tensor] = []
        self.contents: list[np.ndarray] = []
        self.constants: list[Tensor] = []  # that the recording reads, kept alive with it
        self.is_recording = False

    @contextlib.contextmanager
    def allocate(self) -> Iterator[None]:
        """Keep the tables that an ordinary step copies in this context."""
        self.tables, self.constants, self.is_recording = [], [], False
        with self._activate():
            yield

    @contextlib.contextmanager
    def record(self) -> Iterator[None]:
        """Hand out the tables again, in the same order; they are filled at the end."""
        self.contents, self.is_recording = [], True
        with self._activate():
            yield
        if len(self.contents) != len(self.tables):
            raise RuntimeError(f"a step copied {len(self.tables)} tables, and its recording {len(self.contents)}")
        for table, values in zip(self.tables, self.contents, strict=True):
            table.copy_(send_array(values, table.device))

    def copy(self, values: np.ndarray, device: torch.device) -> Tensor:
        """Return a table on the device: new and filled, or while recording, the one that is filled later."""
        if not self.is_recording:
            self.tables.append(send_array(values, device))
            return self.tables[-1]
        number = len(self.contents)
        if number >= len(self.tables) or self.tables[number].shape != values.shape:
            raise RuntimeError(f"table {number} of the recording has another size than in the step before")
        self.contents.append(values.copy())
        return self.tables[number]

    @contextlib.contextmanager
    def _activate(self) -> Iterator[None]:
        _ACTIVE.append(self)
        try:
            yield
        finally:
            _ACTIVE.pop()


_ACTIVE: list[StaticTables] = []  # of the step that is being recorded, if any

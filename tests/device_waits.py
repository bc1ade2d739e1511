"""A mode that refuses what a GPU would be waited for, so that tests without one see it too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

ATEN = torch.ops.aten
SIZES_OF_VALUES = (ATEN.nonzero, ATEN.masked_select, ATEN._unique2, ATEN.unique_dim, ATEN.bincount)
NUMBERS_OF_HOST = (ATEN._local_scalar_dense, ATEN.equal, ATEN.is_nonzero)


class RefuseWaits(TorchDispatchMode):
    """Raises where the host would read a value of the device, or would send it a number through an index."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        packet: Callable[..., Any] = func.overloadpacket
        if packet in SIZES_OF_VALUES or packet in NUMBERS_OF_HOST:
            raise AssertionError(f"{func} gives the host a value of the device")
        if packet in (ATEN.index, ATEN.index_put, ATEN.index_put_):
            if any(isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1]):
                raise AssertionError(f"{func} with a mask: the host has to know how many are chosen")
            if packet is not ATEN.index and args[2].dim() == 0:
                raise AssertionError(f"{func} with a number: it is copied from the host")
        return func(*args, **(kwargs or {}))

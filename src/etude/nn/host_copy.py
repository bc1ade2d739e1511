"""A copy from a device to the host that is waited for when its values are needed, and not before."""

from __future__ import annotations

import torch
from torch import Tensor


class HostCopy:
    """A tensor on its way to the host; work that the device is given later is not waited for."""

    def __init__(self, source: Tensor) -> None:
        """Begin the copy; a tensor of the host is taken as it is."""
        self._values, self._arrived = source, None
        if source.is_cuda:
            self._values = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
            self._values.copy_(source, non_blocking=True)
            self._arrived = torch.cuda.Event()
            # where the copy is, on whichever GPU
            self._arrived.record(torch.cuda.current_stream(source.device))

    def wait(self) -> Tensor:
        """Return the tensor, on the host, as soon as it is there."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._values

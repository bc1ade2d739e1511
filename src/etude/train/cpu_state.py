"""One state of torch's CPU libraries for all that must repeat to the bit.

On a CPU without bf16, the first bf16 product makes torch switch oneDNN off for the rest of the process, and float32
products come out of another library, in other last bits. A run that measured bf16 first would then differ from its
own resume. So whatever trains or measures does it in here: oneDNN on at the start, and as it was at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def onednn_enabled() -> Iterator[None]:
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = True  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before

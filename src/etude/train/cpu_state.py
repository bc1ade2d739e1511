"""Fixed state of torch's CPU libraries, for everything that must repeat bit for bit.

On a CPU without bf16, the first bf16 product makes torch switch oneDNN off for the rest of the process, and float32
products then come from another library, with other last bits. A run that measured bf16 first would differ from its own
resume. So whatever trains or measures does it with oneDNN enabled, and restores the flag afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def onednn_enabled() -> Iterator[None]:
    """Enable oneDNN within the block."""
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = True  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before

"""Precision on CPUs of all kinds: products in bf16 where a CPU has none, and runs that leave their precision open."""

from functools import wraps

import pytest

# A CPU without bf16 goes on another way and warns with a whole C++ stack.
may_lack_bf16 = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed, switching to BLAS gemm:UserWarning")


def open_means_float32() -> None:
    """Let runs of this process that leave their precision open compute in float32 on a CPU, whatever the chip.

    It is bf16 where a measurement says that this is faster: of large layers, on some chips, at some moments. What a
    test asserts must not depend on that, and the small models of tests are faster without the casts.
    """
    from etude.train import peak

    peak.is_bf16_faster_on_cpu = wraps(peak.is_bf16_faster_on_cpu.__wrapped__)(lambda: False)

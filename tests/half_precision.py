"""The mark of tests that multiply in bf16: a CPU without it goes on another way and warns with a whole C++ stack."""

import pytest

may_lack_bf16 = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed, switching to BLAS gemm:UserWarning")

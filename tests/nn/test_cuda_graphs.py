"""Recordings own all memory that they use."""

from __future__ import annotations

import pytest
import torch

from etude.nn.cuda_graphs import CudaGraphs


@pytest.mark.gpu
def test_a_recording_outlives_the_workspaces_of_cublas() -> None:
    device = torch.device("cuda")
    x = torch.randn(4, 768, device=device, dtype=torch.bfloat16)
    weight = torch.randn(64, 768, device=device, dtype=torch.bfloat16)  # small: products are split, with partial sums
    graph = CudaGraphs(device, frees_memory=False)()
    graph.warm_up(lambda: {"y": x @ weight.T})
    graph.record(lambda: {"y": x @ weight.T})
    expected = x @ weight.T
    torch._C._cuda_clearCublasWorkspaces()  # as torch's compiler does when it records
    torch.cuda.empty_cache()
    other = torch.full((2**26,), 7.0, device=device)  # where they may have been
    for _ in range(20):
        assert torch.equal(graph.replay()["y"], expected)
    assert bool((other == 7.0).all())

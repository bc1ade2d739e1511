"""A copy to the host has the values of the tensor, and waits for no later work."""

from __future__ import annotations

import pytest
import torch

from etude.nn.host_copy import HostCopy


def test_a_tensor_of_the_host_is_taken_as_it_is() -> None:
    source = torch.arange(6).view(2, 3)
    assert HostCopy(source).wait() is source


@pytest.mark.gpu
def test_a_copy_has_the_values_of_its_moment() -> None:
    source = torch.arange(1 << 20, dtype=torch.float32, device="cuda")
    copy = HostCopy(source)
    source.zero_()  # behind the copy, on the same stream
    arrived = copy.wait()
    assert arrived.device.type == "cpu" and arrived.is_pinned()
    assert torch.equal(arrived, torch.arange(1 << 20, dtype=torch.float32))

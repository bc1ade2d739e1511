"""A device that is not here, or that nobody knows, is one message."""

from __future__ import annotations

import pytest
import torch

from etude.errors import UserError
from etude.train.device import resolve_device
from etude.train.peak import resolve_precision


def test_a_device_by_its_name() -> None:
    assert resolve_device(None) == resolve_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["gpu", "cuda0"])
def test_a_name_that_is_no_device_is_one_message(name: str) -> None:
    with pytest.raises(UserError, match=f"train.device={name}.*Set train.device=cpu"):
        resolve_device(name)
    with pytest.raises(UserError, match=f"train.device={name}"):  # a precision is resolved before
        resolve_precision("auto", name)


@pytest.mark.parametrize("name", ["meta", "mps", "xpu"])
def test_a_device_that_is_not_here_is_one_message(name: str) -> None:
    if torch.accelerator.is_available():
        pytest.skip("this machine has an accelerator")
    with pytest.raises(UserError, match=f"train.device={name}: there is no such device"):
        resolve_device(name)


def test_a_gpu_beyond_the_last_one_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(UserError, match="cuda:2: there are 2 GPUs"):
        resolve_device("cuda:2")

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from etude.errors import UserError
from etude.verbs.limits import refuse_given, require_at_least, require_device, require_folder_of


def test_a_number_below_its_limit_is_named() -> None:
    with pytest.raises(UserError, match="workers=0 is too small: it must be at least 1"):
        require_at_least("workers", 0, 1)
    with pytest.raises(UserError):
        require_at_least("minutes", float("nan"), 0.5)
    require_at_least("workers", 1, 1)
    require_at_least("workers", None, 1)


@pytest.mark.parametrize("device", ["tpu", "cuda:99", "meta", "", "hpu"])
def test_a_device_that_is_not_here_is_named(device: str) -> None:
    with pytest.raises(UserError, match=f"--device {device}: there is no such device here. Take cpu"):
        require_device(device)


def test_devices_that_are_here_pass() -> None:
    require_device(None)
    require_device("cpu")
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="this machine has no GPU"):
            require_device("cuda")


def test_the_folder_of_a_file_is_there_before_the_work(tmp_path: Path) -> None:
    require_folder_of(None, "report")
    require_folder_of(tmp_path / "page.html", "report")
    with pytest.raises(UserError, match=r"There is no folder .*none for the report. Make it"):
        require_folder_of(tmp_path / "none" / "page.html", "report")


def test_an_option_that_would_be_ignored_is_named() -> None:
    refuse_given({"top_k": (None, None), "seed": (0, 0)}, "is of sampling.")
    with pytest.raises(UserError, match=r"--top-k is of sampling\."):
        refuse_given({"seed": (0, 0), "top_k": (3, None)}, "is of sampling.")

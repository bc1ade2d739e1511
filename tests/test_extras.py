"""A missing optional package is one message with the command that installs it; pyproject.toml knows each of them."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from etude.errors import UserError
from etude.extras import EXTRAS, is_installed, require

ROOT = Path(__file__).resolve().parents[1]
OPTIONAL = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]


def test_what_is_installed_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTRAS, "json", "parquet")
    assert is_installed("json")
    require("json", "Nothing")


def test_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError) as error:
        require("pyarrow", "Reading a.parquet")
    assert str(error.value) == "Reading a.parquet needs pyarrow: pip install 'etude[parquet]'."
    with pytest.raises(UserError, match=r"'etude\[parquet\]', or convert it to JSON lines\.$"):
        require("pyarrow", "Reading a.parquet", alternative="convert it to JSON lines")


@pytest.mark.parametrize("package", EXTRAS)
def test_the_extra_installs_the_package(package: str) -> None:
    names = [re.split(r"[^\w-]", requirement)[0] for requirement in OPTIONAL[EXTRAS[package]]]
    assert package in names


def test_all_is_all_that_the_package_can_use() -> None:
    (requirement,) = OPTIONAL["all"]
    assert set(requirement.removeprefix("etude[").removesuffix("]").split(",")) == set(EXTRAS.values())


def test_a_missing_package_stops_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from etude.train.metrics_log import MetricsLog

    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(UserError, match=r"train.tensorboard=true needs tensorboard: pip install 'etude\[tensor"):
        MetricsLog(tmp_path / "run" / "metrics.jsonl", tensorboard=tmp_path / "board")
    assert not (tmp_path / "run").exists()

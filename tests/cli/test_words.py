"""Words of a command line as values."""

from __future__ import annotations

import pytest

from etude.cli.words import parse_columns, parse_numbers, parse_share, parse_values, split_settings
from etude.errors import UserError


def test_settings_stand_anywhere_and_paths_stay_places() -> None:
    words = ["train.lr=3e-4", "bert-small", "data/v=1.0/x", "task.network.words=8", "objective.kind=masked"]
    places, settings = split_settings(words)
    assert places == ["bert-small", "data/v=1.0/x"]
    assert settings == {"train.lr": 3e-4, "task.network.words": 8, "objective.kind": "masked"}


def test_changes_of_a_study() -> None:
    words = ["small.yaml", "seeds.pretrain=2", "budget.flops=1e9", "name=x", "contenders.a+b.set.model.width=32"]
    places, changes = split_settings(words, grouped=False)
    assert places == ["small.yaml"]
    assert changes == {"seeds.pretrain": 2, "budget.flops": 1e9, "name": "x", "contenders.a+b.set.model.width": 32}


def test_the_same_setting_twice_is_the_last() -> None:
    assert split_settings(["train.lr=1", "train.lr=2"])[1] == {"train.lr": 2}


def test_a_name_without_group() -> None:
    with pytest.raises(UserError, match="lacks the group"):
        split_settings(["lr=1"])
    assert split_settings(["lr=1"], grouped=False) == ([], {"lr": 1})


def test_columns_numbers_and_values() -> None:
    assert parse_columns(["text=a=b"]) == {"text": "a=b"}
    assert parse_numbers("1,2", int, "--shots") == [1, 2] and parse_numbers("1,.5", float, "--lr") == [1.0, 0.5]
    assert parse_values(["task.pooling=start,mean", "train.lr=1e-5,"]) == {
        "task.pooling": ["start", "mean"],
        "train.lr": [1e-5],
    }
    for pair in ("text", "=a", "text="):
        with pytest.raises(UserError, match="names no column"):
            parse_columns([pair])


def test_a_share_is_a_number_or_a_file() -> None:
    assert parse_share("0.1") == 0.1 and parse_share("valid.tsv") == "valid.tsv" and parse_share(None) is None

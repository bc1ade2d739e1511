"""`etude pretrain` as a user types it: what --resume excludes, and what is missing."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from etude.cli.main import app
from etude.errors import UserError


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("pretrain --resume runs/a bert-small", "--resume takes nothing but the run"),
        ("pretrain --resume runs/a -o runs/b", "--resume takes nothing but the run"),
        ("finetune --resume runs/a --train x.csv", "--resume takes nothing but the run"),
        ("pretrain bert-small data/x", "Say where the run goes: -o runs/NAME."),
        ("finetune runs/a classify", "Say what to learn from, and where the run goes"),
        ("finetune runs/a", "A run and a task are wanted, for example 'runs/bert classify'; got: runs/a."),
        ("distill distilbert -o x --teacher y", "A recipe and a corpus are wanted"),
        ("check", "got: nothing. 'etude recipes' lists the recipes"),
        ("bench a b c", "A recipe and a corpus are wanted at most"),
        ("pretrain bert-small data/x layers=3 -o x", "'layers=3' is no setting"),
    ],
)
def test_a_mistake_is_one_message(words: str, message: str) -> None:
    done = CliRunner().invoke(app, words.split())
    assert isinstance(done.exception, UserError) and message in str(done.exception)

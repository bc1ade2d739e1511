"""A folder that exists is not written over; the message says how to go on where something can."""

from __future__ import annotations

from pathlib import Path

import pytest

from etude.errors import UserError
from etude.runs.staging import refuse_existing


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["recipe.yaml"], "Resume it with 'etude pretrain --resume"),
        (["recipe.yaml", "task.yaml"], "Resume it with 'etude finetune --resume"),
        (["recipe.yaml", "task.yaml", "modeling_etude.py"], "exists already. Choose another folder with -o"),
        (["notes.txt"], "exists already. Choose another folder with -o"),
    ],
)
def test_advice_fits_what_lies_there(tmp_path: Path, files: list[str], message: str) -> None:
    for name in files:
        (tmp_path / name).write_text("")
    with pytest.raises(UserError, match=message):
        refuse_existing(tmp_path)


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    refuse_existing(tmp_path)

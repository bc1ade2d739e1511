"""A folder that exists is not written over; the message says how to go on where something can."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from etude.errors import UserError
from etude.runs.staging import refuse_existing, try_writing


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["recipe.yaml"], "Resume it with 'etude pretrain --resume"),
        (["recipe.yaml", "task.yaml"], "Resume it with 'etude finetune --resume"),
        (["recipe.yaml", "model.safetensors"], "Resume it with"),  # killed behind its weights
        (["recipe.yaml", "checksums.json"], "exists already. Choose another folder with -o"),  # finished
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


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="files without a name are those of Linux")
def test_a_process_that_dies_where_a_folder_is_tried_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty .etude-... stayed beside the run for ever."""

    class Killed(BaseException):
        pass

    def die_behind(name: str) -> None:
        call = getattr(os, name)

        def call_and_die(*arguments: Any, **options: Any) -> None:
            call(*arguments, **options)
            raise Killed

        monkeypatch.setattr(os, name, call_and_die)

    die_behind("mkdir")
    die_behind("open")
    with pytest.raises(Killed):
        try_writing(tmp_path / "run")
    assert not list(tmp_path.iterdir())

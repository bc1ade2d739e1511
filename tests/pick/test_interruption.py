"""A signal ends the pick; what was under way is not taken for done, and goes on with the same command."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from etude.pick import tuning
from etude.pick.clock import OutOfTime
from etude.pick.encoders import Candidate, plan_pretraining, run_pretraining
from etude.pick.text import PickText
from etude.pick.text_pile import find_text, read_text
from etude.study.cells import CellStore
from etude.train.loop import Loop
from etude.world import World


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_pretraining_is_not_done(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM in the middle ended the pre-training alone: it was kept as done, and the pick went on."""
    file = tmp_path / "town.txt"
    file.write_text("\n\n".join(World().text(0.05)) + "\n", encoding="utf-8")
    pile, _ = read_text(find_text([file])[0])
    text = PickText(pile, None, tmp_path / "corpora")
    changes = {"tokenizer": "word:500", "train.batch_tokens": 1024, "objective.length": 32, "model.context": 32}
    candidate = Candidate("bert", {"en": "BERT", "ko": "BERT"}, "bert-toy", changes, epochs=2)
    planned = plan_pretraining(candidate, text, 1.0, 10.0, "cpu", 0, lambda _: None, is_timed=False)
    store = CellStore(tmp_path / "cells")
    steps = 0
    advance = Loop.advance

    def advance_and_stop(self: Loop, step: Any) -> None:
        nonlocal steps
        advance(self, step)
        steps += 1
        if steps == 3:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(Loop, "advance", advance_and_stop)
    with pytest.raises(KeyboardInterrupt):
        run_pretraining(store, planned, time.monotonic() + 600)
    assert store.state(planned.key) == "begun" and steps == 3
    run_pretraining(store, planned, time.monotonic() + 600)
    assert store.state(planned.key) == "done" and store.result(planned.key)["step"] == steps > 3


def test_a_stopped_fine_tuning_is_not_out_of_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lost its folds for good: the journal said that there was no time for them."""

    class Stopped:
        finished = False

    monkeypatch.setattr(tuning.finetune, "finetune", lambda *_, **__: Stopped())
    (tmp_path / "work").mkdir()
    arguments: Any = ("base", "classify", tmp_path / "examples.jsonl", tmp_path / "work" / "run", {}, {})
    with pytest.raises(KeyboardInterrupt):
        tuning.tune(*arguments, time.monotonic() + 60)
    with pytest.raises(KeyboardInterrupt):
        tuning.tune(*arguments, None)
    with pytest.raises(OutOfTime):
        tuning.tune(*arguments, time.monotonic() - 1)

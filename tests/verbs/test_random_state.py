"""What a script has seeded, it draws: verbs leave torch's generators as they were."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import etude
from etude.errors import UserError
from etude.verbs.random_state import keep_random_state, keeps_random_state


def draw_after(action: Callable[[], object], seed: int) -> list[float]:
    torch.manual_seed(seed)
    action()
    values: list[float] = torch.rand(4).tolist()
    return values


def test_draws_go_on_after_training_and_loading(prepared: Callable[[str], Path], tmp_path: Path) -> None:
    corpus = prepared("wordpiece:400")
    settings = {"train.steps": 2, "train.batch_tokens": 256}
    run = etude.pretrain("bert-toy", corpus, out=tmp_path / "run", settings=settings, quiet=True)

    def train() -> None:
        etude.pretrain("bert-toy", corpus, out=tmp_path / "again", settings=settings, quiet=True)

    assert draw_after(train, 1) == draw_after(lambda: None, 1)
    assert draw_after(lambda: etude.load(run), 2) == draw_after(lambda: None, 2)
    assert np.array_equal(etude.load(run).encode(["town"]), etude.load(run).encode(["town"]))


def test_draws_go_on_after_a_mistake() -> None:
    def fail() -> None:
        with pytest.raises(UserError), keep_random_state():
            torch.manual_seed(5)
            raise UserError("stop")

    assert draw_after(fail, 3) == draw_after(lambda: None, 3)


def test_a_verb_keeps_its_signature() -> None:
    @keeps_random_state
    def verb(run: str, *, steps: int = 3) -> int:
        """Train."""
        return steps

    assert verb("run", steps=4) == 4
    assert list(inspect.signature(verb).parameters) == ["run", "steps"] and verb.__doc__ == "Train."


def test_a_verb_that_yields_keeps_it_in_each_turn() -> None:
    ended = []

    @keeps_random_state
    def verb() -> Iterator[int]:
        try:
            for number in range(3):
                torch.manual_seed(number)
                yield number
        finally:
            ended.append(True)

    torch.manual_seed(7)
    own = [torch.rand(1).item() for _ in range(4)]
    torch.manual_seed(7)
    mixed = [torch.rand(1).item() for _ in verb()]
    assert [*mixed, torch.rand(1).item()] == own and ended == [True]
    turns = verb()
    next(turns)
    turns.close()  # type: ignore[attr-defined]
    assert ended == [True, True]

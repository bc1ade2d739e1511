"""A loss that stays at the entropy of tokens is told, once, and no other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

import etude
from etude.train.plateau import Plateau
from etude.train.settings import Settings

SETTINGS = Settings(steps=1000, warmup=0.1, lr=3e-3)


def warnings_of(losses: Iterable[float], total: int = 1000, every: int = 10) -> list[tuple[int, str]]:
    plateau = Plateau(7.0)
    steps = [(every * (number + 1), loss) for number, loss in enumerate(losses)]
    found = [(step, plateau.find_problem(loss, step, total, SETTINGS)) for step, loss in steps]
    return [(step, problem) for step, problem in found if problem is not None]


def test_a_loss_that_stays_is_told_once_when_half_of_the_run_is_over() -> None:
    [(step, problem)] = warnings_of([7.0] * 100)
    assert step == 600  # the warm-up, and half of the run
    assert "After 600 of 1,000 steps the loss is 7.00 nats" in problem and "train.lr (it is 0.003)" in problem


def test_a_long_run_is_told_long_before_its_middle() -> None:
    [(step, _)] = warnings_of([7.0] * 300, total=100_000, every=100)
    assert step == 15_000


@pytest.mark.parametrize(
    "losses",
    [
        [9.0, 7.2, *[7.0] * 40, *[6.7] * 58],  # left before it counts
        [7.0] * 4,  # too few lines to say
        [6.8, 6.9] * 50,  # 2 % below: something of the context is known
        [*[7.2] * 57, 7.1, 7.0, 6.9, *[6.8] * 40],  # falls when it counts
    ],
)
def test_other_losses_are_not(losses: list[float]) -> None:
    assert warnings_of(losses) == []


def test_high_losses_of_the_first_steps_are_forgotten() -> None:
    """A run of few lines has its fall in most of them: what counts is where its loss is now."""
    assert warnings_of([9.9, 6.6, 6.5, 6.4, 6.3, 6.2], total=60) == []
    assert warnings_of([9.9, 8.4, 7.3, 7.0, 6.8, 6.7], total=60) == []
    [(step, problem)] = warnings_of([9.9, 7.2, 7.1, 7.0, 6.98, 7.0], total=60)
    assert step == 50 and "After 50 of 60 steps the loss is 6.98 nats" in problem, "as the log has it"


def test_a_loss_that_returns_is_told() -> None:
    assert [step for step, _ in warnings_of([*[5.0] * 60, *[7.1] * 40])] != []


def test_a_run_that_learns_nothing_says_so(
    prepared: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = prepared("wordpiece:400")
    settings = {"train.steps": 12, "train.log_every": 1, "train.lr": 1e-9, "train.batch_tokens": 512}
    for recipe, told in (("electra-toy", True), ("collobert-toy", False)):
        etude.pretrain(recipe, corpus, out=tmp_path / recipe, settings=settings)
        assert ("makes no use of context" in capsys.readouterr().err) == told, recipe

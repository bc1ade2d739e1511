"""When a search ends, and how long a target may become, on distributions written by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from etude.inference.translation import require_translator
from etude.models.seq2seq import Decoding
from etude.tasks.translate.decoding import limit_targets
from etude.tasks.translate.search import Beams, Search, search_targets
from tests.inference.test_translation import make

END, WORD, START = 0, 1, 2


class Script(Decoding):
    """Gives every hypothesis the same distribution over (END, WORD, START) at a step, and never another."""

    def __init__(self, probs: list[tuple[float, float]]) -> None:
        self.probs, self.steps = probs, 0

    def step(self, tokens: Tensor) -> Tensor:
        end, word = self.probs[min(self.steps, len(self.probs) - 1)]
        self.steps += 1
        return torch.tensor([end, word, 0.0]).log().expand(len(tokens), -1)

    def select(self, rows: Tensor, sources: Tensor | None = None) -> None:
        pass

    @property
    def attention(self) -> None:
        return None


def find_lengths(search: Search, probs: list[tuple[float, float]], limit: int) -> tuple[list[int], int]:
    """The lengths of the targets that a search returns, and how many steps it took."""
    decoding = Script(probs)
    beams = Beams(search, START, END, torch.tensor([3]), torch.tensor([limit]))
    [(_, targets)] = search_targets(decoding, lambda states: states, beams)
    return [len(target.ids) for target in targets], decoding.steps


@pytest.mark.parametrize(
    ("penalty", "first", "steps"),
    [
        (1.0, 9, 10),  # log 0.45 / (15 / 6) = -0.32: better than to end at once, log 0.55 = -0.60
        (0.0, 0, 1),  # log 0.45 is worse than log 0.55, and can only fall
        (0.2, 0, 1),  # so is log 0.45 / (15 / 6) ** 0.2 = -0.66
    ],
)
def test_a_search_ends_when_no_length_could_make_another_target_better(penalty: float, first: int, steps: int) -> None:
    """Its bound is that of the greatest length: at its present one the better target looks worse."""
    probs = [(0.55, 0.45), *[(1e-9, 1 - 1e-9)] * 8, (1 - 1e-9, 1e-9)]
    lengths, taken = find_lengths(Search(beams=2, penalty=penalty), probs, limit=10)
    assert (lengths[0], taken) == (first, steps)


def test_as_many_must_be_finished_as_are_asked_for() -> None:
    """The first to end is the best; the second, however bad, is waited for."""
    probs = [(0.9, 0.1), (0.01, 0.99), (0.5, 0.5)]
    assert find_lengths(Search(beams=2, penalty=0.0), probs, limit=10)[0] == [0]
    lengths, taken = find_lengths(Search(beams=2, penalty=0.0, best=2), probs, limit=10)
    assert lengths == [0, 2] and taken == 3


def test_a_target_has_fifty_tokens_more_than_its_source_at_most() -> None:
    """Vaswani et al. 2017, section 6.1, ends among the tokens; the context and a limit of the task come first."""
    model, objective = require_translator(make(context=60))
    assert limit_targets(model, objective, np.array([1, 4, 40])).tolist() == [51, 54, 60]
    objective.target_limit = 20
    assert limit_targets(model, objective, np.array([1, 40])).tolist() == [20, 20]

"""Collobert's ranking: the loss by its formula, windows that end with their sentence, vectors that learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from etude.chance import Chance
from etude.errors import UserError
from etude.models import recurrent, static
from etude.nn.packed import Layout
from etude.nn.window_layer import WindowLayer
from etude.objectives.ranking import Ranking, Settings, build
from tests.objectives.small_corpus import SPECIAL, VOCAB, small_corpus


def system(**changes) -> tuple[static.Static, Ranking]:
    torch.manual_seed(1)
    model = static.build(static.Settings(width=6, vocab=VOCAB))
    torch.nn.init.normal_(model.input.weight)
    objective = build(Settings(**{"window": 5, "hidden": 7, "row_tokens": 12, **changes}), model, SPECIAL)
    torch.nn.init.normal_(objective.window.edge)
    return model, objective


def text(seed: int = 0) -> list[list[list[int]]]:
    chance = np.random.default_rng(seed)
    return [[chance.integers(6, VOCAB, size).tolist() for size in (4, 9, 1, 7)] for _ in range(3)]


def test_another_word_in_the_middle_is_the_window_with_that_word() -> None:
    window = WindowLayer(6, 5, 7)
    torch.nn.init.normal_(window.edge)
    layout, x, others = Layout.from_bounds(np.array([0, 3, 4]), 3), torch.randn(4, 6), torch.randn(4, 2, 6)
    found = window.replace_middle(window(x, layout), x, others)
    for place in range(4):
        for number in range(2):
            changed = x.clone()
            changed[place] = others[place, number]
            torch.testing.assert_close(found[place, number], window(changed, layout)[place])


@pytest.mark.parametrize("negatives", [1, 3])
def test_the_loss_is_its_formula(negatives: int) -> None:
    model, objective = system(negatives=negatives)
    documents = text()
    documents[0][1][3] = SPECIAL.unknown
    corpus = small_corpus(documents)
    rows = objective.rows(corpus, seed=0)
    batch = objective.batch([rows[0], rows[2]], Chance(3, 4))
    table, edge = model.input.weight, objective.window.edge
    flat = [id for document in documents for sentence in document for id in sentence]
    sentence_of = np.concatenate([[number] * len(s) for number, s in enumerate(s for d in documents for s in d)])

    def score(row: int, place: int, word: int) -> torch.Tensor:
        """Of the window around a place of the corpus, cut by its sentence and its row."""
        start = row * 12
        vectors = []
        for at in range(place - 2, place + 3):
            inside = start <= at < start + 12 and sentence_of[at] == sentence_of[place]
            vectors.append(table[word if at == place else flat[at]] if inside else edge)
        hidden = objective.window.layer(torch.cat(vectors)).clamp(-1, 1)
        return objective.output(hidden)[0]

    wanted, count, place_in_batch = torch.zeros(()), 0, 0
    for row in (0, 2):
        for place in range(row * 12, row * 12 + 12):
            others = batch.negatives[place_in_batch].tolist()
            place_in_batch += 1
            if flat[place] == SPECIAL.unknown:
                continue
            count += 1
            own = score(row, place, flat[place])
            wanted = wanted + sum((1 - own + score(row, place, word)).clamp(min=0) for word in others) / negatives
    term = objective.loss(model, batch)["ranking"]
    assert term.count == count == 23
    torch.testing.assert_close(term.sum, wanted)
    assert not set(batch.negatives.flatten().tolist()) & set(SPECIAL.ids())
    assert model.counts.tolist() == np.bincount(flat, minlength=VOCAB).tolist()


def test_draws_do_not_hang_on_company() -> None:
    model, objective = system()
    rows = objective.rows(small_corpus(text()), seed=0)
    together = objective.batch([rows[0], rows[1]], Chance(3, 4))
    apart = [objective.batch([rows[number]], Chance(3, 4)) for number in (0, 1)]
    assert torch.equal(together.negatives, torch.cat([one.negatives for one in apart]))
    total = sum(objective.loss(model, one)["ranking"].sum for one in apart)
    torch.testing.assert_close(objective.loss(model, together)["ranking"].sum, total)


def test_it_learns_which_words_stand_in_the_middle() -> None:
    """Odd words stand between even ones only."""
    chance = np.random.default_rng(0)
    sentences = [[int(2 * chance.integers(3, 20) + place % 2) for place in range(9)] for _ in range(40)]
    model, objective = system(row_tokens=60)
    rows = objective.rows(small_corpus([sentences]), seed=0)
    optimizer = torch.optim.Adam([*model.input.parameters(), *objective.parameters()], lr=0.02)
    for step in range(60):
        batch = objective.batch([rows[number] for number in range(6)], Chance(0, step))
        loss = objective.loss(model, batch)["ranking"]
        optimizer.zero_grad()
        (loss.sum / loss.count).backward()
        optimizer.step()
    found = objective.metrics(model, objective.batch([rows[number] for number in range(6)], Chance(1, 0)))
    assert found["right"].mean > 0.68  # 3 of 4: an odd word against another odd one is a guess
    assert found["ranking"].weight == 1.0 and found["right"].weight is None


def test_flops_are_those_torch_counts() -> None:
    model, objective = system(negatives=2)
    rows = objective.rows(small_corpus(text()), seed=0)
    batch = objective.batch([rows[0]], Chance(0, 0))
    with FlopCounterMode(display=False) as counter:
        objective.scores(model, batch)
    assert objective.flops(model, batch) == 3 * counter.get_total_flops()


def test_what_it_refuses() -> None:
    with pytest.raises(UserError, match="no middle"):
        system(window=4)
    other = recurrent.build(recurrent.Settings(width=4, cells=4, vocab=VOCAB))
    with pytest.raises(UserError, match="static"):
        build(Settings(), other, SPECIAL)
    spelled = static.build(static.Settings(width=4, vocab=VOCAB, buckets=8))
    with pytest.raises(UserError, match=r"knows whole words only: set model\.buckets to 0"):
        build(Settings(), spelled, SPECIAL)

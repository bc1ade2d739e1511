"""Rounds of pre-training: each longer than the one before, all of them within their time, fewer where it is short."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.pick import encoders
from etude.pick.candidates import (
    CPU_CANDIDATES,
    GPU_CANDIDATES,
    VECTORS,
    parse_candidates,
    plan_parallel_rounds,
    plan_rounds,
    plan_shared_rounds,
)
from etude.recipes.schema import Recipe
from etude.text.prepare.prepare import prepare
from etude.world import World


@given(st.integers(1, 8), st.floats(1, 10_000), st.floats(0, 60), st.floats(1, 60))
def test_rounds_grow_and_fit(count: int, seconds: float, overhead: float, minimum: float) -> None:
    entering, rounds = plan_rounds(count, seconds, overhead, minimum)
    if not entering:
        assert not rounds and seconds - overhead < minimum
        return
    assert entering <= count and rounds[-1].survivors == 1 and rounds[0].seconds >= minimum
    assert all(later.seconds > earlier.seconds for earlier, later in pairwise(rounds))
    sizes = [entering, *(each.survivors for each in rounds[:-1])]
    total = sum(size * (each.seconds + overhead) for size, each in zip(sizes, rounds, strict=True))
    assert total == pytest.approx(seconds)


def test_fewer_enter_where_the_time_is_short() -> None:
    assert plan_rounds(4, 1000, 5, 25)[0] == 4
    assert plan_rounds(4, 130, 5, 25)[0] == 2
    assert plan_rounds(4, 40, 5, 25) == (1, [plan_rounds(1, 40, 5, 25)[1][0]])
    assert plan_rounds(4, 20, 5, 25) == (0, [])


@given(st.integers(1, 8), st.integers(1, 9), st.floats(1, 10_000), st.floats(0, 60), st.floats(1, 60))
def test_parallel_rounds_grow_and_fit(count: int, slots: int, seconds: float, overhead: float, minimum: float) -> None:
    entering, rounds = plan_parallel_rounds(count, slots, seconds, overhead, minimum)
    if not entering:
        assert not rounds and seconds - overhead < minimum
        return
    assert entering <= count and rounds[-1].survivors == 1 and rounds[0].seconds >= minimum
    sizes = [entering, *(each.survivors for each in rounds[:-1])]
    total = sum(-(-size // slots) * (each.seconds + overhead) for size, each in zip(sizes, rounds, strict=True))
    assert total == pytest.approx(seconds)
    if slots == 1:
        assert (entering, rounds) == plan_rounds(count, seconds, overhead, minimum)


@given(st.integers(1, 8), st.integers(1, 4), st.floats(1, 10_000), st.floats(0, 60), st.floats(1, 60))
def test_shared_rounds_grow_and_fit(count: int, slots: int, seconds: float, overhead: float, minimum: float) -> None:
    entering, rounds = plan_shared_rounds(count, slots, seconds, overhead, minimum)
    if not entering:
        assert not rounds and seconds - overhead < minimum
        return
    assert rounds[0].seconds >= minimum and rounds[-1].survivors <= 2
    assert all(later.seconds > earlier.seconds for earlier, later in pairwise(rounds))
    sizes = [entering, *(each.survivors for each in rounds[:-1])]
    total = sum(
        size * each.seconds + overhead * -(-size // slots) for size, each in zip(sizes, rounds, strict=True)
    )  # seconds of a round: those of the card for each of its candidates
    assert total == pytest.approx(seconds)


def test_a_warm_up_is_a_share_of_the_run() -> None:
    """Published warm-ups of 10,000 steps would never end in a run of minutes."""
    for candidate in (*CPU_CANDIDATES, *GPU_CANDIDATES):
        recipe = Recipe.load(candidate.recipe, {**candidate.changes, "train.minutes": 1.0})
        assert recipe.train.warmup < 1, candidate.name


@pytest.mark.parametrize("candidate", [*CPU_CANDIDATES, *GPU_CANDIDATES, VECTORS], ids=lambda one: one.name)
def test_candidates_are_valid_recipes(candidate) -> None:  # type: ignore[no-untyped-def]
    recipe = Recipe.load(candidate.recipe, {**candidate.changes, "train.minutes": 1.0})
    assert recipe.train.minutes == 1.0 and set(candidate.label) == {"en", "ko"}


def test_named_recipes_replace_the_list() -> None:
    assert [one.name for one in parse_candidates(["bert-mini", "mine/own.yaml"], "cpu")] == ["bert-mini", "own"]
    assert parse_candidates([], "cuda") == GPU_CANDIDATES


def test_recipes_of_one_file_name_are_told_apart() -> None:
    """Scores are kept by name: the second of two had those of the first, and could win by them."""
    given = ["small/recipe.yaml", "large/recipe.yaml", "bert-toy", "bert-toy"]
    parsed = parse_candidates(given, "cpu")
    assert [one.name for one in parsed] == ["small/recipe.yaml", "large/recipe.yaml", "bert-toy"]
    assert [one.recipe for one in parsed] == given[:3]


def test_a_gpu_run_is_planned_without_a_trial_and_valid(tmp_path: Path) -> None:
    """As many steps as could be; short ones are not compiled, and none writes checkpoints on the way."""
    (tmp_path / "town.txt").write_text("\n\n".join(World().text(0.05)) + "\n", encoding="utf-8")
    corpus = prepare([str(tmp_path / "town.txt")], tmp_path / "corpus", "wordpiece:300,lower")
    for candidate in GPU_CANDIDATES:
        for seconds, is_compiled in ((100.0, False), (1000.0, True)):
            overrides = encoders._untimed_overrides(candidate, corpus, seconds, "cuda")
            recipe = Recipe.load(candidate.recipe, {**candidate.changes, **overrides})
            assert recipe.train.steps == max(1, int(60 * corpus.total / recipe.train.batch_tokens))
            assert recipe.train.save_every == 0 and (recipe.train.compile is None) == is_compiled


def test_no_candidate_has_vectors_that_its_pre_training_never_reads() -> None:
    """Neither positions beyond its sequences, nor the segment of the second text of a pair."""
    for candidate in (*CPU_CANDIDATES, *GPU_CANDIDATES):
        recipe = Recipe.load(candidate.recipe, candidate.changes)
        objective = recipe.objective.model_dump()
        if recipe.model.positions == "learned":
            assert objective["length"] == recipe.model.context, candidate.name
        if recipe.model.segments > 1:
            assert objective.get("sentence", "none") != "none" or objective["pair_rate"] > 0, candidate.name

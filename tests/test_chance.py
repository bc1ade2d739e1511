"""Chance as pure functions: fair, independent, seekable, and the same bits everywhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from etude import chance
from etude.chance import Chance, Permutation, fold, gumbel, integers, mix, random_bits, uniform

MANY = 100_000
SMALLEST = 1e-4  # p-values below this fail: the draws are fixed, so a test that passes once always passes

KEYS = [0, 1, 2, fold(7, 0, "mask"), (1 << 64) - 1]


def p_of_counts(observed: np.ndarray, expected: np.ndarray | None = None) -> float:
    return float(stats.chisquare(observed, expected).pvalue)


def p_of_pairs(first: np.ndarray, second: np.ndarray, cells: int = 16) -> float:
    """Chi-square of independence of two uniform draws, over a grid."""
    grid = np.histogram2d(first, second, bins=cells, range=[[0, 1], [0, 1]])[0]
    return float(stats.chi2_contingency(grid).pvalue)


# --- single draws -----------------------------------------------------------------------------------


@pytest.mark.parametrize("key", KEYS)
def test_uniform_fills_its_cells_evenly(key: int) -> None:
    drawn = uniform(key, np.arange(MANY))
    assert drawn.dtype == np.float32
    assert drawn.min() >= 0 and drawn.max() < 1
    assert p_of_counts(np.histogram(drawn, bins=256, range=(0, 1))[0]) > SMALLEST
    assert stats.kstest(drawn, "uniform").pvalue > SMALLEST


@pytest.mark.parametrize("key", KEYS)
def test_each_of_the_64_bits_is_a_fair_coin(key: int) -> None:
    drawn = random_bits(key, np.arange(MANY))
    ones = np.array([int(((drawn >> np.uint64(place)) & np.uint64(1)).sum()) for place in range(64)])
    deviations = (ones - MANY / 2) / np.sqrt(MANY / 4)
    assert np.abs(deviations).max() < 4.5  # 64 coins: beyond 4.5 deviations once in 2000 such tests
    assert 0.5 < deviations.std() < 1.5  # nor suspiciously even


def test_a_scattered_and_a_huge_index_are_as_fair_as_a_small_one() -> None:
    for index in (np.arange(MANY) * 1_000_003, np.arange(MANY) + 10**15, np.arange(MANY) << 32):
        assert p_of_counts(np.histogram(uniform(3, index), bins=128, range=(0, 1))[0]) > SMALLEST


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 10, 1000, 30_522])
def test_integers_stay_below_the_limit_and_are_uniform(limit: int) -> None:
    drawn = integers(11, np.arange(MANY), limit)
    assert drawn.dtype == np.int64
    assert drawn.min() >= 0 and drawn.max() < limit
    if 1 < limit <= 1000:
        assert p_of_counts(np.bincount(drawn, minlength=limit)) > SMALLEST


@given(st.integers(1, 2**31 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**40))
@settings(max_examples=200, deadline=None)
def test_integers_are_within_bounds_for_any_limit(limit: int, key: int, start: int) -> None:
    drawn = integers(key, np.arange(start, start + 16), limit)
    assert ((drawn >= 0) & (drawn < limit)).all()


def test_integers_take_a_limit_for_each_index() -> None:
    limits = np.tile(np.array([1, 5, 100]), 20_000)
    drawn = integers(5, np.arange(len(limits)), limits)
    assert (drawn < limits).all()
    assert p_of_counts(np.bincount(drawn[1::3], minlength=5)) > SMALLEST


def test_gumbel_has_its_distribution_and_is_finite() -> None:
    drawn = gumbel(9, np.arange(MANY))
    assert np.isfinite(drawn).all()
    assert stats.kstest(drawn, "gumbel_r").pvalue > SMALLEST


def test_gumbel_argmax_samples_from_the_softmax() -> None:
    odds = np.array([0.5, 0.3, 0.15, 0.05])
    noise = gumbel(4, np.arange(4 * 50_000)).reshape(-1, 4)
    picked = (np.log(odds) + noise).argmax(-1)
    assert p_of_counts(np.bincount(picked, minlength=4), odds * 50_000) > SMALLEST


# --- independence -----------------------------------------------------------------------------------


def independent(first: np.ndarray, second: np.ndarray) -> None:
    assert abs(np.corrcoef(first, second)[0, 1]) < 4.5 / np.sqrt(len(first))
    assert p_of_pairs(first, second) > SMALLEST


@pytest.mark.parametrize("lag", [1, 2, 3, 64, 128, 512])
def test_neighbouring_indices_are_independent(lag: int) -> None:
    drawn = uniform(fold(1, 2, "mask"), np.arange(MANY + lag))
    independent(drawn[:-lag], drawn[lag:])


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 2), (5, 5 ^ (1 << 63)), (2**32, 2**32 + 1)])
def test_neighbouring_folded_keys_are_independent(first: int, second: int) -> None:
    index = np.arange(MANY)
    independent(uniform(fold(first), index), uniform(fold(second), index))


def test_purposes_rows_steps_and_seeds_are_independent() -> None:
    index = np.arange(MANY)
    base = uniform(Chance(1, 5).key("mask", 3), index)
    rest = [
        Chance(1, 5).key("replace", 3),
        Chance(1, 5).key("mask", 4),
        Chance(1, 6).key("mask", 3),
        Chance(2, 5).key("mask", 3),
        Chance(5, 1).key("mask", 3),  # seed and step are not interchangeable
        Chance(1, -1).key("mask", 3),  # evaluation
    ]
    for key in rest:
        independent(base, uniform(key, index))


def test_the_same_place_over_many_steps_and_rows_is_fair() -> None:
    """The first draw under each of many keys: what one token sees over a run."""
    steps = np.array([Chance(3, step).key("mask", 0) for step in range(20_000)], dtype=np.uint64)
    rows = Chance(3, 0).keys("mask", np.arange(20_000))
    for keys in (steps, rows):
        drawn = uniform(keys, np.zeros(len(keys), dtype=np.int64))
        assert p_of_counts(np.histogram(drawn, bins=64, range=(0, 1))[0]) > SMALLEST
        independent(drawn[:-1], drawn[1:])


def test_keys_of_rows_equal_the_single_keys() -> None:
    built = Chance(8, 9).keys("negative", np.array([5, 0, 10**12]))
    assert built.dtype == np.uint64
    assert built.tolist() == [Chance(8, 9).key("negative", row) for row in (5, 0, 10**12)]


# --- keys -------------------------------------------------------------------------------------------


def test_folding_arrays_equals_folding_their_elements() -> None:
    first, second = np.arange(5), np.array([3, 2**62, 0, 7, 10**12])
    for parts in ((first,), (4, "word", first), (first, "word", 4, second), (2**64 - 1, second, first, "word")):
        each = [[int(part[i]) if isinstance(part, np.ndarray) else part for part in parts] for i in range(5)]
        assert chance.fold_arrays(*parts).tolist() == [fold(*item) for item in each]
    assert first.tolist() == [0, 1, 2, 3, 4]


def test_fold_depends_on_every_part_and_on_their_order() -> None:
    built = [fold(1, 2, 3), fold(3, 2, 1), fold(1, 2), fold(1, 2, 0), fold(12, 3), fold("1", 2, 3), fold(), fold(0)]
    built += [fold(0, 0), fold("mask"), fold("masks"), fold("마스크"), fold(-1), fold(2**64 - 2)]
    assert len(set(built)) == len(built)
    assert all(0 <= value < 2**64 for value in built)


def test_fold_hardly_collides() -> None:
    built = {fold(seed, step, "mask") for seed in range(30) for step in range(1000)}
    assert len(built) == 30_000


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
@settings(max_examples=200, deadline=None)
def test_mix_is_one_to_one(first: int, second: int) -> None:
    assert (mix(first) == mix(second)) == (first == second)


def test_the_bits_are_splitmix64() -> None:
    """The first outputs of the published generator with seed 0 and with seed 1234567."""
    assert random_bits(0, np.arange(3)).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert random_bits(1234567, np.arange(2)).tolist() == [6457827717110365317, 3203168211198807973]


# --- permutations -----------------------------------------------------------------------------------


@given(st.integers(1, 5000), st.integers(0, 2**64 - 1))
@settings(max_examples=150, deadline=None)
def test_a_permutation_is_a_bijection(size: int, key: int) -> None:
    assert np.array_equal(np.sort(Permutation(size, key)(np.arange(size))), np.arange(size))


@pytest.mark.parametrize("size", [2**16 - 1, 2**16, 2**16 + 1, 300_000])
def test_a_large_permutation_is_a_bijection(size: int) -> None:
    assert np.array_equal(np.sort(Permutation(size, 3)(np.arange(size))), np.arange(size))


def test_small_permutations_are_all_equally_likely() -> None:
    """All 24 orders of four things."""
    seen: dict[tuple[int, ...], int] = {}
    for key in range(2400):
        order = tuple(Permutation(4, fold(key, "order"))(np.arange(4)).tolist())
        seen[order] = seen.get(order, 0) + 1
    assert len(seen) == 24
    assert p_of_counts(np.array(list(seen.values()))) > SMALLEST


def test_any_element_lands_anywhere() -> None:
    size = 50
    landed = np.stack([Permutation(size, fold(key, "order"))(np.arange(size)) for key in range(1000)])
    for thing in (0, 1, 25, 49):
        assert p_of_counts(np.bincount(landed[:, thing], minlength=size)) > SMALLEST
    # where a thing lands says nothing about its neighbour, but that they differ
    gaps = np.bincount((landed[:, 1] - landed[:, 0]) % size, minlength=size)[1:]
    assert p_of_counts(gaps) > SMALLEST


@given(st.integers(1, 2**50), st.data())
@settings(max_examples=50, deadline=None)
def test_distinct_places_stay_distinct_in_huge_permutations(size: int, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=40, unique=True))
    landed = Permutation(size, 17)(np.array(places))
    assert len(set(landed.tolist())) == len(places)
    assert landed.min() >= 0 and landed.max() < size


def test_far_indices_need_nothing_before_them() -> None:
    """Place 10^15: no machine computes, or holds, what lies before it."""
    for size in (10**9 + 7, 10**12, 10**15):
        landed = Permutation(size, 5)(np.arange(size - 1000, size))
        assert len(np.unique(landed)) == 1000 and landed.max() < size
    drawn = uniform(Chance(1, 10**9).key("mask", 10**12), np.arange(10**14, 10**14 + 1000))
    assert len(np.unique(drawn)) > 990


def test_one_place_equals_the_array() -> None:
    permutation = Permutation(1000, 2)
    assert [permutation(place) for place in range(20)] == permutation(np.arange(20)).tolist()


def test_a_permutation_refuses_indices_outside() -> None:
    with pytest.raises(IndexError, match="permutation of 10"):
        Permutation(10, 0)(10)
    with pytest.raises(IndexError):
        Permutation(10, 0)(np.array([3, -1]))
    with pytest.raises(ValueError, match="at least one"):
        Permutation(0, 0)


# --- the same bits everywhere -----------------------------------------------------------------------


def numpy_and_torch_agree(device: str) -> None:
    index = np.concatenate([np.arange(2000), 10**15 + np.arange(100), np.array([2**62])])
    there = torch.from_numpy(index).to(device)
    for key in KEYS:
        assert np.array_equal(random_bits(key, index).view(np.int64), random_bits(key, there).cpu().numpy())
        assert np.array_equal(uniform(key, index), uniform(key, there).cpu().numpy())
        of_all_bits = (random_bits(key, index) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
        assert np.array_equal(uniform(key, index), of_all_bits)
        for limit in (1, 7, 30_522, 2**31 - 1):
            assert np.array_equal(integers(key, index, limit), integers(key, there, limit).cpu().numpy())
        assert np.allclose(gumbel(key, index), gumbel(key, there).cpu().numpy(), rtol=1e-4, atol=1e-5)


def keys_may_be_arrays(device: str) -> None:
    keys = Chance(1, 2).keys("mask", np.arange(50))
    index = np.arange(64)
    here = random_bits(keys[:, None], index[None, :])
    there = random_bits(
        torch.from_numpy(keys.view(np.int64)).to(device)[:, None], torch.from_numpy(index).to(device)[None, :]
    )
    assert np.array_equal(here.view(np.int64), there.cpu().numpy())
    assert here[7].tolist() == random_bits(int(keys[7]), index).tolist()


def test_numpy_and_torch_give_the_same_bits() -> None:
    numpy_and_torch_agree("cpu")
    keys_may_be_arrays("cpu")


@pytest.mark.gpu
def test_cpu_and_cuda_give_the_same_bits() -> None:
    numpy_and_torch_agree("cuda")
    keys_may_be_arrays("cuda")


def test_nothing_here_touches_global_state() -> None:
    before_numpy, before_torch = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    Permutation(100, chance.fold("x"))(np.arange(100))
    gumbel(1, np.arange(100))
    Chance(1, 1).keys("mask", np.arange(3))
    assert np.array_equal(np.random.get_state()[1], before_numpy)  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), before_torch)


@pytest.mark.parametrize("last", [0, 2**24 - 1])
def test_noise_is_finite_in_the_first_and_in_the_last_cell(last: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One in 2^24 draws falls there; infinite noise would win against any logit."""
    monkeypatch.setattr(chance, "_mix_upper", lambda value: value * 0 + (last << 40))
    for index in (np.arange(3, dtype=np.uint64), torch.arange(3)):
        noise = chance.gumbel(0, index)
        assert bool((abs(noise) < 17.4).all())
        assert (float(noise[0]) > 17) == (last == 0)

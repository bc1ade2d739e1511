"""Rates against hand-computed values of the published schedules; rows as exact sums."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.errors import UserError
from etude.train.schedule import (
    batch_rows,
    check_warmup,
    compute_lr,
    find_uneven_batch,
    full_rows,
    micro_rows,
    rows_before,
    steps_within,
    total_steps,
)
from etude.train.settings import BatchRamp, Settings


def rates(total, steps, **values):
    settings = Settings(steps=total, **values)
    return [compute_lr(settings, step, total) for step in steps]


def test_bert_switches_from_warmup_to_an_unshifted_line():
    # BERT: 1e-4, 10,000 of 1,000,000 steps: 0 at first, 1e-4 never reached: at 10,000 it is 1e-4 * 0.99
    values = rates(1_000_000, [0, 1, 9_999, 10_000, 500_000, 999_999, 1_000_000], lr=1e-4, warmup=10_000,
                   warmup_shape="switch")  # fmt: skip
    assert values == pytest.approx([0.0, 1e-8, 0.9999e-4, 0.99e-4, 0.5e-4, 1e-10, 0.0], abs=1e-18)
    assert values[0] == 0.0


def test_electra_multiplies_warmup_and_decay():
    values = rates(1_000_000, [0, 5_000, 10_000, 500_000], lr=5e-4, warmup=10_000, warmup_shape="multiply")
    assert values == pytest.approx([0.0, 5e-4 * 0.5 * 0.995, 5e-4 * 0.99, 2.5e-4])
    assert values[0] == 0.0


def test_gpt1_fine_tuning_has_a_fractional_warmup():
    # x = t / total, (x / 0.002 if x <= 0.002 else 1) * (1 - x); 0.002 of 700 steps is 1.4 steps
    total, peak = 700, 6.25e-5
    expected = [peak * min(1.0, t / total / 0.002) * (1 - t / total) for t in (0, 1, 2, 350)]
    values = rates(total, [0, 1, 2, 350], lr=peak, warmup=0.002, warmup_shape="multiply")
    assert values == pytest.approx(expected)
    assert values[0] == 0.0 and values[1] == pytest.approx(peak / 1.4 * (1 - 1 / 700))


def test_the_usual_shape_wastes_no_step_and_is_continuous():
    values = rates(100, range(101), lr=1.0, warmup=9)
    assert values[:11] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 90 / 91])
    assert values[99] == pytest.approx(1 / 91) and values[100] == 0.0


def test_no_warmup_starts_at_the_peak():
    for shape in ("shift", "switch", "multiply"):
        assert rates(10, [0, 5], lr=2.0, warmup=0, warmup_shape=shape) == pytest.approx([2.0, 1.0])


def test_gpt3_cosine_ends_before_the_run_at_a_tenth():
    values = rates(300, [1, 131, 261, 299], lr=6e-4, lr_schedule="cosine", warmup=1, final_lr=0.1, decay_end=261 / 300)
    assert values == pytest.approx([6e-4, 6e-4 * 0.55, 6e-5, 6e-5])


RAMPED = {"lr": 1.0, "batch_tokens": 40, "batch_ramp": {"from_tokens": 10, "over_tokens": 80, "stages": 2}}


def test_a_schedule_in_tokens_counts_what_was_read():
    # rows of 10 tokens: 4 steps of 1 row, 2 of 2 rows, then 4 rows a step; 12 steps read 4 + 4 + 24 = 32 rows
    settings = Settings(steps=12, lr_progress="tokens", lr_schedule="linear", warmup=0, decay_end=0.75, **RAMPED)
    values = [compute_lr(settings, step, 12, 10) for step in (0, 4, 6, 8, 10, 11)]
    assert values == pytest.approx([1.0, 1 - 4 / 24, 1 - 8 / 24, 1 - 16 / 24, 0.0, 0.0])
    in_steps = [compute_lr(settings.model_copy(update={"lr_progress": "steps"}), step, 12, 10) for step in (4, 6)]
    assert in_steps == pytest.approx([1 - 4 / 9, 1 - 6 / 9])


def test_a_warm_up_in_tokens_is_a_share_of_what_is_read_or_a_number_of_steps():
    share = Settings(steps=12, lr_progress="tokens", lr_schedule="constant", warmup=6 / 32, **RAMPED)  # 6 rows
    steps = share.model_copy(update={"warmup": 5.0})  # 5 steps have read 6 rows
    for settings in (share, steps):
        values = [compute_lr(settings, step, 12, 10) for step in (0, 3, 4, 5)]
        assert values == pytest.approx([1 / 7, 4 / 7, 6 / 8, 1.0])


CURVES = [(curve, shape) for curve in ("linear", "cosine", "stable_decay", "constant")
          for shape in ("shift", "switch", "multiply")]  # fmt: skip


@pytest.mark.parametrize(("curve", "shape"), [*CURVES, ("inverse_sqrt", "shift")])
def test_without_a_ramp_tokens_and_steps_are_one(curve, shape):
    settings = Settings(steps=50, lr_schedule=curve, warmup=0.13, warmup_shape=shape, batch_tokens=40)
    counted = settings.model_copy(update={"lr_progress": "tokens"})
    for step in range(50):
        assert compute_lr(counted, step, 50, 10) == pytest.approx(compute_lr(settings, step, 50, 10), rel=1e-12)


def test_inverse_square_root_is_that_of_the_transformer():
    width, warm = 512, 4000
    peak = width**-0.5 * warm**-0.5  # 6.99e-4
    expected = [width**-0.5 * min(s**-0.5, s * warm**-1.5) for s in (1, 2, 4000, 16_000)]  # the paper's s counts from 1
    values = rates(100_000, [0, 1, 3999, 15_999], lr=peak, lr_schedule="inverse_sqrt", warmup=warm)
    assert values == pytest.approx(expected)
    assert peak == pytest.approx(6.99e-4, abs=1e-6)


def test_constant_after_warmup():
    assert rates(50, [0, 3, 4, 49], lr=1.0, lr_schedule="constant", warmup=4) == pytest.approx([0.2, 0.8, 1.0, 1.0])


@pytest.mark.parametrize(("shape", "middle"), [("sqrt", 1 - math.sqrt(0.5)), ("linear", 0.5)])
def test_stable_then_decay(shape, middle):
    values = rates(1000, [100, 800, 900, 1000], lr=1.0, lr_schedule="stable_decay", warmup=100, decay_share=0.2,
                   decay_shape=shape)  # fmt: skip
    assert values == pytest.approx([1.0, 1.0, middle, 0.0])


def test_a_warmup_longer_than_the_run_is_said():
    settings = Settings(steps=100, warmup=10_000)
    assert "never reaches" in (check_warmup(settings, 100) or "")
    assert check_warmup(settings, 20_000) is None and check_warmup(Settings(steps=100, warmup=0.1), 100) is None


# Rows


def test_batches_are_whole_rows():
    settings = Settings(steps=1, batch_tokens=1000, micro_tokens=600)
    assert full_rows(settings, 128) == 7 and micro_rows(settings, 128) == 4 and micro_rows(settings, 512) == 1
    assert micro_rows(Settings(steps=1, batch_tokens=1000), 128) == 7
    assert micro_rows(Settings(steps=1, batch_tokens=1000, micro_tokens=10**9), 128) == 7
    with pytest.raises(UserError, match="at least 2048"):
        full_rows(settings, 2048)
    with pytest.raises(UserError, match=r"train\.micro_tokens to at least 700"):
        micro_rows(settings, 700)
    with pytest.raises(UserError, match=r"train\.batch_examples"):
        full_rows(settings, None)
    assert full_rows(Settings(epochs=3, batch_examples=32), None) == 32


ramps = st.builds(
    lambda row, first, full, over, stages: (
        row,
        Settings(
            steps=1,
            batch_tokens=max(row, first + full),
            batch_ramp=BatchRamp(from_tokens=first, over_tokens=over, stages=stages),
        ),
    ),
    st.integers(1, 64),
    st.integers(1, 500),
    st.integers(0, 2_000),
    st.integers(1, 50_000),
    st.integers(1, 9),
)


@given(ramps, st.integers(0, 300))
def test_rows_before_is_the_sum_of_all_batches(case, steps):
    row_tokens, settings = case
    sizes = [batch_rows(settings, row_tokens, step) for step in range(steps)]
    assert rows_before(settings, row_tokens, steps) == sum(sizes)
    assert sizes == sorted(sizes) and all(size >= 1 for size in sizes)


@given(ramps, st.integers(0, 100_000))
def test_steps_within_is_the_inverse(case, rows):
    row_tokens, settings = case
    steps = steps_within(settings, row_tokens, rows)
    assert rows_before(settings, row_tokens, steps) <= rows < rows_before(settings, row_tokens, steps + 1)


def test_a_ramp_takes_the_tokens_it_says():
    ramp = BatchRamp(from_tokens=32_768, over_tokens=10**9, stages=16)
    settings = Settings(steps=1, batch_tokens=2**19, batch_ramp=ramp)
    steps = next(k for k in range(10**5) if batch_rows(settings, 2048, k) == 256)
    assert rows_before(settings, 2048, steps) * 2048 == pytest.approx(10**9, rel=0.01)
    assert batch_rows(settings, 2048, 0) == 16


@pytest.mark.parametrize(
    ("batch_tokens", "ranks", "remedy"),
    [
        (1 << 20, 8, "train.batch_ramp.from_tokens=65536 train.batch_ramp.stages=15"),  # 16 rows would leave two stages
        (1 << 20, 16, "train.batch_ramp.from_tokens=65536 train.batch_ramp.stages=15"),
        (1 << 20, 128, "train.batch_ramp.from_tokens=262144 train.batch_ramp.stages=3"),
        (1 << 20, 512, "train.batch_ramp=null"),
        (3_211_264, 1024, "train.batch_tokens=4194304 train.batch_ramp.from_tokens=2097152 train.batch_ramp.stages=1"),
    ],
)
def test_batches_that_do_not_divide_are_said_with_settings_that_do(batch_tokens, ranks, remedy):
    """GPT-3's published ramp, 16 stages from 32k tokens on, divides among no eight GPUs."""
    ramp = BatchRamp(from_tokens=32_768, over_tokens=4_000_000_000)
    settings = Settings(tokens=10**9, batch_tokens=batch_tokens, batch_ramp=ramp)
    told = find_uneven_batch(settings, 2048, ranks)
    assert told and f"among {ranks:,} processes" in told and told.endswith(f"Set {remedy}.")
    values = dict(word.split("=") for word in remedy.split())
    mended = settings.model_copy(
        update={
            "batch_tokens": int(values.get("train.batch_tokens", batch_tokens)),
            "batch_ramp": None
            if "train.batch_ramp" in values
            else ramp.model_copy(
                update={name: int(values[f"train.batch_ramp.{name}"]) for name in ("from_tokens", "stages")}
            ),
        }
    )
    assert find_uneven_batch(mended, 2048, ranks) is None


def test_examples_that_do_not_divide_are_said():
    told = find_uneven_batch(Settings(epochs=3, batch_examples=30), None, 4)
    assert told == "A step of 30 rows cannot be divided among 4 processes. Set train.batch_examples=32."
    assert find_uneven_batch(Settings(epochs=3, batch_examples=32), None, 4) is None


def test_far_seeks_are_exact():
    settings = Settings(steps=1, batch_tokens=2**20, batch_ramp=BatchRamp(from_tokens=2**15, over_tokens=10**10))
    far = 10**9
    assert rows_before(settings, 512, far + 1) - rows_before(settings, 512, far) == 2048
    assert rows_before(Settings(steps=1, batch_tokens=1000), 7, far) == 142 * far  # beyond 2^53 / 10^5: no float in it


# Budgets


def test_every_budget_becomes_steps():
    batch = {"batch_tokens": 1024}
    assert total_steps(Settings(steps=77, **batch), 128) == 77
    assert total_steps(Settings(tokens=10_240, **batch), 128) == 10
    assert total_steps(Settings(tokens=11_263, **batch), 128) == 10  # never more than asked for
    assert total_steps(Settings(tokens=5, **batch), 128) == 1
    assert total_steps(Settings(flops=6e6 * 10_240, **batch), 128, 6e6) == 10
    assert total_steps(Settings(minutes=2, **batch), 128, tokens_per_second=1024) == 120
    assert total_steps(Settings(epochs=3, batch_examples=32), None, epoch_rows=100) == 10  # 300 / 32, rounded up
    assert total_steps(Settings(epochs=1, batch_examples=50), None, epoch_rows=100) == 2
    for settings in (Settings(flops=1.0), Settings(minutes=1), Settings(epochs=1)):
        with pytest.raises(ValueError, match="needs"):
            total_steps(settings, 128)
    with pytest.raises(ValueError, match="needs"):
        total_steps(Settings(tokens=5, batch_examples=8), None)


def test_a_ramp_makes_a_token_budget_longer():
    plain = Settings(tokens=10**6, batch_tokens=10_000)
    ramped = Settings(
        tokens=10**6, batch_tokens=10_000, batch_ramp=BatchRamp(from_tokens=1_000, over_tokens=500_000, stages=4)
    )
    assert total_steps(plain, 100) == 100
    steps = total_steps(ramped, 100)
    assert steps > 150 and rows_before(ramped, 100, steps) * 100 <= 10**6

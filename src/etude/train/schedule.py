"""Learning rates and batch sizes as pure functions of the step, so that a resume is a seek.

Steps count from 0; `step` is the update about to be made. The learning rate is `lr` times a warm-up and a decay. With
w warm-up steps, e the step at which the decay ends (decay_end times the total) and decay(p) falling from 1
at p = 0 to final_lr at p = 1, the published schedules join the two in three ways:

    shift     (t+1)/(w+1), then decay((t-w)/(e-w))     continuous, no update wasted: the usual reading of a paper
    switch    t/w, then decay(t/e)                      BERT's code, GPT-1's pre-training: a small drop at t = w
    multiply  min(1, t/w) * decay(t/e)                  ELECTRA's code, GPT-1's fine-tuning

The last two have a learning rate of exactly 0 at the first update. inverse_sqrt is Vaswani et al., section 5.3, in
terms of its peak: min((t+1)/w, sqrt(w/(t+1))). stable_decay stays at lr and decays over the last decay_share of steps.

With lr_progress=tokens, t, w and e are what was read before those steps, and the 1 beside them is what the step reads.
Under a batch ramp that is another curve: half of GPT-3's decay lies behind 130 billion tokens, not behind half of the
steps, of which the ramp's small ones are many.

Batches are whole rows. A batch ramp has a few stages of constant size, so the rows before any step are a short sum.
"""

from __future__ import annotations

import math

from etude.errors import UserError
from etude.train.settings import Settings


def warmup_steps(settings: Settings, total: int) -> float:
    """Return the warm-up in steps; a share of the run may be fractional, as GPT-1's 0.002 is."""
    return settings.warmup if settings.warmup >= 1 else settings.warmup * total


def _decay(settings: Settings, progress: float) -> float:
    """Return the decay: from 1 at progress 0 to final_lr at 1, and constant after it."""
    progress = min(1.0, max(0.0, progress))
    if settings.lr_schedule == "cosine":
        shape = 0.5 * (1.0 + math.cos(math.pi * progress))
    elif settings.lr_schedule == "stable_decay":
        start = 1.0 - settings.decay_share
        inside = (progress - start) / settings.decay_share if progress > start else 0.0
        shape = 1.0 - (math.sqrt(inside) if settings.decay_shape == "sqrt" else inside)
    else:
        shape = 1.0 - progress
    return settings.final_lr + (1.0 - settings.final_lr) * shape


def compute_lr(settings: Settings, step: int, total: int, row_tokens: int | None = None) -> float:
    """Return the learning rate of the update `step`, of `total`; `row_tokens` is read where tokens are counted."""
    warm, place, unit, length = warmup_steps(settings, total), step, 1, total
    if settings.lr_progress == "tokens":
        place, length = (rows_before(settings, row_tokens, number) for number in (step, total))
        unit = batch_rows(settings, row_tokens, step)
        is_share = settings.warmup < 1
        warm = settings.warmup * length if is_share else rows_before(settings, row_tokens, int(settings.warmup))
    if settings.lr_schedule == "inverse_sqrt":
        warm = max(float(unit), warm)  # a share of a very short run
        return settings.lr * min((place + unit) / warm, math.sqrt(warm / (place + unit)))
    is_constant = settings.lr_schedule == "constant"
    end = settings.decay_end * length
    if settings.warmup_shape == "shift":
        if place < warm:
            return settings.lr * (place + unit) / (warm + unit)
        # stable_decay's last share is one of the run, so its progress is not counted from the warm-up
        origin = 0.0 if settings.lr_schedule == "stable_decay" else warm
        decay_length = max(float(unit), end - origin)
        return settings.lr * (1.0 if is_constant else _decay(settings, (place - origin) / decay_length))
    rising = place / warm if place < warm else 1.0
    falling = 1.0 if is_constant else _decay(settings, place / end)
    if settings.warmup_shape == "switch":
        return settings.lr * (rising if place < warm else falling)
    return settings.lr * rising * falling


def check_warmup(settings: Settings, total: int) -> str | None:
    """Warn of the commonest way to learn nothing: a published warm-up on a short run. None if all is well."""
    warm = warmup_steps(settings, total)
    if total > 1 and warm >= total:
        return (
            f"train.warmup={warm:.0f} steps is no shorter than the run ({total} steps): the learning rate never "
            f"reaches train.lr={settings.lr:g}. Set train.warmup below {total}, or to a share such as 0.1"
        )
    return None


# Rows


def full_rows(settings: Settings, row_tokens: int | None) -> int:
    """Return the rows of a step at full size."""
    if settings.batch_examples is not None:
        return settings.batch_examples
    if row_tokens is None:
        raise UserError(
            "The rows of this objective are labelled examples of their own length: set train.batch_examples "
            "(examples a step, for instance 32) in place of train.batch_tokens."
        )
    if settings.batch_tokens < row_tokens:
        raise UserError(
            f"train.batch_tokens={settings.batch_tokens} is less than one row of {row_tokens} tokens: "
            f"set train.batch_tokens to at least {row_tokens}, or shorten the rows of the objective."
        )
    return settings.batch_tokens // row_tokens


def micro_rows(settings: Settings, row_tokens: int) -> int:
    """Return the rows of a micro-batch, at least one; the last of a step may be smaller."""
    full = full_rows(settings, row_tokens)
    if settings.micro_tokens is None:
        return full
    if settings.micro_tokens < row_tokens:
        raise UserError(
            f"train.micro_tokens={settings.micro_tokens} is less than one row of {row_tokens} tokens, and a row is "
            f"never split: set train.micro_tokens to at least {row_tokens}, or shorten the rows of the objective."
        )
    return min(full, settings.micro_tokens // row_tokens)


def _ramp_stages(settings: Settings, row_tokens: int | None) -> list[tuple[int, int]]:
    """Return (rows, steps) of each stage of the batch ramp, below the full batch."""
    ramp, full = settings.batch_ramp, full_rows(settings, row_tokens)
    if ramp is None or row_tokens is None:
        return []
    first = max(1, ramp.from_tokens // row_tokens)
    stages = []
    for stage in range(ramp.stages):
        rows = first + (full - first) * stage // ramp.stages
        steps = -(-ramp.over_tokens // (ramp.stages * rows * row_tokens))  # rounded up: at least one step a stage
        stages.append((rows, steps))
    return stages


def batch_sizes(settings: Settings, row_tokens: int | None) -> list[int]:
    """Return every number of rows a step of the run can have."""
    return sorted({rows for rows, _ in _ramp_stages(settings, row_tokens)} | {full_rows(settings, row_tokens)})


def find_uneven_batch(settings: Settings, row_tokens: int | None, ranks: int) -> str | None:
    """Say which step does not divide among the ranks, and the settings nearest to these with which all do."""
    uneven = [size for size in batch_sizes(settings, row_tokens) if size % ranks]
    if not uneven:
        return None
    problem = f"A step of {uneven[0]:,} rows cannot be divided among {ranks:,} processes. Set "
    full = ranks * max(1, round(full_rows(settings, row_tokens) / ranks))
    if row_tokens is None or settings.batch_examples is not None:
        return f"{problem}train.batch_examples={full}."
    changes = [f"train.batch_tokens={full * row_tokens}"] if full != full_rows(settings, row_tokens) else []
    if ramp := settings.batch_ramp:
        least = ranks * max(1, round(ramp.from_tokens / row_tokens / ranks))
        # (stages, rows of the first): up to twice the first batch, where that lets the batch grow in more stages
        ramps = [
            (stages, -first)
            for first in range(least, min(2 * least, full - 1) + 1, ranks)
            for stages in range(1, ramp.stages + 1)
            if (full - first) // ranks % stages == 0
        ]
        if ramps:
            stages, first = max(ramps)
            changes += [f"train.batch_ramp.from_tokens={-first * row_tokens}", f"train.batch_ramp.stages={stages}"]
        else:
            changes += ["train.batch_ramp=null"]
    return f"{problem}{' '.join(changes)}."


def batch_rows(settings: Settings, row_tokens: int | None, step: int) -> int:
    """Return the rows of a step."""
    for rows, steps in _ramp_stages(settings, row_tokens):
        if step < steps:
            return rows
        step -= steps
    return full_rows(settings, row_tokens)


def rows_before(settings: Settings, row_tokens: int | None, step: int) -> int:
    """Return the rows of all steps before `step`: where a resumed run goes on reading. Exact at any step."""
    before = 0
    for rows, steps in _ramp_stages(settings, row_tokens):
        in_stage = min(step, steps)
        before += rows * in_stage
        step -= in_stage
    return before + step * full_rows(settings, row_tokens)


def steps_within(settings: Settings, row_tokens: int | None, rows: int) -> int:
    """Return the most whole steps that read no more than `rows`: the inverse of rows_before."""
    before = 0
    for size, steps in _ramp_stages(settings, row_tokens):
        if size * steps > rows:
            return before + rows // size
        before, rows = before + steps, rows - size * steps
    return before + rows // full_rows(settings, row_tokens)


def total_steps(
    settings: Settings,
    row_tokens: int | None,
    flops_per_token: float | None = None,
    *,
    tokens_per_second: float | None = None,
    epoch_rows: int | None = None,
    mean_tokens: float | None = None,
) -> int:
    """Return the length of the run in steps, from whichever budget is set; at least 1.

    Tokens, FLOPs and minutes are never exceeded (but for that one step): compared runs stay within equal
    compute. Epochs are rounded up, so that every example is seen. For labelled examples `row_tokens` is their
    mean length where the budget needs one; `mean_tokens` is what a row holds where rows of `row_tokens` are not full.
    """
    if settings.steps is not None:
        return settings.steps
    if settings.epochs is not None:
        if epoch_rows is None:
            raise ValueError("a budget in epochs needs epoch_rows")
        rows = math.ceil(settings.epochs * epoch_rows)
        whole = steps_within(settings, row_tokens, rows)
        return max(1, whole + (rows_before(settings, row_tokens, whole) < rows))
    if row_tokens is None:
        raise ValueError("a budget in tokens, FLOPs or minutes needs the (mean) tokens of a row")
    if settings.tokens is not None:
        tokens = settings.tokens
    elif settings.flops is not None:
        if not flops_per_token:
            raise ValueError("a budget in FLOPs needs flops_per_token")
        tokens = int(settings.flops / flops_per_token)
    else:
        if not tokens_per_second or settings.minutes is None:
            raise ValueError("a budget in minutes needs the measured tokens_per_second")
        tokens = int(settings.minutes * 60 * tokens_per_second)
    return max(1, steps_within(settings, row_tokens, int(tokens / (mean_tokens or row_tokens))))
